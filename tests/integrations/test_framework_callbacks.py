"""What one line in a script does without `traceml run`: Lightning, transformers, Accelerate."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import PYTHON, Finished, run
from traceml.integrations import library_support
from traceml.integrations.library_support import (
    name_methods,
    notice_calls,
    say_if_untested,
    try_to_log,
)
from traceml.model.library_versions import VersionRange
from traceml.model.record_layout import NO_STEP
from traceml.store.record_file import RankFiles

SCRIPTS = Path(__file__).with_name("scripts")
ONE_CORE = {"SLURM_JOB_ID": None, "HF_HUB_OFFLINE": "1"}


def trained(words: Sequence[str | Path], folder: Path) -> Finished:
    done = run(words, folder, env=ONE_CORE)
    assert done.status == 0, done.stderr
    tracer = done.summary["tracer"]
    assert (tracer["failures"], tracer["steps_lost"], tracer["values_refused"]) == (0, 0, 0)
    done.assert_nothing_is_left()
    return done


def calls(summary: Mapping[str, Any]) -> dict[str, int]:
    """How often each named region was entered."""
    return {region["name"]: region["calls"] for region in summary["regions"]}


def values(summary: Mapping[str, Any], metric: str) -> int:
    """How many values of a metric were recorded."""
    count: int = summary["metrics"][metric]["count"]
    return count


# Lightning

SANITY, VALIDATIONS, CHECKPOINTS = 1, 2, 2


@pytest.fixture(scope="module")
def with_lightning(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    pytest.importorskip("pytorch_lightning")
    script = SCRIPTS / "lightning_callback.py"
    return trained([PYTHON, script, "pytorch_lightning", "1"], tmp_path_factory.mktemp("one"))


class TestLightning:
    @pytest.fixture
    def done(self, with_lightning: Finished) -> Finished:
        return with_lightning

    def test_steps_are_the_optimizers_and_not_the_batches(self, done: Finished) -> None:
        """16 of 32 accumulated batches, and 16 batches with two optimizers by hand."""
        assert "automatic: 16" in done.stdout
        assert done.steps == 16 + 16
        assert done.summary["settings"]["accumulation_steps"] == 2

    def test_what_a_training_step_does_besides_is_rest_and_not_the_optimizers(
        self, done: Finished
    ) -> None:
        """Of two accumulated batches the second is the optimizer's closure; each sleeps 10 ms."""
        (files,) = RankFiles.all_in(done.folder)
        steps = files.read_steps()
        automatic = steps[(steps["flags"] & int(NO_STEP)) == 0][:16]
        phases = ("h2d", "forward", "backward", "optimizer", "communication")
        named_ns = sum(np.maximum(automatic[f"{phase}_ns"], 0) for phase in phases)
        assert ((automatic["body_ns"] - named_ns) / 1e6 >= 2 * 10).all()

    def test_the_phases_of_its_loops_have_names(self, done: Finished) -> None:
        found = calls(done.summary)
        assert found.pop("logging") > 16
        assert found == {
            "sanity check": SANITY,
            "validation": VALIDATIONS,
            "checkpoint": CHECKPOINTS,
            "test": 1,
        }
        times = done.summary["step_time"]["global"]["average"]
        assert times["evaluation_ms"] > 0
        assert times["checkpoint_ms"] > 0

    def test_what_loggers_get_is_recorded(self, done: Finished) -> None:
        assert values(done.summary, "loss") == 16
        assert values(done.summary, "val_loss") == VALIDATIONS
        assert done.summary["params"]["width"] == 8

    def test_loggers_are_the_scripts_own_and_no_more(self, done: Finished) -> None:
        """It asks each for its `experiment`, and the progress bar shows the versions of all."""
        assert "v_num: 0\n" in done.stdout

    def test_what_we_give_its_logger_is_no_metric_of_the_run(self, done: Finished) -> None:
        assert not any(name.startswith("traceml/") for name in done.summary["metrics"])

    def test_its_logger_gets_the_summary(self, done: Finished) -> None:
        last = last_row(done)
        assert float(last["traceml/step_time_ms"]) > 0
        assert last["step"] == "16"


