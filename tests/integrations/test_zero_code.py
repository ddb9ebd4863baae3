"""Lightning and the Trainer of transformers under `traceml run`, in scripts without a word about
TraceML: phases by name, metrics, and the summary in Lightning's loggers."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import PYTHON, TRACEML, Finished, run

SCRIPTS = Path(__file__).with_name("scripts")
ENVIRONMENT = {"SLURM_JOB_ID": None, "HF_HUB_OFFLINE": "1"}
BATCHES = 24
STEP_TIME = "traceml/step_time_ms"


def traced(folder: Path, script: str, *words: str) -> Finished:
    command = [TRACEML, "run", "--mode=summary", "--", PYTHON, SCRIPTS / script, *words]
    done = run(command, folder, env=ENVIRONMENT)
    tracer = done.summary["tracer"]
    assert (tracer["failures"], tracer["steps_lost"], tracer["values_refused"]) == (0, 0, 0)
    done.assert_nothing_is_left()
    return done


def calls(done: Finished) -> dict[str, int]:
    return {region["name"]: region["calls"] for region in done.summary["regions"]}


def counts(done: Finished, *names: str) -> list[int]:
    metrics: dict[str, Any] = done.summary["metrics"]
    return [metrics[name]["count"] for name in names]


# Lightning


def lightning(folder: Path, package: str, *words: str) -> Finished:
    pytest.importorskip(package.partition(".")[0])
    return traced(folder, "lightning_plain.py", package, *words)


def rows_with_summary(done: Finished) -> list[dict[str, str]]:
    (path,) = done.cwd.glob("csv/**/metrics.csv")
    with path.open() as file:
        return [row for row in csv.DictReader(file) if row.get(STEP_TIME)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return lightning(tmp_path_factory.mktemp("whole"), "pytorch_lightning", "whole")


class TestLightning:
    def test_its_phases_have_names(self, whole: Finished) -> None:
        assert whole.status == 0, whole.stderr
        found = calls(whole)
        assert found.pop("logging") > 2 * BATCHES
        assert found == {"validation": 2, "checkpoint": 2}
        assert counts(whole, "loss", "val_loss") == [2 * BATCHES, 2]

    def test_its_logger_gets_the_summary_at_the_step_that_lightning_logs_at(
        self, whole: Finished
    ) -> None:
        """Batches: the two optimizers of each make Lightning's `global_step` twice as large."""
        assert f"optimizer steps: {4 * BATCHES}" in whole.stdout
        (row,) = rows_with_summary(whole)
        assert float(row[STEP_TIME]) > 0
        assert row["step"] == str(2 * BATCHES)

    def test_a_callback_of_the_scripts_own_is_the_only_one(
        self, whole: Finished, tmp_path: Path
    ) -> None:
        """With the other of Lightning's two packages."""
        done = lightning(tmp_path, "lightning.pytorch", "whole", "callback")
        assert done.status == 0, done.stderr
        assert calls(done) == calls(whole)
        assert counts(done, "loss", "val_loss") == [2 * BATCHES, 2]
        assert len(rows_with_summary(done)) == 1

    @pytest.mark.parametrize(
        ("course", "validations", "step"),
        [("interrupted", 1, BATCHES + BATCHES // 2), ("failed", 2, 2 * BATCHES - 1)],
    )
    def test_a_fit_that_does_not_end_well_gives_its_logger_the_summary_too(
        self, tmp_path: Path, course: str, validations: int, step: int
    ) -> None:
        done = lightning(tmp_path, "pytorch_lightning", course)
        assert done.status == 1
        assert calls(done)["validation"] == validations
        (row,) = rows_with_summary(done)
        assert float(row[STEP_TIME]) > 0
        assert row["step"] == str(step)

    @pytest.mark.parametrize("own", [(), ("callback",)], ids=["ours", "one of its own"])
    def test_a_fit_that_never_began_opens_no_logger(
        self, tmp_path: Path, own: tuple[str, ...]
    ) -> None:
        done = lightning(tmp_path, "pytorch_lightning", "unprepared", *own)
        assert done.status == 1
        assert list(done.cwd.glob("csv/**/*")) == []

    def test_a_trainer_gets_no_callback_of_the_other_package(self, tmp_path: Path) -> None:
        pytest.importorskip("lightning")
        done = traced(tmp_path, "lightning_both.py")
        assert "callbacks: 1 and 0" in done.stdout


FACTORIES = """\
import sys
from importlib.metadata import entry_points
for group in ("lightning.pytorch.callbacks_factory", "pytorch_lightning.callbacks_factory"):
    (ours,) = [each for each in entry_points(group=group) if each.name == "traceml"]
    print(ours.load()())
print(sorted(name for name in sys.modules if name.startswith(("traceml.trace", "lightning"))))
"""


def test_without_a_run_lightning_is_given_nothing_and_nothing_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FACTORIES], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "[]", "[]"]


# Hugging Face


@pytest.mark.parametrize("report_to", ["none", "traceml"])
def test_a_trainers_phases_have_names_and_its_metrics_are_recorded_once(
    tmp_path: Path, report_to: str
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    done = traced(tmp_path, "huggingface_plain.py", report_to)
    assert done.status == 0, done.stderr
    assert f"steps: {BATCHES}\n" in done.stdout
    assert done.steps == BATCHES
    assert calls(done) == {"evaluation": 2, "checkpoint": 2, "logging": BATCHES + 2 + 1}
    assert counts(done, "loss", "eval_loss") == [BATCHES, 2]


def test_a_callback_that_the_script_reports_to_is_not_counted_twice(tmp_path: Path) -> None:
    """A `Seq2SeqTrainer` that generates, and imports ours itself."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    done = traced(tmp_path, "huggingface_callback.py")
    assert done.status == 0, done.stderr
    assert "already one" not in done.stderr
    found = calls(done)
    assert (found["evaluation"], found["prediction"], found["generation"]) == (2, 1, 2 * 2 + 1)
    assert counts(done, "loss", "eval_length") == [6, 2]
