"""Modules that hold more and more memory are found, whoever keeps it."""

import weakref

import pytest
import torch
from tests.trace.deep.test_bursts import Parts, train
from torch import nn
from torch.utils.data import DataLoader

from traceml.facts.layer_growth import layer_growth
from traceml.store.layer_records import read_layers
from traceml.trace.deep import kept_tensors
from traceml.trace.deep.bursts import FIRST_BURST

STEPS = FIRST_BURST + 40
WIDTH = 4


@pytest.fixture
def growth(deep):
    """Begins a deep profile; what has grown, when it is called."""
    return lambda: layer_growth([deep()], {})


class Keeps(nn.Linear):
    """A layer that remembers its outputs, in one of several ways."""

    def __init__(self, keep):
        super().__init__(WIDTH, WIDTH)
        self.history, self.keep = [], keep

    def forward(self, inputs):
        outputs = super().forward(inputs)
        self.keep(self, outputs)
        return outputs


def to_list(layer, outputs):
    layer.history.append(outputs)


def to_nested(layer, outputs):
    layer.history.append({"latest": (outputs, "words")})


def to_growing_tensor(layer, outputs):
    parts = [layer.history] if isinstance(layer.history, torch.Tensor) else []
    layer.history = torch.cat([*parts, outputs.detach()])


@pytest.mark.parametrize("keep", [to_list, to_nested, to_growing_tensor])
def test_a_layer_that_keeps_its_outputs_is_named_with_the_attribute(growth, keep):
    train(Parts(one=nn.Linear(WIDTH, WIDTH), block=Parts(leaks=Keeps(keep))), steps=STEPS)
    leak = growth()[0]
    assert (leak.name, leak.kind, leak.attribute) == ("block.leaks", "Keeps", "history")
    assert leak.per_step_bytes == pytest.approx(2 * WIDTH * 4, rel=0.2) and not leak.is_output


def test_outputs_that_the_script_keeps_name_their_layer_even_where_it_keeps_a_view(growth):
    kept = []
    model = Parts(one=nn.Linear(WIDTH, WIDTH), block=nn.Sequential(nn.Tanh(), nn.Linear(4, 4)))
    model.block[0].register_forward_hook(lambda module, inputs, output: kept.append(output[:1]))
    train(model, steps=STEPS)
    (leak,) = growth()
    assert (leak.name, leak.is_output, leak.per_step_bytes) == ("block.0", True, 2 * WIDTH * 4)


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList()

    def forward(self, inputs):
        self.experts.append(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False)))
        return inputs


def test_a_list_of_modules_that_grows_is_named(growth):
    train(Parts(one=nn.Linear(WIDTH, WIDTH), block=Grows()), steps=STEPS)
    leak = growth()[0]
    assert (leak.name, leak.kind) == ("block.experts", "ModuleList") and leak.added >= STEPS
    assert leak.per_step_bytes == pytest.approx(4 * WIDTH * WIDTH, rel=0.2)


class CachesOnce(nn.Module):
    """Keeps a table from its first calls, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.table, self.calls = None, 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == FIRST_BURST + 2:
            self.table = torch.ones(1000)
        return inputs


def test_a_table_that_is_made_once_is_no_leak_and_nothing_is_kept_alive(growth):
    model = Parts(one=nn.Linear(WIDTH, WIDTH), cached=CachesOnce())
    returned = []
    model.one.register_forward_hook(lambda *call: returned.append(weakref.ref(call[-1])))
    train(model, steps=STEPS)
    assert all(reference() is None for reference in returned[:-1])
    assert growth() == ()


def test_of_long_nested_lists_only_some_items_are_looked_at(monkeypatch):
    calls = []
    look = kept_tensors._bytes_in
    monkeypatch.setattr(
        kept_tensors, "_bytes_in", lambda *given: calls.append(None) or look(*given)
    )
    sentence = [1] * 40
    documents = [[sentence] * 50] * 2000  # of tokens, as a module with a data set may hold them
    assert kept_tensors._bytes_in(documents, set()) == 0
    assert len(calls) < 200_000

    kept = [[torch.ones(2) for _ in range(50)] for _ in range(100)]
    assert kept_tensors._bytes_in(kept, set()) == pytest.approx(100 * 50 * 8, rel=0.01)


def test_looks_have_the_numbers_of_the_step_table_also_where_batches_are_fetched(deep):
    model = Parts(one=Keeps(to_list))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = DataLoader(torch.randn(2 * STEPS + 2, WIDTH), batch_size=2)
    for _, inputs in zip(range(STEPS), batches, strict=False):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert deep().grown[-1].step == STEPS


def train_on(batches, model, keep=lambda outputs: None):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for inputs in batches:
        outputs = model(inputs)
        keep(outputs)
        outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def random_batches():
    return (torch.randn(2, WIDTH) for _ in range(2 * STEPS))


@pytest.mark.parametrize("first", [nn.Flatten(), nn.Identity(), nn.Dropout().eval()])
def test_a_view_of_the_data_set_is_nothing_that_a_layer_has_made(growth, first):
    samples = torch.randn(2 * STEPS, WIDTH)
    batches = (samples[2 * step : 2 * step + 2] for step in range(STEPS))
    train_on(batches, nn.Sequential(first, nn.Linear(WIDTH, WIDTH)))
    assert growth() == ()


class Table(nn.Module):
    """Returns a part of a table that lasts, as rotary embeddings do."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, inputs):
        return self.read(self)[: len(inputs)]


class AddsTable(nn.Linear):
    def __init__(self, table):
        super().__init__(WIDTH, WIDTH)
        self.table = table

    def forward(self, inputs):
        return super().forward(inputs) + self.table(inputs)


@pytest.mark.parametrize("place", ["the layer", "another layer", "a closure"])
def test_a_table_that_is_returned_each_time_is_no_leak_wherever_it_is_kept(growth, place):
    table = torch.ones(1000, WIDTH)
    model = AddsTable(Table(lambda layer: table))
    if place == "the layer":
        model.table.cached, table = (table,), None
        model.table.read = lambda layer: layer.cached[0]
    elif place == "another layer":
        model.cached, table = table, None
        model.table.read = lambda layer: model.cached
    train_on(random_batches(), model)
    assert growth() == ()


class ReturnsPart(nn.Linear):
    """Returns a small part of something large."""

    def forward(self, inputs):
        return super().forward(inputs.expand(500, *inputs.shape))[0]


def test_a_view_counts_by_its_own_bytes(growth):
    kept = []
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), ReturnsPart(WIDTH, WIDTH))
    train_on(random_batches(), model, kept.append)
    (leak,) = growth()
    assert leak.is_output and leak.per_step_bytes == 2 * WIDTH * 4


def test_outputs_that_are_let_go_later_are_no_leak(traced, growth):
    kept, calls = [], []

    def keep_at_first(outputs):
        calls.append(None)
        kept.append(outputs)
        if len(calls) > STEPS:
            kept.clear()

    train_on(random_batches(), nn.Linear(WIDTH, WIDTH), keep_at_first)
    found = growth()
    (records,) = read_layers(traced.folder)
    assert records.outlived[0].left_bytes == 2 * WIDTH * 4 and found == ()
