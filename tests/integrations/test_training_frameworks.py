"""DeepSpeed, timm and Ultralytics as they are, each with its real package: what is recorded of a
training of two epochs.

timm and Ultralytics need torchvision, which is there for the torch of PyPI but, for the CPU build
of torch, in PyTorch's own index alone; where it cannot be imported they are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from processes import PYTHON, TRACEML, Finished, run

SCRIPTS = Path(__file__).with_name("scripts")
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
STEPS = 24
NO_STEPS = {"NO_DATA", "INCOMPLETE_DATA", "WARMUP"}


def traced(folder: Path, words: list[str | Path], **environment: str) -> Finished:
    env = {"SLURM_JOB_ID": None, **environment}
    done = run([TRACEML, "run", "--mode=summary", "--", *words], folder, env=env)
    assert done.status == 0, done.stderr
    tracer = done.summary["tracer"]
    assert (tracer["failures"], tracer["steps_lost"]) == (0, 0), tracer["last_failure"]
    done.wait_until_none_is_left()
    return done


def assert_is_told_apart(done: Finished, *phases: str) -> None:
    """Each phase was measured, the parts are a step, and the verdict is about steps."""
    times: dict[str, Any] = done.summary["step_time"]["global"]["average"]
    for phase in ("input_wait", "forward", "backward", "optimizer", *phases):
        assert times[f"{phase}_ms"] > 0, phase
    parts = times["compute_ms"] + times["residual_ms"]
    assert parts == pytest.approx(times["traced_step_time_ms"], rel=0.001)
    assert done.summary["settings"]["accumulation_steps"] == 2
    found = done.summary["primary_diagnosis"]
    assert found["kind"] not in NO_STEPS
    assert found["summary"] and "nan" not in found["summary"].lower()


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where DeepSpeed compiles an extension of its own when it starts. By default all processes of
    a user share one folder for it, in which a test would load what another one is just writing."""
    return str(tmp_path_factory.mktemp("extensions"))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed(tmp_path: Path, extensions: str, stage: int) -> None:
    pytest.importorskip("deepspeed")
    script = SCRIPTS / "deepspeed_zero.py"
    done = traced(tmp_path, [*TORCHRUN, script, str(stage)], TORCH_EXTENSIONS_DIR=extensions)
    assert f"steps: {STEPS}" in done.stdout
    assert list(done.summary["step_time"]["groups"]["rows"]) == ["0", "1"]
    assert done.steps == STEPS
    assert_is_told_apart(done, "communication", "evaluation", "checkpoint")
    assert "DeepSpeed" in done.summary["settings"]["parallelism"]


def test_timm(tmp_path: Path) -> None:
    need_torchvision()
    pytest.importorskip("timm")
    done = traced(tmp_path, [PYTHON, SCRIPTS / "timm_train.py"])
    assert f"steps: {STEPS}" in done.stdout
    assert done.steps == STEPS
    assert_is_told_apart(done, "evaluation", "checkpoint")
    assert done.summary["settings"]["batch_size"] == 8


def test_ultralytics(tmp_path: Path) -> None:
    need_torchvision()
    pytest.importorskip("ultralytics")
    settings = str(tmp_path / "settings")  # its own, which it else writes into the home folder
    script = SCRIPTS / "ultralytics_train.py"
    done = traced(tmp_path, [PYTHON, script], YOLO_CONFIG_DIR=settings, YOLO_OFFLINE="true")
    assert done.steps == STEPS
    assert_is_told_apart(done, "checkpoint")
    assert done.summary["goodput"]["parts_s"]["evaluation"] > 0


def need_torchvision() -> None:
    """Skips where there is none, or one of another torch: importing that raises RuntimeError."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported beside this torch: {error}")
