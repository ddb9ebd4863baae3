"""What the tracer says about a CUDA device, against what the device itself says."""

import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traceml.facts.gather import gather
from traceml.model.phase import Phase
from traceml.model.record_layout import NOT_MEASURED, StepFlag
from traceml.store.load import load_run
from traceml.trace import loss as loss_reader
from traceml.trace import loss_and_memory_sampler, optimizer_search

pytestmark = pytest.mark.gpu

GPU_PHASES = ("gpu_h2d_ns", "gpu_forward_ns", "gpu_backward_ns", "gpu_optimizer_ns")


@pytest.fixture
def closely(monkeypatch):
    """Look at the loss and at memory in every step, however short it is."""
    monkeypatch.setattr(loss_and_memory_sampler, "EVERY_NS", 0)
    monkeypatch.setattr(loss_reader, "SENT_EVERY_NS", 0)


def complete(steps):
    """The complete steps whose GPU times are there, the first few left out."""
    whole = steps[(steps["flags"] & int(StepFlag.TAIL | StepFlag.ABORTED)) == 0]
    return whole[5:]


def wide_model(width=4096, depth=6):
    return nn.Sequential(*(nn.Linear(width, width, device="cuda") for _ in range(depth)))


def train(model, steps, batch=2048, width=4096, pause=lambda: None, loader=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = loader or (torch.randn(batch, width) for _ in range(steps))
    for index, inputs in enumerate(batches):
        inputs = inputs[0] if isinstance(inputs, list) else inputs
        loss = model(inputs.cuda(non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause()
        if index + 1 == steps:
            break


def test_phases_and_the_rest_sum_to_the_gpu_step(traced):
    train(wide_model(), 30, loader=[torch.randn(2048, 4096)] * 30)
    steps = complete(traced())
    assert len(steps) >= 20
    assert (steps["gpu_body_ns"] > 0).all()
    phases = sum(steps[name] for name in GPU_PHASES)
    rest = steps["gpu_body_ns"] - phases
    assert (rest > -20_000).all()  # the clock of events has half-microsecond ticks
    assert phases.sum() > 0.5 * steps["gpu_body_ns"].sum()


@pytest.mark.parametrize("has_module", [True, False], ids=["a module", "tensors alone"])
def test_parameters_that_are_updated_by_hand_are_known_to_be_on_the_gpu(
    traced, monkeypatch, has_module
):
    """As pytorch/examples' word_language_model does: there is no optimizer to ask."""
    monkeypatch.setattr(optimizer_search, "_any_optimizer_made", lambda: False)  # by other tests
    model = nn.Linear(1024, 1024, device="cuda")
    parameters = [each.detach().clone().requires_grad_() for each in model.parameters()]
    if has_module:
        parameters = list(model.parameters())
    else:
        del model
    for _ in range(60):
        inputs = torch.randn(256, 1024, device="cuda")
        outputs = model(inputs) if has_module else inputs @ parameters[0] + parameters[1]
        outputs.square().mean().backward()
        with torch.no_grad():
            for each in parameters:
                each -= 1e-4 * each.grad
                each.grad = None
    steps = complete(traced())
    assert len(steps) >= 20 and (steps["gpu_body_ns"] > 0).sum() >= 5


def test_gpu_and_host_clocks_agree_when_every_step_is_synchronised(traced):
    train(wide_model(), 30, pause=torch.cuda.synchronize)
    steps = complete(traced())
    host = steps["wall_ns"].astype(float)
    gpu = (steps["gpu_body_ns"] + np.maximum(steps["gpu_input_ns"], 0)).astype(float)
    assert abs(gpu.sum() / host.sum() - 1) < 0.05
    assert abs(np.median(gpu / host) - 1) < 0.05


def test_forward_takes_what_cuda_events_of_our_own_say(traced):
    model = wide_model()
    inputs = torch.randn(4096, 4096, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    marks = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        output = model(inputs)
        end.record()
        marks.append((start, end))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps = complete(traced())
    ours = np.median(steps["gpu_forward_ns"]) / 1e6
    theirs = np.median([start.elapsed_time(end) for start, end in marks[5:]])
    assert abs(ours / theirs - 1) < 0.1


FASTEST_COPY_NS = 2_000_000
"""Of 256 MB: at 128 GB/s, which no bus reaches from pageable memory."""


def test_copies_to_the_device_are_seen(traced):
    batch = torch.randn(65536, 1024)  # 256 MB of pageable memory
    train(wide_model(width=1024, depth=1), 30, loader=[batch] * 30)
    steps = complete(traced())
    assert (steps["h2d_ns"] > 0).all()
    assert (steps["gpu_h2d_ns"] > FASTEST_COPY_NS).mean() > 0.9
    assert (steps["gpu_h2d_ns"] < steps["gpu_body_ns"]).mean() > 0.9
    # The host allocates too, and waits for others that use the memory bus: no longer than that.
    assert 0.3 < np.median(steps["gpu_h2d_ns"] / steps["h2d_ns"]) <= 1.05


class Prefetcher:
    """Copies the next batch over a stream of its own while the loop works on this one."""

    def __init__(self, batches):
        self._batches = iter(batches)
        self._side = torch.cuda.Stream()
        self._copy_next()

    def _copy_next(self):
        batch = next(self._batches, None)
        with torch.cuda.stream(self._side):
            self._next = None if batch is None else batch.cuda(non_blocking=True)

    def __iter__(self):
        while self._next is not None:
            main, batch = torch.cuda.current_stream(), self._next
            main.wait_stream(self._side)
            batch.record_stream(main)
            self._copy_next()
            yield batch


def test_copies_in_every_other_step_are_shared_out_over_all_of_them(traced, tmp_path):
    host, device = torch.randn(2048, 4096), torch.randn(2048, 4096, device="cuda")
    train(wide_model(), 40, loader=[host, device] * 20)
    traced()
    facts = gather(load_run(tmp_path))
    assert facts.clock == "gpu" and facts.step_table is not None
    copies_s = facts.step_table.field("gpu_h2d_ns")
    assert 0.3 < np.isnan(copies_s).mean() < 0.7
    # Not every step is timed on the GPU; that half of them copies is known of all.
    assert facts.mean.h2d_s == pytest.approx(0.5 * np.nanmean(copies_s), rel=0.1)
    parts_s = [facts.mean_s(phase) or 0.0 for phase in Phase]
    assert min(parts_s) >= 0
    assert sum(parts_s) == pytest.approx(facts.mean.step_s)


def test_copies_beside_the_loop_are_no_part_of_it(traced):
    batch = torch.randn(65536, 1024).pin_memory()
    train(wide_model(width=1024, depth=6), 30, loader=Prefetcher([batch] * 30))
    steps = complete(traced())
    assert len(steps) >= 20
    assert (steps["h2d_ns"] == NOT_MEASURED).all()
    assert (steps["gpu_h2d_ns"] == NOT_MEASURED).all()
    assert (steps["gpu_body_ns"] > 0).all()
    assert (steps["gpu_forward_ns"] > 0).all()


def test_input_that_the_gpu_does_not_wait_for_costs_nothing_there(traced):
    """A deep queue hides the host's wait; an empty one does not."""
    model = wide_model(8192, 8)
    loader = DataLoader(TensorDataset(torch.randn(4096 * 40, 64)), batch_size=4096)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    widen = torch.randn(64, 8192, device="cuda")
    for (inputs,) in loader:
        model(inputs.cuda() @ widen).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps = complete(traced())
    assert np.median(steps["input_ns"]) > 1e6
    assert np.median(steps["gpu_input_ns"]) < 0.2 * np.median(steps["input_ns"])


def test_memory_peaks_are_the_allocators_and_stay_the_users(traced):
    """Each step holds 8 MiB more than the last, so each sets a new peak; ours and theirs agree."""
    model = wide_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(2048, 4096, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    kept, peaks = [], []
    for _ in range(20):
        kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
        model(inputs).square().mean().backward()
        peaks.append(torch.cuda.max_memory_allocated())
        optimizer.step()
        optimizer.zero_grad()
        deadline = time.perf_counter() + 0.11  # past the interval at which memory is read
        while time.perf_counter() < deadline:
            pass
    at_the_end = torch.cuda.max_memory_allocated()
    assert peaks == sorted(peaks)
    assert at_the_end >= peaks[-1]
    steps = traced()
    measured = steps["allocated_bytes"]
    assert measured.max() == at_the_end
    assert (measured[3:-1] > 0).all()
    assert (np.diff(measured[3:-1]) > 0).all()
    assert (np.abs(measured[3:-1] / np.array(peaks[3 : 3 + len(measured[3:-1])]) - 1) < 0.1).all()
    assert (steps["reserved_bytes"][3:-1] >= measured[3:-1]).all()


def test_nothing_synchronises(traced, closely, monkeypatch):
    """The CPU runs ahead of a GPU that is kept busy: it would not if we waited for it."""
    for owner, name in (
        (torch.cuda, "synchronize"),
        (torch.cuda.Event, "synchronize"),
        (torch.cuda.Stream, "synchronize"),
    ):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("the tracer synchronised"))
    model = wide_model(8192, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(16384, 8192, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(12):
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        last = torch.cuda.Event()
        last.record()
        assert not last.query()  # the host is well ahead of the device
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monkeypatch.undo()
    steps = traced()
    assert len(steps) >= 12


def test_the_queue_is_dry_when_launching_is_the_bottleneck(traced):
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(60))).cuda()
    train(model, 40, batch=8, width=16)
    steps = complete(traced())
    watched = (steps["flags"] & int(StepFlag.QUEUE_WATCHED)) != 0
    dry = (steps["flags"] & int(StepFlag.QUEUE_DRY)) != 0
    assert watched.all()
    assert dry.mean() > 0.9


def test_the_queue_is_not_dry_when_the_gpu_is_the_bottleneck(traced):
    model = wide_model(8192, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps = complete(traced())
    dry = (steps["flags"] & int(StepFlag.QUEUE_DRY)) != 0
    assert dry.mean() < 0.2


def test_short_steps_are_timed_now_and_then(traced_as_usual):
    small = nn.Linear(16, 16).cuda()
    train(small, 600, loader=[torch.randn(8, 16)] * 600)
    steps = complete(traced_as_usual())
    timed = steps["gpu_body_ns"] >= 0
    assert 5 <= timed.sum() < 0.5 * len(steps)
    assert (steps["gpu_forward_ns"][timed] > 0).all()


def test_a_cuda_graph_can_be_captured_and_replayed_while_traced(traced, closely):
    model = wide_model(256, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    static = torch.randn(64, 256, device="cuda")

    def step():
        model(static).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    before = model[0].weight.detach().clone()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(before, model[0].weight)  # the graph holds the whole step
    assert len(complete(traced())) == 10  # after five before it; capturing is no step


# Waiting for the device


def _wait_for_a_stream(loss):
    torch.cuda.current_stream().synchronize()


def _wait_for_an_event(loss):
    mark = torch.cuda.Event()
    mark.record()
    mark.synchronize()


WAITS = {
    "item": lambda loss: loss.item(),
    "cpu": lambda loss: loss.cpu(),
    "tolist": lambda loss: loss.tolist(),
    "float": float,
    "int": int,
    "bool": bool,
    "to": lambda loss: loss.to("cpu"),
    "copy_": lambda loss: torch.empty(()).copy_(loss),
    "synchronize": lambda loss: torch.cuda.synchronize(),
    "a stream": _wait_for_a_stream,
    "an event": _wait_for_an_event,
}


def keep_the_device_busy(steps, then):
    """Steps of tens of milliseconds on the device, and of one or two for the host to queue."""
    model = wide_model(8192, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(2048, 8192, device="cuda")
    for _ in range(steps):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        then(loss.detach())


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_waiting_for_the_device_is_measured(traced_as_usual, wait):
    keep_the_device_busy(12, wait)
    steps = complete(traced_as_usual())
    assert np.median(steps["sync_ns"] / steps["wall_ns"]) > 0.5
    assert (steps["sync_ns"] < steps["wall_ns"]).all()


def test_every_read_of_a_value_is_counted(traced_as_usual):
    model = wide_model(512, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(64, 512, device="cuda")
    parameters = list(model.parameters())
    for _ in range(12):
        model(inputs).square().mean().backward()
        for parameter in parameters:
            parameter.grad.norm().item()
        optimizer.step()
        optimizer.zero_grad()
    steps = complete(traced_as_usual())
    assert (steps["syncs"][1:] == len(parameters)).all()


def test_a_loop_that_does_not_wait_has_no_waiting(traced_as_usual, closely):
    host = torch.empty((), pin_memory=True)

    def send_home(loss):
        host.copy_(loss, non_blocking=True)
        loss.to("cpu", non_blocking=True)

    keep_the_device_busy(12, send_home)
    assert (complete(traced_as_usual())["sync_ns"] == 0).all()


# The loss


def test_the_loss_arrives_from_the_device_a_little_later(traced_as_usual, closely):
    model = wide_model(1024, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(256, 1024, device="cuda")
    kept = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for index in range(80):
            loss = model(inputs).square().mean() * (float("nan") if index >= 60 else 1.0)
            loss.backward()
            kept.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            deadline = time.perf_counter() + 0.002  # longer than the device takes
            while time.perf_counter() < deadline:
                pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    steps = traced_as_usual()
    seen = steps["loss"][(steps["flags"] & int(StepFlag.LOSS_SEEN)) != 0]
    real = [loss.item() for loss in kept]
    finite = seen[np.isfinite(seen)].tolist()
    assert len(finite) >= 20
    assert set(finite) <= set(real)
    assert [real.index(loss) for loss in finite] == sorted(real.index(loss) for loss in finite)
    assert np.isnan(seen).any()


# Compiling


def test_recompiling_is_told_apart_from_forward_and_backward(traced_as_usual):
    """The backward graph is compiled in a thread of the autograd engine's."""
    torch._dynamo.reset()
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    model = torch.compile(layers, dynamic=False)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)
    for batch in [32] * 10 + [48] * 10:
        model(torch.randn(batch, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps = complete(traced_as_usual())
    compiled = steps["compile_ns"] > 0
    assert compiled.sum() == 1
    assert steps["compile_ns"][compiled] > 0.5 * steps["wall_ns"][compiled]
    assert (steps["forward_ns"] >= 0).all()
    assert (steps["backward_ns"] >= 0).all()
