"""What a script logs is in the summary, whatever becomes of the script afterwards."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from processes import PYTHON, TORCH_STEPS, run, run_traceml
from traceml.store.logged_samples import read_logged_samples

LOGS = """\
import os, traceml
open("weights.pt", "w").write("w" * 100)
traceml.log_params({"lr": 0.1, "layers": [1, 2], "name": "größe"})
traceml.log_params({"lr": 0.2})
for step in range(5):
    traceml.log_metrics({"loss": 1.0 / (step + 1), "accuracy": step}, step=step)
traceml.log_metrics({"gap": 0.5}, higher_is_better=True)
traceml.log_samples([{"id": n, "correct": n % 3 > 0, "segment": "day"} for n in range(9)])
traceml.log_artifact("weights.pt")
traceml.log_artifact("weights.pt", name="best")
"""


def _assert_logged(summary: dict[str, object]) -> None:
    assert summary["params"] == {"lr": 0.2, "layers": [1, 2], "name": "größe"}
    metrics, artifacts = summary["metrics"], summary["artifacts"]
    assert isinstance(metrics, dict)
    assert metrics["loss"]["count"] == 5
    assert (metrics["loss"]["last"], metrics["loss"]["max"]) == (0.2, 1.0)
    assert (metrics["accuracy"]["first_step"], metrics["accuracy"]["last_step"]) == (0, 4)
    assert metrics["gap"]["higher_is_better"] is True
    assert metrics["loss"]["higher_is_better"] is None
    assert isinstance(artifacts, dict)
    assert artifacts.keys() == {"weights.pt", "best"}
    for artifact in artifacts.values():
        assert artifact["size_bytes"] == 100
        assert artifact["sha256"] == hashlib.sha256(b"w" * 100).hexdigest()


@pytest.mark.parametrize(
    ("end", "status", "kind"),
    [
        pytest.param("", 0, "NO_DATA", id="and ends"),
        pytest.param("os.kill(os.getpid(), 9)", 137, "KILLED", id="and is killed right after"),
        pytest.param("os._exit(3)", 3, "NO_DATA", id="and leaves by os._exit"),
    ],
)
def test_a_script_without_torch_logs(tmp_path: Path, end: str, status: int, kind: str) -> None:
    done = run_traceml(["run", "train.py"], tmp_path, LOGS + end)
    assert done.status == status
    _assert_logged(done.summary)
    assert done.summary["primary_diagnosis"]["kind"] == kind
    assert done.summary["step_time"]["diagnosis"]["kind"] == "NO_DATA"
    (samples,) = read_logged_samples(done.folder).values()
    assert samples.scores == {"correct": {str(n): float(n % 3 > 0) for n in range(9)}}
    done.assert_nothing_is_left()


def test_what_is_logged_before_torch_is_there_belongs_to_the_run(tmp_path: Path) -> None:
    script = LOGS + TORCH_STEPS + "take_steps(6)\ntraceml.log_metrics({'late': 1.0})\n"
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert (done.status, done.steps) == (0, 6)
    assert done.summary["metrics"].pop("late")["last_step"] == 6
    _assert_logged(done.summary)


def test_under_plain_python_every_verb_does_nothing(tmp_path: Path) -> None:
    script = LOGS + (
        "with traceml.trace_step(): pass\n"
        "with traceml.trace_time('a'): pass\n"
        "print(traceml.trace_time('b')(len)('abc'), traceml.trace_model_instance(7))\n"
        "import sys; print('torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    done = run([PYTHON, "-c", script], tmp_path)
    assert (done.status, done.stdout, done.stderr) == (0, "3 7\nFalse False\n", "")
    assert list(tmp_path.iterdir()) == [tmp_path / "weights.pt"]


def test_tracing_that_has_stopped_leaves_torch_as_it_was(tmp_path: Path) -> None:
    script = (
        """\
import sys
import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, dataloader

def look():
    places = [(torch.autograd, "backward"), (torch.autograd, "grad"), (torch, "save")]
    places += [(DataLoader, "__iter__"), (dataloader._BaseDataLoaderIter, "__next__")]
    ours = [name for owner, name in places if hasattr(vars(owner)[name], "__wrapped__")]
    hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    return len(ours), list(map(len, hooks))

"""
        + TORCH_STEPS
        + """\
