"""The deep profile on a GPU: layers on the GPU's own clock, and the memory of a real allocator."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from traceml.facts.gather import gather  # noqa: E402
from traceml.model.phase import Phase  # noqa: E402
from traceml.store.layer_records import read_layers  # noqa: E402
from traceml.store.load import load_run  # noqa: E402
from traceml.trace import current  # noqa: E402
from traceml.trace.deep import bursts  # noqa: E402
from traceml.trace.deep.bursts import FIRST_BURST  # noqa: E402


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
    peaks = dict(zip(found.names, found.held_bytes["peak"], strict=True))
    assert peaks["2"] > peaks["0"] > 3 * 4 * width * width


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
    traced()
    facts = gather(load_run(tmp_path))
    assert facts.clock == "gpu" and facts.layers.clock == "gpu"
    for phase in ("forward", "backward"):
        in_layers = facts.layers.phase_s(phase)
        whole = facts.mean_s(Phase(phase))
        assert 0.9 < in_layers / whole < 1.1, (phase, in_layers, whole)


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
    exact = busy_ms_by_torch(10, lambda: transformer_step(model, optimizer))
    seen = np.median([step.busy_ns for step in found.kernels]) / 1e6
    assert abs(seen / exact - 1) < 0.02, (seen, exact)
    for step in found.kernels:
        in_layers = step.layer_busy_ns.sum()
        assert 0.6 * step.busy_ns < in_layers < step.busy_ns  # the optimizer is in none
        names = [found.names[kernel.layer] for kernel in step.by_kernel if kernel.layer >= 0]
        assert any("linear" in name for name in names)
    linear = [place for place, kind in enumerate(found.kinds) if kind == "Linear"]
    assert all(found.kernels[0].layer_kernels[place] >= 2 for place in linear)


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
