"""The deep profile on a GPU: layers on the GPU's own clock, and the memory of a real allocator."""

import os
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from traceml.diagnose.rules import host_bound  # noqa: E402
from traceml.diagnose.what_if import predict  # noqa: E402
from traceml.facts.gather import gather  # noqa: E402
from traceml.store.layer_records import read_layers  # noqa: E402
from traceml.store.load import load_run  # noqa: E402
from traceml.trace import current  # noqa: E402
from traceml.trace.deep import bursts  # noqa: E402
from traceml.trace.deep.bursts import FIRST_BURST  # noqa: E402
from traceml.trace.profiler_turns import TEARDOWN  # noqa: E402

pytestmark = pytest.mark.usefixtures("turn_at_gpu")


class Repeated(nn.Module):
    """A layer that does its work several times over."""

    def __init__(self, width, times):
        super().__init__()
        self.inner, self.times = nn.Linear(width, width), times

    def forward(self, inputs):
        for _ in range(self.times):
            inputs = self.inner(inputs)
        return inputs


def train(model, steps, batch, width):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(steps):
        loss = model(torch.randn(batch, width, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_layers_are_timed_on_the_gpu_and_their_memory_is_seen(traced, tmp_path):
    width, batch = 2048, 8192
    model = nn.Sequential(Repeated(width, 1), nn.ReLU(), Repeated(width, 8)).cuda()
    current.current().begin_deep_profile()
    train(model, FIRST_BURST + 30, batch, width)
    traced()
    (found,) = read_layers(tmp_path)
    assert found.names == ("", "0", "0.inner", "1", "2", "2.inner") and len(found.steps) >= 2

    def own_ms(phase, name):
        return np.median(found.times_ns[f"gpu_{phase}"][:, found.names.index(name)]) / 1e6

    # Backward does half as much for the first layer: its input needs no gradient.
    for phase, times in (("forward", 8), ("backward", 16)):
        once, often = own_ms(phase, "0.inner"), own_ms(phase, "2.inner")
        assert times / 2 < often / once < times * 1.5, (phase, once, often)
    assert found.calls[0].tolist() == [1, 1, 1, 1, 1, 8]
    saved = dict(zip(found.names, found.held_bytes["saved"], strict=True))
    assert saved["2.inner"] == 7 * 4 * batch * width  # its first input is what the ReLU keeps


@pytest.mark.parametrize("has_penalty", [False, True], ids=["plain", "gradient penalty"])
def test_steps_with_two_optimizers_on_one_batch_are_seen_as_a_whole(
    traced, tmp_path, monkeypatch, has_penalty
):
    """What is computed in backward for the penalty is numbered by the device's thread on its own,
    from one on: it must not pass for operations of an earlier step."""
    monkeypatch.setattr(bursts, "LAYERS_SHARE", 1e9)
    width, steps = 256, 40
    makes = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).cuda()
    judges = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)).cuda()
    makers, judge = (torch.optim.AdamW(model.parameters(), 1e-4) for model in (makes, judges))
    current.current().begin_deep_profile()
    for batch in DataLoader(torch.randn(32 * steps, width), batch_size=32):
        real = batch.cuda().requires_grad_(has_penalty)
        made = makes(torch.randn(32, width, device="cuda"))
        judge.zero_grad()
        seen = judges(real).mean()
        loss = seen - judges(made.detach()).mean()
        if has_penalty:
            (gradient,) = torch.autograd.grad(seen, real, create_graph=True)
            loss = loss + gradient.square().mean()
        loss.backward()
        judge.step()
        makers.zero_grad()
        judges(made).mean().backward()
        makers.step()
    traced()
    (found,) = read_layers(tmp_path)
    linear = [place for place, kind in enumerate(found.kinds) if kind == "Linear"]
    assert len(found.steps) >= 4 and len(linear) == 4
    assert (found.times_ns["gpu_backward"][:, linear] > 0).all()
    assert bursts.REACHES_BACK not in found.notes
    assert (found.counted["backward_flops"][linear] > 0).all()


class Climbs(nn.Module):
    """Takes more memory for a moment than was ever allocated."""

    def forward(self, inputs):
        above = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        torch.empty(above + (1 << 20), dtype=torch.uint8, device="cuda")
        return inputs


def test_a_peak_is_told_of_the_layer_in_which_the_allocator_s_peak_rose(traced, tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), Climbs()).cuda()
    current.current().begin_deep_profile()
    train(model, FIRST_BURST + 30, 16, 64)
    traced()
    (found,) = read_layers(tmp_path)
    peaks = dict(zip(found.names, found.held_bytes["peak"], strict=True))
    assert np.isnan(peaks["0"])
    assert FIRST_BURST << 20 < peaks["1"] == peaks[""] <= torch.cuda.max_memory_allocated()


