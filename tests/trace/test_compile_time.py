"""Compiling is told apart from the phase it happens in, and dynamo is never loaded by us."""

import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import traceml
from traceml.store.layer_records import read_layers
from traceml.store.load import drain_rings
from traceml.store.record_file import RankFiles

COMPILING_S = 0.2

dynamo = pytest.importorskip("torch._dynamo")


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """Before a test, and after it: what dynamo counts is this process's."""
    dynamo.reset()
    yield
    dynamo.reset()
    dynamo.utils.counters.clear()


def slow_backend(graph, inputs):
    time.sleep(COMPILING_S)
    return graph.forward


def train(batches, backend, before=lambda step: None):
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model = torch.compile(plain, backend=backend, dynamic=False)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step, batch in enumerate(batches):
        before(step)
        with traceml.trace_step(model):
            model(torch.randn(batch, 4)).mean().backward()
            optimizer.step()


def test_a_recompiling_step_shows_compile_time_and_not_forward_time(traced):
    train([8, 8, 8, 5, 8, 3], slow_backend)
    steps = traced.complete()
    compiled = steps["compile_ns"] >= COMPILING_S * 1e9
    assert compiled.tolist() == [True, False, False, True, False, True]
    assert (steps["compile_ns"][~compiled] == 0).all()
    assert (steps["forward_ns"] >= 0).all()
    assert (steps["forward_ns"] < steps["compile_ns"])[compiled].all()
    assert (steps["compile_ns"] < steps["body_ns"]).all()


def test_the_gradients_that_a_compiler_traces_are_no_backward_pass(traced, monkeypatch):
    def backend(graph, inputs):
        parameter = torch.ones(1, requires_grad=True)
        with monkeypatch.context() as older:  # older torch does not say so while a backend traces
            older.setattr(torch.compiler, "_is_compiling_flag", False, raising=False)
            torch.autograd.grad(parameter.sum(), parameter)
            parameter.sum().backward()
        return graph.forward

    train([8, 8, 5], backend)
    steps = traced.complete()
    assert (steps["micro_batches"] == 1).all()
    assert (steps["forward_ns"] >= 0).all()
    assert (steps["backward_ns"] > 0).all()


def test_compiling_is_still_seen_after_dynamo_was_reset(traced):
    train([8, 8, 8, 5], slow_backend, before=lambda step: dynamo.reset() if step == 1 else None)
    compiled = traced.complete()["compile_ns"] >= COMPILING_S * 1e9
    assert compiled.tolist() == [True, True, False, True]


def test_an_error_while_compiling_leaves_tracing_on(traced):
    def broken(graph, inputs):
        raise RuntimeError("the backend's own")

    with pytest.raises(Exception, match="the backend's own"):
        train([8], broken)
    train([8, 8], slow_backend)
    steps = traced.complete()
    assert (steps["forward_ns"][-2:] > 0).all()


def test_no_callback_is_left_behind(traced):
    train([8], slow_backend)
    handler = dynamo.callback.callback_handler
    assert handler.start_callbacks
    assert "clear" in vars(handler)
    traced.finish()
    assert "clear" not in vars(handler)
    assert not handler.start_callbacks
    assert not handler.end_callbacks


FIRST_STEP = """
import sys, time, torch
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader
from traceml.trace import current, hooks
import traceml

session = current.start(Path(sys.argv[1]), None, None)
hooks.install(session)
assert "torch._dynamo" not in sys.modules
from torch._dynamo.backends.common import aot_autograd
from functorch.compile import make_boxed_func

def slow(graph, inputs):
    time.sleep(0.2)
    return make_boxed_func(graph.forward)

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
compiled = torch.compile(model, backend=aot_autograd(fw_compiler=slow, bw_compiler=slow))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def learn(batch):
    compiled(batch).mean().backward()
    optimizer.step()

data = torch.randn(24, 4)
if sys.argv[2] == "a loader":
    for batch in DataLoader(data, batch_size=8):
        learn(batch)
elif sys.argv[2] == "marked steps":
    for batch in data.split(8):
        with traceml.trace_step(model):
            learn(batch)
else:
    for batch in data.split(8):
        learn(batch)
current.end()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "compiled"),
    [
        ("a loader", ("forward", "backward")),
        ("marked steps", ("forward", "backward")),
        ("neither", ("backward",)),  # until then nobody knows that a step has begun
    ],
)
def test_what_the_first_step_compiles_is_told(tmp_path, loop, compiled):
    (tmp_path / "run.json").write_text('{"run_name": "first", "started_unix_s": 0}')
    command = [sys.executable, "-c", FIRST_STEP, str(tmp_path), loop]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    drain_rings(tmp_path, everything=True)
    (files,) = RankFiles.all_in(tmp_path)
    first, *others = files.read_steps()
    compiling_s = first["compile_ns"] / 1e9
    assert len(compiled) * COMPILING_S <= compiling_s <= first["wall_ns"] / 1e9
    assert first["backward_ns"] < COMPILING_S * 1e9
    assert others and all(step["compile_ns"] == 0 for step in others)


def test_dynamo_is_not_loaded_by_us(tmp_path):
    """It takes seconds, which a step would take longer; also not to count a step's operations."""
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from traceml.trace import current, hooks\n"
        "from traceml.trace.deep import bursts\n"
        "bursts.LAYERS_SHARE = 1e9\n"
        f"session = current.start(Path({str(tmp_path)!r}), None, None)\n"
        "hooks.install(session)\n"
        "session.begin_deep_profile()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "for _ in range(24):\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "assert session.count_steps() == 23\n"
        "current.end()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (layers,) = read_layers(tmp_path)
    assert layers.counted