def last_row(done: Finished) -> dict[str, str]:
    (path,) = done.cwd.glob("csv/**/metrics.csv")
    with path.open() as file:
        return list(csv.DictReader(file))[-1]


def test_processes_that_lightning_starts_are_ranks_of_one_run(tmp_path: Path) -> None:
    """With the other of its two packages, where that is installed."""
    pytest.importorskip("pytorch_lightning")
    has_other = importlib.util.find_spec("lightning") is not None
    package = "lightning.pytorch" if has_other else "pytorch_lightning"
    done = trained([PYTHON, SCRIPTS / "lightning_callback.py", package, "2"], tmp_path)
    summary = done.summary
    assert list(summary["step_time"]["groups"]["rows"]) == ["0", "1"]
    assert summary["tracer"]["steps_recorded"] == 2 * 8
    assert summary["settings"]["parallelism"] == "DDP"
    found = calls(summary)
    assert found.pop("logging") > 8
    assert found == {
        "sanity check": 2 * SANITY,
        "validation": 2 * VALIDATIONS,
        "checkpoint": 2 * CHECKPOINTS,
    }
    assert values(summary, "loss") == 8  # of the first rank alone
    assert float(last_row(done)["traceml/step_time_ms"]) > 0


# Hugging Face


@pytest.fixture(scope="module")
def with_transformers(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    script = SCRIPTS / "huggingface_callback.py"
    return trained([PYTHON, script], tmp_path_factory.mktemp("huggingface"))


class TestTransformers:
    @pytest.fixture
    def done(self, with_transformers: Finished) -> Finished:
        return with_transformers

    def test_every_accumulated_step_is_one(self, done: Finished) -> None:
        assert "steps: 6" in done.stdout
        assert done.steps == 6
        assert done.summary["settings"]["accumulation_steps"] == 2

    def test_evaluation_and_generation_are_told_apart(self, done: Finished) -> None:
        found = calls(done.summary)
        assert found.pop("logging") >= 6 + 2
        assert found == {
            "evaluation": 2,
            "prediction": 1,
            "generation": 2 * 2 + 1,
            "checkpoint": 2,
        }
        total = {region["name"]: region["total_ms"] for region in done.summary["regions"]}
        assert total["generation"] < total["evaluation"] + total["prediction"]

    def test_what_the_trainer_logs_is_recorded(self, done: Finished) -> None:
        assert values(done.summary, "loss") == 6
        assert values(done.summary, "eval_length") == 2
        assert done.summary["metrics"]["loss"]["last_step"] == 6


def test_a_trainer_of_trl_is_one_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    done = trained([PYTHON, SCRIPTS / "trl_grpo.py"], tmp_path)
    assert f"steps: {done.steps}\n" in done.stdout
    found = calls(done.summary)
    assert found["generation"] > 0
    assert values(done.summary, "loss") > 0


# Accelerate


def test_a_tracker_of_accelerate_makes_one_run_of_all_processes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    launch = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = trained([*launch, SCRIPTS / "accelerate_tracker.py"], tmp_path)
    summary = done.summary
    assert list(summary["step_time"]["groups"]["rows"]) == ["0", "1"]
    assert summary["tracer"]["steps_recorded"] == 2 * 6
    assert summary["params"]["lr"] == 0.01
    assert (values(summary, "loss"), summary["metrics"]["loss"]["last_step"]) == (6, 6)
    found = calls(summary)
    assert (found["logging"], found["checkpoint"]) == (2 * 6, 2)


# What they share


WITHOUT_LIBRARIES = """\
import importlib, importlib.util, sys
hidden = ["lightning", "pytorch_lightning", "transformers", "accelerate", "ray"]
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)
sys.modules.update(dict.fromkeys(hidden))  # as Python has it for what cannot be imported
for name in ["lightning", "huggingface", "accelerate", "ray"]:
    try:
        importlib.import_module(f"traceml.integrations.{name}")
    except ImportError as error:
        print(error)
"""


def test_without_the_library_the_import_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARIES], capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()
    needed = {
        "lightning": "lightning or pytorch_lightning",
        "huggingface": "transformers",
        "accelerate": "accelerate",
        "ray": "ray",
    }
    for line, (module, library) in zip(said, needed.items(), strict=True):
        begin = f"traceml.integrations.{module} is for scripts that use {library}, which is not"
        assert line.startswith(begin)
        assert "`pip install" in line