def test_layers_cover_the_phases_of_a_transformer(traced, tmp_path):
    width = 1024
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)).cuda()
    current.current().begin_deep_profile()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(FIRST_BURST + 60):
        loss = model(torch.randn(16, 512, width, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows = traced()
    (found,) = read_layers(tmp_path)
    assert gather(load_run(tmp_path)).layers.clock == "gpu" and len(found.steps) >= 2
    for phase in ("forward", "backward"):
        # The same steps, measured twice: a neighbour on the GPU slows both.
        whole = np.array([rows[f"gpu_{phase}_ns"][step - 1] for step in found.steps], float)
        in_layers = found.times_ns[f"gpu_{phase}"].sum(axis=1)
        rest = found.outside_ns[f"gpu_{phase}"]
        assert abs(np.median((in_layers + rest) / whole) - 1) < 0.05, (in_layers, rest, whole)
        assert np.median(in_layers / (in_layers + rest)) > 0.95, (in_layers, rest)


def test_what_the_gpu_waits_for_our_hooks_is_in_no_layer(traced, tmp_path, monkeypatch):
    """The GPU waits for the host all the time, and for our hooks in steps that are looked at."""
    monkeypatch.setattr(bursts, "LAYERS_SHARE", 0.2)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(150))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    current.current().begin_deep_profile()
    for _ in range(FIRST_BURST + 300):
        model(torch.randn(16, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = traced()
    (found,) = read_layers(tmp_path)
    assert len(found.steps) >= 8, found.notes
    looked_at = [step - 1 for step in found.steps]
    for phase, most in (("forward", 0.8), ("backward", 1.0)):  # our hooks are longer in forward
        took = np.array(rows[f"{phase}_ns"], float)[looked_at]  # the host's clock times every step
        rest = found.outside_ns[f"gpu_{phase}"]
        seen = found.times_ns[f"gpu_{phase}"].sum(axis=1) + rest
        assert 0.1 < np.median(seen / took) < most, (phase, seen, took)


def transformer_step(model, optimizer, width=1024):
    loss = model(torch.randn(8, 512, width, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def transformer(layers=4, width=1024):
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    return model, torch.optim.AdamW(model.parameters(), 1e-4)


def busy_ms_by_torch(steps, step):
    """The time in which the GPU worked, per step, by a whole trace of torch's own profiler."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in trace.profiler.kineto_results.events()
        if "CUDA" in str(event.device_type())
    )
    total = until = 0
    for start, end in spans:
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total / steps / 1e6


def test_kernels_are_recorded_and_told_by_layer(traced, tmp_path, monkeypatch):
    monkeypatch.setattr(bursts, "KERNELS_SHARE", 1.0)
    model, optimizer = transformer()
    current.current().begin_deep_profile()
    for _ in range(FIRST_BURST + 40):
        transformer_step(model, optimizer)
    traced()
    (found,) = read_layers(tmp_path)
    assert len(found.kernels) >= 2, (found.steps, found.notes, list(found.counted))
    # The steps are alike; a neighbour on the GPU makes kernels longer for a while, never shorter:
    # the quickest of several steps are compared.
    exact = min(busy_ms_by_torch(1, lambda: transformer_step(model, optimizer)) for _ in range(10))
    seen = min(step.busy_ns for step in found.kernels) / 1e6
    assert abs(seen / exact - 1) < 0.02, (seen, exact)
    for step in found.kernels:
        in_layers = step.layer_busy_ns.sum()
        assert 0.6 * step.busy_ns < in_layers < step.busy_ns  # the optimizer is in none
        names = [found.names[kernel.layer] for kernel in step.by_kernel if kernel.layer >= 0]
        assert any("linear" in name for name in names)
    linear = [place for place, kind in enumerate(found.kinds) if kind == "Linear"]
    assert all(found.kernels[0].layer_kernels[place] >= 2 for place in linear)
    of_one = [each for each in found.kernels[0].by_kernel if each.layer == linear[0]]
    assert sum(each.calls for each in of_one) == found.kernels[0].layer_kernels[linear[0]]
    (path,) = tmp_path.glob("layers-*.jsonl")
    for line in path.read_bytes().splitlines():
        if b"gpu_forward_ns" in line or b"launch_ns" in line:
            assert len(line) < 2_700, line[:200]


def test_the_busy_time_of_one_recording_is_that_of_torch_s_own_trace():
    """The same events, summed up in both ways: no noise, no tolerance."""
    from torch.profiler import ProfilerActivity, profile

    from traceml.trace.deep.kernels import activities, step_activity

    model, optimizer = transformer(layers=2)
    for _ in range(3):
        transformer_step(model, optimizer)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        transformer_step(model, optimizer)
        torch.cuda.synchronize()
    events = trace.profiler.kineto_results.events()
    seen = step_activity(activities(events), [], 0)
    spans = [
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if "CUDA" in str(event.device_type())
    ]
    marks = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    busy = depth = 0
    for (at, change), (then, _) in pairwise(marks):
        depth += change
        busy += (then - at) * (depth > 0)
    assert seen.kernels > 20 and seen.busy == pytest.approx(busy, rel=1e-3)


@pytest.mark.parametrize("is_hidden", [True, False], ids=["behind compute", "alone"])
def test_copies_on_a_stream_of_their_own_are_told_apart_by_what_runs_beside_them(is_hidden):
    """A copy of 16 MB, which takes less than a millisecond, during one product of matrices that
    takes a hundred: between two of them the copy would be alone for a moment."""
    from torch.profiler import ProfilerActivity, profile

    from traceml.trace.deep.kernels import activities, step_activity

    matrix = torch.randn(16384, 16384, device="cuda")
    pinned, beside = torch.ones(4 << 20).pin_memory(), torch.cuda.Stream()
    target = torch.empty(4 << 20, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        matrix @ matrix
        if not is_hidden:
            torch.cuda.synchronize()
        with torch.cuda.stream(beside):
            target.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
    seen = step_activity(activities(trace.profiler.kineto_results.events()), [], 0)
    assert seen.copies > 0
    assert seen.copies_alone == (0 if is_hidden else seen.copies)


def test_a_profiler_of_the_script_s_own_has_its_way(traced, tmp_path, monkeypatch):
    from torch.profiler import ProfilerActivity, profile

    monkeypatch.setattr(bursts, "KERNELS_SHARE", 1.0)
    model, optimizer = transformer(layers=1)
    current.current().begin_deep_profile()
    counts = []
    for step in range(FIRST_BURST + 60):
        if step % 3 == 2:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
                transformer_step(model, optimizer)
                torch.cuda.synchronize()
            counts.append(sum("CUDA" in str(e.device_type) for e in trace.events()))
        else:
            transformer_step(model, optimizer)
    traced()
    assert max(counts[1:]) - min(counts[1:]) <= 2 < min(counts)  # every trace of theirs is whole


def test_a_worker_that_is_forked_while_kernels_are_recorded_is_let_alone(traced, monkeypatch):
    monkeypatch.setattr(bursts, "KERNELS_SHARE", 1.0)
    model, optimizer = transformer(layers=1)
    session = current.current()
    session.begin_deep_profile()
    children = []
    for _ in range(FIRST_BURST + 40):
        transformer_step(model, optimizer)
        if TEARDOWN in os.environ and len(children) < 2:  # the next step's kernels are recorded
            child = os.fork()
            if child == 0:
                session.forget_parent()
                os._exit(TEARDOWN in os.environ)
            children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    traced()
    assert children == [0, 0]
    assert TEARDOWN not in os.environ


def test_recorded_kernels_say_how_short_a_launch_bound_step_could_be(traced, tmp_path, monkeypatch):
    monkeypatch.setattr(bursts, "KERNELS_SHARE", 1.0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(150))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, foreach=False)

    def step():
        loss = model(torch.randn(8, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    current.current().begin_deep_profile()
    for _ in range(FIRST_BURST + 80):
        step()
    traced()
    facts = gather(load_run(tmp_path))
    assert facts.clock == "gpu" and facts.recorded_busy is not None
    exact_ms = busy_ms_by_torch(5, step)
    assert facts.recorded_busy.busy_s * 1e3 == pytest.approx(exact_ms, rel=0.1)
    finding = host_bound.check(facts)
    assert finding is not None, (facts.mean, facts.queue_dry_share)
    assert finding.evidence["gpu_busy_ms"] == pytest.approx(exact_ms, rel=0.1)
    (what_if,) = predict(facts, [finding])
    assert exact_ms / 1e3 <= 1.1 * what_if.predicted_s < facts.mean.step_s
    assert not what_if.is_upper_bound


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_the_operations_of_recurrent_layers_are_those_of_a_count_by_hand(
    begin_deep, monkeypatch, kind, gates
):
    """cuDNN runs all layers, directions and moments at once."""
    batch, length, width, hidden = 8, 12, 32, 64
    monkeypatch.setattr(bursts, "COUNTED_BURST", 0)
    layers = begin_deep()
    model = kind(width, hidden, 2, bidirectional=True, batch_first=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(FIRST_BURST + 8):
        inputs = torch.randn(batch, length, width, device="cuda")
        loss = model(inputs)[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = layers()
    matrices = 2 * gates * hidden * ((width + hidden) + (2 * hidden + hidden))
    assert found.uncounted == {}
    assert found.counted["forward_flops"].sum() == 2 * batch * length * matrices
    assert found.counted["backward_flops"].sum() == 2 * 2 * batch * length * matrices


def test_layers_on_several_devices_are_said_to_be_timed_on_the_host(begin_deep):
    """A CPU beside a GPU, as offloading does; several GPUs are alike."""
    layers = begin_deep()

    class OnBoth(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64).cuda()

        def forward(self, inputs):
            return self.second(self.first(inputs).cuda())

    model = OnBoth()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for _ in range(FIRST_BURST + 8):
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = layers()
    assert "host_forward" in found.times_ns and "gpu_forward" not in found.times_ns
    assert len([note for note in found.notes if "on several devices (cpu, cuda:0)" in note]) == 1
