"""The deep profile beside torch.compile and wrappers on a GPU: measured, and not noticed."""

import gc

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from traceml.trace.deep import bursts  # noqa: E402
from traceml.trace.deep.bursts import FIRST_BURST  # noqa: E402

WIDTH, STEPS = 512, FIRST_BURST + 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, inputs):
        return inputs + self.norm(self.inner(inputs)).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        inputs = self.first(inputs)
        for block in self.blocks:
            inputs = block(inputs)
        return self.last(inputs)


def train(model, called, steps=STEPS, each_step=lambda step: None):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for step in range(steps):
        loss = called(torch.randn(64, WIDTH, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        each_step(step)
    return losses


def compiled_training(prepare):
    """The losses, and what Dynamo and inductor did."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Model().cuda()
    losses = train(model, prepare(model))
    made = {key: dict(counters[key]) for key in ("stats", "frames", "graph_break")}
    made["skips"] = counters["inductor"]["cudagraph_skips"]
    return losses, made


@pytest.fixture
def deep(begin_deep, monkeypatch):
    """A session that looks at as many steps as it may; what it wrote, when it is called."""
    monkeypatch.setattr(bursts, "LAYERS_SHARE", 1e9)
    return begin_deep()


def each_block(model):
    for block in model.blocks:
        block.compile()
    return model


def as_graphs(model):
    return torch.compile(model, mode="reduce-overhead")


@pytest.mark.parametrize(
    ("prepare", "compiled"),
    [(each_block, {"blocks.0", "blocks.1"}), (as_graphs, {""})],
    ids=["blocks", "CUDA graphs"],
)
def test_compiled_code_is_timed_as_a_whole_and_compiled_as_without(request, prepare, compiled):
    compiled_training(prepare)  # what torch makes at the first call is made
    plain = compiled_training(prepare)
    gc.collect()
    deep = request.getfixturevalue("deep")  # from here on it is traced
    seen = compiled_training(prepare)
    found = deep()
    assert {found.names[place] for place in found.compiled} == compiled
    assert len(found.steps) >= 4 and not found.notes
    places = [found.names.index(name) for name in compiled]
    for phase in ("gpu_forward", "gpu_backward", "host_forward", "host_backward"):
        assert (found.times_ns[phase][:, places] > 0).all(), phase
    inside = [place for place, name in enumerate(found.names) if name.endswith((".inner", ".norm"))]
    assert not found.calls[:, inside].any()
    assert found.held_bytes["saved"][places].min() >= 4 * 64 * WIDTH
    assert seen[1] == plain[1]
    assert seen[0] == pytest.approx(plain[0], rel=1e-5)


def test_a_model_over_two_devices_is_timed_on_the_host(deep):
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.near, self.far = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).cuda()

        def forward(self, inputs):
            return self.far(self.near(inputs.cpu()).cuda())

    model = Split()
    train(model, model)
    found = deep()
    assert found.steps and list(found.names) == ["", "near", "far"]
    assert "host_forward" in found.times_ns and "gpu_forward" not in found.times_ns
    assert found.held_bytes["saved"][1:].tolist() == [4 * 64 * WIDTH] * 2


def test_a_model_that_moves_to_the_gpu_is_timed_there_from_then_on(deep):
    model = Model()

    def called(inputs):
        return model(inputs.to(next(model.parameters()).device))

    train(model, called, each_step=lambda step: model.cuda() if step == STEPS // 2 else None)
    train(model, called)
    found = deep()
    assert found.steps and found.calls[-1].any()


def test_data_parallel_on_one_device_has_the_model_s_names(deep):
    model = nn.DataParallel(Model().cuda(), device_ids=[0])
    train(model, model)
    found = deep()
    assert found.names[:2] == ("", "first") and found.kinds[0] == "Model"
    assert found.calls[0].tolist() == [0 if name == "blocks" else 1 for name in found.names]


def test_a_graph_that_is_captured_in_a_burst_costs_that_step_alone(deep):
    model = Model().cuda()
    static = torch.randn(64, WIDTH, device="cuda")
    is_right = []

    def capture(step):
        if step not in (FIRST_BURST - 1, FIRST_BURST):  # the next step is looked at from there on
            return
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            expected = model(static)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            result = model(static)
        graph.replay()
        is_right.append(torch.allclose(result, expected, rtol=1e-3))

    train(model, model, each_step=capture)
    assert is_right == [True, True]
    assert len(deep().steps) >= 4