class Said:
    """A session that keeps what it is told to say, and replaces methods for good."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.say = self.lines.append
        self.replace = setattr

    def rank(self) -> int:
        return 0


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Said:
    made = Said()
    monkeypatch.setattr(library_support, "current", lambda: made)
    monkeypatch.setattr(library_support, "_said", set())
    return made


@pytest.mark.parametrize(
    ("oldest", "first_untested", "is_said"),
    [("0.1", "999", False), ("900", "999", True), ("0.1", "0.2", True)],
    ids=["tested", "older", "newer"],
)
def test_a_version_outside_the_tested_ones_is_said_once(
    session: Said, oldest: str, first_untested: str, is_said: bool
) -> None:
    for _ in range(2):
        say_if_untested(VersionRange("pytest", oldest, first_untested))
    assert len(session.lines) == int(is_said)
    assert all("pytest" in line and oldest in line for line in session.lines)


def test_a_logger_that_fails_is_said_once_and_fails_nothing(session: Said) -> None:
    def log() -> None:
        raise RuntimeError("not logged in")

    for _ in range(2):
        try_to_log("WandbLogger", log)
    (line,) = session.lines
    assert "WandbLogger" in line and "not logged in" in line


def test_a_call_inside_another_of_its_region_is_a_part_of_it(
    session: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []

    class Counting:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            entered.append(self.name)

        def __exit__(self, *_: object) -> None:
            pass

    class Saver:
        def save(self) -> str:
            return "saved"

        def save_all(self) -> str:
            return self.save()

    monkeypatch.setattr(library_support.verbs, "trace_time", Counting)
    for _ in range(2):  # as a second callback does
        name_methods(Saver, ["save", "save_all", "no_such_method"], "checkpoint")
    assert (Saver().save_all(), entered) == ("saved", ["checkpoint"])
    assert (Saver().save(), entered) == ("saved", ["checkpoint"] * 2)


def test_a_call_inside_a_noticed_one_is_a_part_of_it(session: Said) -> None:
    class Logger:
        def log(self, value: int) -> int:
            return value

    class Doubling(Logger):
        def log(self, value: int) -> int:
            return super().log(2 * value)

        def log_twice(self, value: int) -> int:
            return self.log(value) + self.log(value)

    noticed: list[tuple[str, int]] = []

    def notice(logger: Logger, value: int) -> None:
        noticed.append((type(logger).__name__, value))

    notice_calls(Logger, "log", notice)
    for _ in range(2):  # as a second callback does
        notice_calls(Doubling, "log", notice)
    notice_calls(Doubling, "log_twice", notice)
    assert (Doubling().log(1), Doubling().log_twice(2), Logger().log(3)) == (2, 8, 3)
    assert noticed == [("Doubling", 1), ("Doubling", 2), ("Logger", 3)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ray", "ray, which is not installed in this environment; `pip install ray`"),
        ("ray.train.v2", "needs ray.train.v2, which the ray that is installed in this environment"),
    ],
    ids=["no library", "an older version of it"],
)
def test_what_an_integration_lacks_is_named(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", sys if "." in name else None)
    error = ModuleNotFoundError(f"No module named {name!r}", name=name)
    assert words in str(library_support.missing_library(error, "traceml.integrations.ray", "ray"))


def test_what_the_library_itself_lacks_is_its_own_error() -> None:
    error = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        library_support.missing_library(error, "traceml.integrations.ray", "ray")
