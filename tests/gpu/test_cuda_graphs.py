"""Trainings that are captured in CUDA graphs: their replays are their steps."""

import sys

import pytest
import torch
from torch import nn

from gpu_programs import TRACEML_RUN, run_all, summary_of
from traceml.model.record_layout import NOT_MEASURED, StepFlag
from traceml.store.load import drain_rings
from traceml.store.record_file import RankFiles
from traceml.trace import current, gpu, hooks

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=True)
static = torch.randn(2048, 2048, device="cuda")

def forward_and_backward():
    optimizer.zero_grad(set_to_none=True)
    model(static).square().mean().backward()

def step():
    forward_and_backward()
    optimizer.step()

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
whole = sys.argv[1] == "whole"
with torch.cuda.graph(graph):
    step() if whole else forward_and_backward()
for _ in range(300):
    static.copy_(torch.randn(2048, 2048, device="cuda"))
    graph.replay()
    if not whole:
        optimizer.step()
torch.cuda.synchronize()
print(sum(p.double().sum().item() for p in model.parameters()))
"""


@pytest.fixture
def traced(tmp_path, monkeypatch):
    """A session that times every step; call the fixture's value to end it and get the steps."""
    monkeypatch.setattr(gpu, "GPU_TIMING_SHARE", 1e9)
    (tmp_path / "run.json").write_text('{"run_name": "gpu", "started_unix_s": 0}')
    hooks.install(current.start(tmp_path, None, None))

    def steps():
        torch.cuda.synchronize()
        current.end()
        drain_rings(tmp_path, everything=True)
        (files,) = RankFiles.all_in(tmp_path)
        assert files.head().counters["failures"] == 0, files.head().counters["last_failure"]
        found = files.read_steps()
        return found[(found["flags"] & int(StepFlag.TAIL | StepFlag.ABORTED)) == 0]

    yield steps
    current.end()


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Both scripts, plain and traced, and the folder they ran in."""
    folder = tmp_path_factory.mktemp("captured")
    (folder / "captured.py").write_text(SCRIPT)
    commands = []
    for how in ("whole", "partial"):
        commands.append([sys.executable, "captured.py", how])
        commands.append([*TRACEML_RUN, "captured.py", "--run-name", how, "--args", how])
    ran = run_all(commands, folder)
    return {"whole": (*ran[:2], folder), "partial": (*ran[2:], folder)}


@pytest.mark.parametrize("how", ["whole", "partial"])
def test_a_captured_training_has_its_steps_and_a_verdict(captured, how):
    plain, traced, folder = captured[how]
    assert plain.returncode == traced.returncode == 0, traced.stderr
    assert plain.stdout.splitlines()[0] in traced.stdout
    summary = summary_of(folder, how)
    section = summary["step_time"]
    assert section["metadata"]["training_total_steps"] == 303
    # Beside it: other tests may take the GPU for a while, which is a slowdown.
    assert "COMPUTE_BOUND" in {issue["kind"] for issue in section["issues"]}
    times = section["global"]["average"]
    assert times["forward_ms"] is None and times["backward_ms"] is None
    assert (times["optimizer_ms"] is None) == (how == "whole")
    assert times["compute_ms"] > 0.8 * times["step_time_ms"]
    parts = times["compute_ms"] + (times["h2d_ms"] or 0) + times["residual_ms"]
    parts += times["input_wait_ms"] or 0
    assert parts == pytest.approx(times["step_time_ms"], rel=0.02)
    assert summary["tracer"]["failures"] == 0


def test_a_replay_takes_what_cuda_events_of_our_own_say(traced):
    model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    static = torch.randn(2048, 4096, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(static).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    marks = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        marks.append((start, end))
    steps = traced()
    assert len(steps) == 33
    replayed = steps[3:]
    assert (replayed["gpu_forward_ns"] == NOT_MEASURED).all()
    timed = replayed[5:]["gpu_graph_ns"]
    assert (timed > 0).all()
    theirs = sorted(start.elapsed_time(end) for start, end in marks[5:])
    assert sorted(timed.tolist())[12] / 1e6 == pytest.approx(theirs[12], rel=0.1)


def test_graphed_callables_are_forward_and_backward(traced):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    sample = torch.randn(32, 64, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    optimizer = torch.optim.SGD(graphed.parameters(), lr=1e-3)
    for _ in range(20):
        optimizer.zero_grad()
        graphed(sample).square().mean().backward()
        optimizer.step()
    steps = traced()
    assert len(steps) == 20
    assert (steps["graph_ns"] == NOT_MEASURED).all()
    assert (steps["backward_ns"] > 0).all()
    assert (steps["micro_batches"][1:] == 1).all()  # the first has the passes before the capture


def test_reduce_overhead_makes_no_steps_of_its_own(traced):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(12):
        optimizer.zero_grad()
        compiled(torch.randn(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()
    steps = traced()
    assert len(steps) == 12
    assert (steps["graph_ns"] == NOT_MEASURED).all()


def test_a_compiled_optimizer_is_seen_from_the_first_step(traced):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    update = torch.compile(optimizer.step)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        update()
    steps = traced()
    assert len(steps) == 12
    assert (steps["micro_batches"] == 1).all()


@pytest.mark.parametrize("how", ["backward alone", "whole step"])
def test_a_captured_backward_and_a_compiled_optimizer_make_steps(traced, how):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    update = torch.compile(optimizer.step)
    static = torch.randn(32, 64, device="cuda")

    def backward():
        optimizer.zero_grad(set_to_none=False)  # the graph's gradients stay where they are
        model(static).square().mean().backward()

    def step():
        backward()
        update()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    is_whole = how == "whole step"
    with torch.cuda.graph(graph):
        step() if is_whole else backward()
    for _ in range(20):
        graph.replay()
        if not is_whole:
            update()
    steps = traced()
    assert len(steps) == 23
    assert (steps["graph_ns"][3:] >= 0).all()
    assert (steps["optimizer_steps"] == 1).all()


def test_two_compiled_optimizers_make_one_step(traced):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    matrices = [each for each in model.parameters() if each.dim() == 2]
    others = [each for each in model.parameters() if each.dim() != 2]
    optimizers = [
        torch.optim.AdamW(each, lr=torch.tensor(1e-3), capturable=True)
        for each in (matrices, others)
    ]
    updates = [torch.compile(each.step) for each in optimizers]
    for _ in range(12):
        model.zero_grad()
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        for update in updates:
            update()
    steps = traced()
    assert len(steps) == 12
    assert (steps["optimizer_steps"] == 2).all()
