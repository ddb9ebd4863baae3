"""`--kineto` on a GPU: the kernels of one step in each trace, and training as quick as before."""

import gzip
import json
import os
from statistics import median
from time import perf_counter

import pytest

from gpu_programs import gpu_turn

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from traceml.model.environment import KINETO  # noqa: E402
from traceml.store.step_trace_records import read_step_traces  # noqa: E402
from traceml.trace import step_traces  # noqa: E402
from traceml.trace.profiler_turns import TEARDOWN  # noqa: E402
from traceml.trace.step_choice import FIRST_STEP, MIN_STEPS_BETWEEN  # noqa: E402

WIDTH, LAYERS = 256, 20


@pytest.fixture
def recording(monkeypatch, request):
    """A session that keeps two traces; begun only now that the environment asks for them."""
    monkeypatch.setenv(KINETO, "2")
    return request.getfixturevalue("traced")


def kernels_of(path):
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "kernel"]


def step_of():
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step(batch):
        loss = model(batch.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def test_a_trace_holds_the_kernels_of_one_step(recording, tmp_path, monkeypatch):
    monkeypatch.setattr(step_traces, "SHARE", 1e9)
    step = step_of()
    for _ in range(FIRST_STEP + 8 * MIN_STEPS_BETWEEN):
        step(torch.randn(64, WIDTH))
    recording()
    (found,) = read_step_traces(tmp_path)
    assert len(found.kept) == 2 < len(found.recorded) and not found.notes
    counts = [len(kernels_of(tmp_path / each.file)) for each in found.kept]
    assert min(counts) > 3 * LAYERS and max(counts) - min(counts) <= 2, counts
    assert TEARDOWN not in os.environ


def test_steps_after_a_recording_are_as_quick_as_before(recording, tmp_path):
    step, took = step_of(), []
    with gpu_turn.turn():
        for _ in range(FIRST_STEP + 60):
            batch = torch.randn(64, WIDTH)
            torch.cuda.synchronize()
            began = perf_counter()
            step(batch)
            torch.cuda.synchronize()
            took.append(perf_counter() - began)
    recording()
    (found,) = read_step_traces(tmp_path)
    last = max(number for number, _ in found.recorded)
    assert len(found.recorded) >= 2
    before, after = median(took[3:FIRST_STEP]), median(took[last + 2 :])
    assert after < 1.25 * before, (before, after)


def test_workers_that_are_forked_in_a_recorded_step_live(recording, tmp_path):
    step = step_of()
    for _ in range(FIRST_STEP + 12):  # a loader in every step, so also in a recorded one
        for batch in DataLoader(torch.randn(64, WIDTH), batch_size=64, num_workers=1):
            step(batch)
    recording()
    (found,) = read_step_traces(tmp_path)
    assert len(found.kept) == 2


def test_a_script_with_cuda_graphs_is_said_not_to_be_recorded(recording, tmp_path):
    model = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    static = torch.randn(8, WIDTH, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(static).square().mean().backward()
            optimizer.zero_grad()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(static).square().mean().backward()
    for _ in range(FIRST_STEP + 10):
        graph.replay()
        optimizer.step()
    recording()
    (found,) = read_step_traces(tmp_path)
    assert found.notes == (step_traces.GRAPHS,) and not found.recorded