before = look()
take_steps(10)
print(before, look())
"""
    )
    done = run_traceml(["run", "--trace-max-steps", "4", "train.py"], tmp_path, script)
    assert done.status == 0, done.stderr
    assert done.stdout == "(5, [1, 1]) (0, [0, 0])\n"
    assert done.steps == 4
    assert done.summary["tracer"]["stopped_after_steps"] == 4
    said = " ".join(done.stderr.split())
    assert "traced the first 4 steps, as asked (trace_max_steps)" in said


SLIPS = """\
import traceml
for wrong in (None, "abc", [("lr", 1)]):
    traceml.log_params(wrong)
traceml.log_metrics({"loss": 1.0}, step=2**70)
traceml.log_artifact("a\\0b")
traceml.log_params({"lr": 0.1, "api_key": "sk-abcdefghijklmnop1234", "db_password": "swordfish"})
traceml.log_params({"url": "postgres://bob:swordfish@db/x"})
"""


def test_wrong_calls_and_secrets_harm_nothing(tmp_path: Path) -> None:
    done = run_traceml(["run", "train.py"], tmp_path, SLIPS + TORCH_STEPS + "take_steps(6)\n")
    assert (done.status, done.steps) == (0, 6)
    assert done.summary["params"]["lr"] == 0.1
    slips = [line for line in done.lines_of_ours() if "only counted" in line]
    verbs = sorted(line.split(":")[1].strip() for line in slips)
    assert verbs == ["log_artifact", "log_metrics", "log_params"]
    assert done.summary["tracer"]["values_refused"] == 5
    assert done.summary["tracer"]["messages_lost"] == 0
    written = b"".join(path.read_bytes() for path in done.folder.rglob("*") if path.is_file())
    assert b"swordfish" not in written
    assert b"sk-abc" not in written
    assert done.folder.stat().st_mode & 0o077 == 0
    done.assert_nothing_is_left()


ARTIFACTS = """\
import os, shutil, sys, time
import traceml
LARGE = 5 << 20

for epoch in range(3):  # in place, as torch.save does
    with open("last.txt", "w") as file:
        file.write(f"epoch {epoch}")
    traceml.log_artifact("last.txt", name="runs/last")
for epoch in range(2):  # a new file each time, which replaces the one before
    with open("part", "wb") as file:
        file.write(bytes([epoch]) * LARGE)
    os.replace("part", "large.bin")
    traceml.log_artifact("large.bin")
for epoch in range(3):  # a large file, in place and at once
    with open("in_place.bin", "wb") as file:
        file.write(bytes([epoch]) * LARGE)
    traceml.log_artifact("in_place.bin")
os.mkdir("checkpoint")
with open("checkpoint/config.json", "w") as file:
    file.write("{}")
os.symlink("/etc", "checkpoint/out")
traceml.log_artifact("checkpoint")
shutil.rmtree("checkpoint")
os.remove("large.bin")
os.mkfifo("pipe")
traceml.log_artifact("pipe")
traceml.log_artifact("missing")
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)\n"], ids=["ended", "killed"])
def test_an_artifact_has_the_content_of_the_call(tmp_path: Path, end: str) -> None:
    done = run_traceml(["run", "train.py"], tmp_path, ARTIFACTS + end)
    assert done.status == (137 if end else 0)
    found = done.summary["artifacts"]
    assert found.keys() == {"checkpoint", "in_place.bin", "large.bin", "runs/last"}

    def contents(name: str) -> list[bytes]:
        versions = [*found[name]["earlier"], found[name]]
        return [(done.folder / version["stored"]).read_bytes() for version in versions]

    assert contents("runs/last") == [b"epoch 0", b"epoch 1", b"epoch 2"]
    assert contents("large.bin") == [bytes([epoch]) * (5 << 20) for epoch in range(2)]
    in_place = [*found["in_place.bin"]["earlier"], found["in_place.bin"]]
    for epoch, version in enumerate(in_place):  # never another content than that of the call
        if version["stored"] is None:
            assert "written to again" in version["note"]
        else:
            whole = (done.folder / version["stored"]).read_bytes()
            assert whole == bytes([epoch]) * (5 << 20)
    assert in_place[-1]["stored"] is not None
    folder = done.folder / found["checkpoint"]["stored"]
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert done.summary["tracer"]["values_refused"] == 2
    assert "checkpoint: 1 symbolic link left out." in done.summary["text"]
    assert not (done.folder / "staged").exists()
    done.assert_nothing_is_left()
