"""Loops in the style of torchtitan and torchtune, and Lightning with sharded parameters: traced as
they are, without a word in the script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from processes import PYTHON, TRACEML, Finished, run

SCRIPTS = Path(__file__).with_name("scripts")
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ALONE = {"SLURM_JOB_ID": None, "HF_HUB_OFFLINE": "1"}


def trained(words: list[str | Path], folder: Path, **env: str) -> Finished:
    done = run(words, folder, env={**ALONE, **env})
    assert done.status == 0, done.stderr
    done.wait_until_none_is_left()
    return done


def traced(words: list[str | Path], folder: Path) -> Finished:
    done = trained([TRACEML, "run", "--mode=summary", "--", *words], folder)
    assert_nothing_failed(done)
    return done


def assert_nothing_failed(done: Finished) -> None:
    tracer = done.summary["tracer"]
    assert tracer["failures"] == 0, tracer["last_failure"]
    assert (tracer["steps_lost"], tracer["values_refused"]) == (0, 0)


def average(done: Finished) -> dict[str, Any]:
    found: dict[str, Any] = done.summary["step_time"]["global"]["average"]
    return found


def learnt(done: Finished) -> list[str]:
    # Ranks that print at the same time may share a line.
    found = sorted(re.findall(r"(?:rank \d+|learnt): [0-9a-f]{64}", done.stdout))
    assert found
    return found


def ranks_of(done: Finished) -> list[str]:
    return list(done.summary["step_time"]["groups"]["rows"])


# torchtitan

STEPS, MICRO_BATCHES, BATCH, CHECKPOINTS = 12, 4, 2, 3


@pytest.fixture(scope="module")
def titan(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    script = SCRIPTS / "torchtitan_style.py"
    return traced([*TORCHRUN, script], tmp_path_factory.mktemp("titan"))


class TestTorchtitan:
    def test_a_step_is_one_of_the_container_with_its_micro_batches(self, titan: Finished) -> None:
        assert f"steps: {STEPS} checkpoints: {CHECKPOINTS}" in titan.stdout
        assert ranks_of(titan) == ["0", "1"]
        assert titan.summary["tracer"]["steps_recorded"] == 2 * STEPS
        settings = titan.summary["settings"]
        assert (settings["batch_size"], settings["accumulation_steps"]) == (BATCH, MICRO_BATCHES)
        assert settings["parallelism"].startswith("FSDP2")

    def test_its_phases_are_told_apart(self, titan: Finished) -> None:
        times = average(titan)
        for phase in ("input_wait", "forward", "backward", "optimizer", "communication"):
            assert times[f"{phase}_ms"] > 0, phase
        assert times["evaluation_ms"] > 0
        assert times["checkpoint_ms"] > 0

    def test_it_trains_the_same_without_tracing(self, titan: Finished, tmp_path: Path) -> None:
        plain = trained([*TORCHRUN, SCRIPTS / "torchtitan_style.py"], tmp_path)
        assert learnt(plain) == learnt(titan)


# torchtune


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    script = SCRIPTS / "torchtune_style.py"
    return traced([PYTHON, script], tmp_path_factory.mktemp("tuned"))


class TestTorchtune:
    def test_a_step_is_one_of_the_optimizer_with_its_batches(self, tuned: Finished) -> None:
        assert "steps: 12" in tuned.stdout
        assert tuned.steps == 12
        settings = tuned.summary["settings"]
        assert (settings["batch_size"], settings["accumulation_steps"]) == (2, 3)
        assert settings["optimizer"] == "AdamW"

    def test_its_phases_are_told_apart(self, tuned: Finished) -> None:
        times = average(tuned)
        for phase in ("input_wait", "forward", "backward", "optimizer"):
            assert times[f"{phase}_ms"] > 0, phase
        assert times["checkpoint_ms"] > 0  # of the epoch's end

    def test_it_trains_the_same_without_tracing(self, tuned: Finished, tmp_path: Path) -> None:
        plain = trained([PYTHON, SCRIPTS / "torchtune_style.py"], tmp_path)
        assert learnt(plain) == learnt(tuned)


# Lightning


def test_lightning_shards_its_parameters_over_ranks_of_one_run(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    assert_is_sharded(traced([PYTHON, SCRIPTS / "lightning_sharded.py"], tmp_path))


def test_its_phases_have_names_with_the_callback_alone(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    done = trained([PYTHON, SCRIPTS / "lightning_sharded.py", "callback"], tmp_path)
    assert_nothing_failed(done)
    assert_is_sharded(done)
    found = {region["name"]: region["calls"] for region in done.summary["regions"]}
    assert found.pop("logging") > 16
    assert found == {"sanity check": 2, "validation": 2 * 2, "checkpoint": 2 * 2}


def assert_is_sharded(done: Finished) -> None:
    assert "steps: 16" in done.stdout
    assert ranks_of(done) == ["0", "1"]
    assert done.summary["tracer"]["steps_recorded"] == 2 * 16
    settings = done.summary["settings"]
    assert settings["accumulation_steps"] == 2
    assert settings["parallelism"] == "FSDP2"
    times = average(done)
    for phase in ("communication", "forward", "backward", "evaluation", "checkpoint"):
        assert times[f"{phase}_ms"] > 0, phase
