"""The hooks on real torch: what they see, and that nobody can see them."""

import functools
import gc
import inspect
import signal
import threading
import time
import traceback
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

import traceml
from traceml.model.record_layout import StepFlag
from traceml.steps import events
from traceml.steps.events import EVENT, EVENT_BYTES
from traceml.store.load import drain_rings
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader
from traceml.trace import current, gpu, hooks, loaders, optimizer_search
from traceml.trace import session as sessions

NO_STEP = 1 | 4


class Net(nn.Module):
    """A model around a layer: the outer one is the model, the inner one stays untouched."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.inner(inputs)


def make_loader(samples=64, batch=8, **options):
    data = TensorDataset(torch.randn(samples, 4), torch.randn(samples, 1))
    return DataLoader(data, batch_size=batch, **options)


def train(model, optimizer, batches):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def complete(steps):
    return steps[(steps["flags"] & NO_STEP) == 0]


def patched_places():
    return {
        "backward": torch.autograd.backward,
        "grad": torch.autograd.grad,
        "save": torch.save,
        "next": _BaseDataLoaderIter.__dict__["__next__"],
        "iter": DataLoader.__dict__["__iter__"],
        "to": torch.Tensor.__dict__.get("to"),
        "call": nn.Linear.__dict__.get("__call__"),
        "before": tuple(torch_optimizer._global_optimizer_pre_hooks),
        "after": tuple(torch_optimizer._global_optimizer_post_hooks),
        "gc": tuple(gc.callbacks),
        "optimizer": vars(Optimizer).copy(),
    }


def test_removing_the_tracer_restores_every_patched_attribute(tmp_path):
    before = patched_places()
    session = current.start(tmp_path, None, None)
    hooks.install(session)
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    during = patched_places()
    assert all(during[name] != before[name] for name in ("backward", "save", "next", "call"))
    current.end()
    assert patched_places() == before


@pytest.mark.parametrize("ends_by", ["the limit of steps", "a failure"])
def test_tracing_that_ends_within_a_step_leaves_the_hooks_of_others_alone(
    tmp_path, monkeypatch, ends_by
):
    session = current.start(tmp_path, None, 2 if ends_by == "the limit of steps" else None)
    hooks.install(session)
    if ends_by == "a failure":
        monkeypatch.setattr(session, "after_step", lambda: session.disable("it fails"))
    called = []
    theirs = [
        torch_optimizer.register_optimizer_step_pre_hook(lambda *_: called.append("before")),
        torch_optimizer.register_optimizer_step_post_hook(lambda *_: called.append("after")),
    ]
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    for handle in theirs:
        handle.remove()
    current.end()
    assert called == ["before", "after"] * 8


@pytest.mark.slow
def test_a_loaders_iterator_keeps_its_type_its_length_and_its_eager_workers(traced):
    single = make_loader()
    assert type(iter(single)) is _SingleProcessDataLoaderIter
    assert len(single) == len(iter(single)) == 8
    several = make_loader(num_workers=1)
    iterator = iter(several)
    assert type(iterator) is _MultiProcessingDataLoaderIter
    assert iterator._workers[0].is_alive()  # started before the first batch is asked for


def test_batches_are_the_loaders_own(traced):
    loader = make_loader()
    first = next(iter(loader))
    assert torch.equal(first[0], loader.dataset.tensors[0][:8])


def test_steps_phases_and_samples_are_seen(traced):
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    steps = complete(traced.finish())
    assert len(steps) == 8
    for name in ("input_ns", "backward_ns", "optimizer_ns", "body_ns"):
        assert (steps[name] > 0).all(), name
    assert (steps["forward_ns"][1:] > 0).all()  # the first step finds the model
    assert (steps["samples"] == 8).all()
    phases = steps["forward_ns"] + steps["backward_ns"] + steps["optimizer_ns"]
    assert (phases < steps["body_ns"]).all()


def test_the_walls_add_up_to_the_loop(traced):
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader(800))
    steps = traced.finish()
    ends = steps["start_ns"] + steps["wall_ns"]
    assert np.array_equal(ends[:-1], steps["start_ns"][1:])
    assert steps["wall_ns"].sum() == ends[-1] - steps["start_ns"][0]


def test_the_outermost_module_is_the_model_and_submodules_stay_untouched(traced):
    model = Net()
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in make_loader():
        criterion(model(inputs), targets).backward()
        optimizer.step()
    assert "__call__" in vars(Net)
    assert "__call__" not in vars(nn.Linear)
    assert "__call__" not in vars(nn.MSELoss)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    steps = complete(traced.finish())
    assert (steps["forward_ns"][1:] > 0).all()


def test_a_model_that_no_caller_holds_is_found_all_the_same(traced):
    def make():
        model = nn.Linear(4, 1)
        return (lambda inputs: model(inputs)), torch.optim.SGD(model.parameters(), lr=0.1)

    predict, optimizer = make()
    for inputs, targets in make_loader():
        nn.functional.mse_loss(predict(inputs), targets).backward()
        optimizer.step()
    assert (complete(traced.finish())["forward_ns"][1:] > 0).all()


def test_the_model_of_an_optimizer_that_steps_copies_is_found(traced):
    """As with DeepSpeed's ZeRO: no module owns what the optimizer steps."""
    model = nn.Linear(4, 4)
    frozen = nn.LayerNorm(4).requires_grad_(False)
    flat = nn.Parameter(model.weight.detach().clone().flatten())
    optimizer = torch.optim.SGD([flat], lr=0.1)
    for _ in range(3):
        model(frozen(torch.ones(2, 4))).sum().backward()
        flat.grad = model.weight.grad.flatten()
        optimizer.step()
        model.weight.data.copy_(flat.view(4, 4))
    assert "__call__" not in vars(nn.LayerNorm)
    assert (complete(traced.finish())["forward_ns"] > 0).tolist() == [False, True, True]


def test_forward_called_directly_is_seen_after_a_few_steps(traced):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in make_loader(160):
        nn.functional.mse_loss(model.forward(inputs), targets).backward()
        optimizer.step()
    steps = complete(traced.finish())
    assert (steps["forward_ns"][5:] > 0).all()


def test_the_first_steps_tensors_die_with_their_step(traced):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = []
    for _ in range(3):
        inputs = torch.randn(8, 4)
        outputs = model(inputs)
        loss = outputs.square().mean()
        first = first or [weakref.ref(each) for each in (inputs, outputs, loss)]
        loss.backward()
        optimizer.step()
    assert [each() for each in first] == [None, None, None]
    assert len(complete(traced.finish())) == 3


def test_saving_copying_and_scripting_a_traced_model_works(traced, tmp_path):
    import copy

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    inputs = torch.randn(3, 4)
    assert torch.equal(loaded(inputs), model(inputs))
    assert torch.equal(copy.deepcopy(model)(inputs), model(inputs))
    assert torch.equal(torch.jit.script(model)(inputs), model(inputs))


def test_a_users_error_comes_through_with_the_users_frames(traced):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 1)
            self.broken = False

        def forward(self, inputs):
            if self.broken:
                raise RuntimeError("the user's own")
            return self.inner(inputs)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, make_loader())
    model.broken = True
    with pytest.raises(RuntimeError, match="the user's own") as caught:
        train(model, optimizer, make_loader())
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "forward"
    assert "train" in names
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_caught_error_aborts_its_step_alone(traced):
    class Net(nn.Linear):
        calls = 0

        def forward(self, inputs):
            self.calls += 1
            if self.calls == 5:
                raise RuntimeError("a bad batch")
            return super().forward(inputs)

    model = Net(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in make_loader():
        try:
            train(model, optimizer, [batch])
        except RuntimeError:
            continue
    steps = traced.finish()
    assert len(complete(steps)) == 7
    assert ((steps["flags"] & 1) != 0).sum() == 1


def test_a_failure_of_ours_is_counted_and_training_goes_on(traced, monkeypatch):
    def fail(*_):
        raise ValueError("ours")

    monkeypatch.setattr(loaders, "contents_of", fail)
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    current.end()
    with pytest.raises(AssertionError, match="ours"):
        traced.finish()


def test_fetching_in_another_thread_is_nobodys_wait(traced):
    import queue

    batches = queue.Queue(2)

    def prefetch():
        for batch in make_loader():
            batches.put(batch)
        batches.put(None)

    thread = threading.Thread(target=prefetch)
    thread.start()
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), iter(batches.get, None))
    thread.join()
    steps = complete(traced.finish())
    assert len(steps) == 8
    assert (steps["input_ns"] == -1).all()


def test_training_in_another_thread_is_followed_after_a_first_step_elsewhere(traced):
    """A script may try one step out before it trains: that alone decides nothing."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    thread = threading.Thread(target=train, args=(model, optimizer, make_loader()))
    thread.start()
    thread.join()
    assert len(traced.complete()) == 8


def test_training_in_another_thread_is_followed(traced):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    thread = threading.Thread(target=train, args=(model, optimizer, make_loader()))
    thread.start()
    thread.join()
    assert len(complete(traced.finish())) == 8


@pytest.mark.slow
def test_garbage_collection_is_timed(traced):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in make_loader():
        train(model, optimizer, [batch])
        gc.collect()
    assert (complete(traced.finish())["gc_ns"] > 0).all()


def test_tracing_stops_after_the_steps_asked_for(tmp_path):
    before = patched_places()
    session = current.start(tmp_path, None, 3)
    hooks.install(session)
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    assert session.count_steps() == 3
    assert patched_places() == before
    current.end()


def recording_has_ended(session):
    with RingReader(session.ring.path) as ring:
        return bool(ring.head().counters["recording_ended"])


def test_the_ring_says_when_the_steps_asked_for_are_recorded(tmp_path):
    session = current.start(tmp_path, None, 3)
    hooks.install(session)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, make_loader(16))
    assert not recording_has_ended(session)
    train(model, optimizer, make_loader())
    assert recording_has_ended(session)
    session.forget_parent()  # a forked child logs into a ring of its own
    session.open()
    assert recording_has_ended(session)
    current.end()


def test_the_ring_says_when_tracing_has_given_up(traced, monkeypatch):
    monkeypatch.setattr(sessions, "TOO_MANY_FAILURES", 2)
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    ended = []
    for _ in range(2):
        traced.session.failed(ValueError("ours"))
        ended.append(recording_has_ended(traced.session))
    assert ended == [False, True]


# Backward passes that are open


class CatchingInner(torch.autograd.Function):
    """Its backward pass runs another one, which fails, and goes on."""

    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.zeros(()).backward()
        return gradient


def open_during_backward(session, between=lambda: None):
    """How many backward passes are said to be open in the middle of one."""
    counted = []
    weight = torch.ones(2, requires_grad=True)

    def count(gradient):
        between()
        counted.append(session.backwards_open)

    weight.register_hook(count)
    weight.sum().backward()
    return counted


def test_an_inner_backward_that_fails_closes_itself_alone(traced):
    session, weight = traced.session, torch.ones(2, requires_grad=True)
    counted = []
    passed = weight * 1
    passed.register_hook(lambda _: counted.append(session.backwards_open))
    CatchingInner.apply(passed).sum().backward()
    assert counted == [1]  # the outer pass is still open
    assert session.backwards_open == 0
    assert open_during_backward(session) == [1]


def test_another_threads_backward_that_fails_closes_none_of_ours(traced):
    failed = []

    def fail():
        try:
            torch.zeros(()).backward()
        except RuntimeError as error:
            failed.append(error)

    def aside():
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()

    assert open_during_backward(traced.session, aside) == [1]
    assert len(failed) == 1
    assert traced.session.backwards_open == 0


def test_a_child_forked_in_a_backward_ends_one_that_it_never_began(traced):
    forget = traced.session.forget_parent  # what Python calls in the child
    assert open_during_backward(traced.session, forget) == [0]
    assert traced.session.backwards_open == 0


def test_a_backward_that_was_left_without_its_end_is_forgotten_at_the_next(traced):
    traced.session.backwards_open = 3
    assert open_during_backward(traced.session) == [1]
    assert traced.session.backwards_open == 0


def test_no_thread_is_added(traced):
    before = threading.enumerate()
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    assert set(threading.enumerate()) <= set(before)  # one of an earlier test may end


def test_a_second_model_and_optimizer_are_found_when_they_come(traced):
    for _ in range(2):
        model = nn.Linear(4, 1)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    steps = complete(traced.finish())
    assert len(steps) == 16
    assert (steps["forward_ns"] > 0).sum() == 14


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ([torch.zeros(5, 2), torch.zeros(5)], 5),
        ((torch.zeros(5, 2), torch.zeros(5)), 5),
        (((torch.zeros(3, 8, 8),) * 16, ({},) * 16), -1),
        ({"pixels": torch.zeros(5, 2)}, 5),
        ([{"pixels": torch.zeros(5, 2)}], 5),
        (torch.tensor(1.0), -1),
        ("text", -1),
        ([], -1),
        ({}, -1),
        (None, -1),
    ],
    ids=[
        "tensor",
        "list",
        "tuple",
        "unstacked",
        "dict",
        "nested",
        "scalar",
        "text",
        "empty",
        "none",
        "nothing",
    ],
)
def test_the_batch_size_is_read_where_it_shows(batch, samples):
    assert events.split_fetched(loaders.contents_of(batch))[0] == samples


def test_explicit_steps_and_regions(traced):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @traceml.trace_time("augment")
    def augment(inputs):
        return inputs * 2

    for inputs, targets in make_loader():
        with traceml.trace_step(model):
            with traceml.trace_time("loss"):
                loss = nn.functional.mse_loss(model(augment(inputs)), targets)
            loss.backward()
            optimizer.step()
    steps = complete(traced.finish())
    assert len(steps) == 8
    assert (steps["forward_ns"] > 0).all()  # the model was named: the first step has it too
    from traceml.store.record_file import RankFiles

    (files,) = RankFiles.all_in(traced.folder)
    regions = {region.name: region.calls for region in files.head().regions}
    assert regions == {"augment": 8, "loss": 8}


def test_what_is_logged_reaches_the_ring(traced):
    traceml.log_params({"lr": 0.1, "layers": [1, 2], "odd": object})
    traceml.log_metrics({"loss": torch.tensor(0.5), "bad": float("nan")}, step=3)
    traceml.log_artifact(__file__, name="model")
    current.end()
    from traceml.store.load import drain_rings

    drain_rings(traced.folder, everything=True)
    params, metrics, artifact = traced.messages()
    assert params["values"]["lr"] == 0.1
    assert params["values"]["odd"] == str(object)
    assert metrics["values"] == {"loss": 0.5, "bad": "nan"}
    assert metrics["step"] == 3
    assert artifact["name"] == "model"


def test_without_a_run_every_verb_does_nothing(monkeypatch):
    monkeypatch.delenv("TRACEML_RUN_FOLDER", raising=False)
    assert current.current() is None
    traceml.log_params({"lr": 0.1})
    traceml.log_metrics({"loss": 1.0})
    with traceml.trace_step(None), traceml.trace_time("x"):
        pass
    assert traceml.summary() == {}
    assert traceml.final_summary() == {}
    model = nn.Linear(1, 1)
    assert traceml.trace_model_instance(model) is model


def test_a_model_called_by_its_forward_beside_one_called_as_usual(traced):
    class Net(nn.Module):
        takes_s = 0.0

        def __init__(self, inputs, outputs):
            super().__init__()
            self.inner = nn.Linear(inputs, outputs)
            self.calls = 0

        def forward(self, inputs):
            self.calls += 1
            time.sleep(self.takes_s)
            return self.inner(inputs)

    class Encoder(Net):
        takes_s = 0.02

    encoder, decoder = Encoder(4, 4), Net(4, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    for inputs, targets in make_loader(160):
        nn.functional.mse_loss(decoder(encoder.forward(inputs)), targets).backward()
        optimizer.step()
    assert "forward" in vars(Encoder)
    assert vars(Encoder)["forward"] is not Net.forward
    steps = complete(traced.finish())
    encoding_ns = Encoder.takes_s * 1e9
    assert np.median(steps["forward_ns"][1:4]) < encoding_ns  # it is not timed yet
    assert (steps["forward_ns"][8:] >= encoding_ns).all()


def test_a_thread_that_collects_garbage_does_not_become_the_training_thread(traced, monkeypatch):
    monkeypatch.setattr(
        optimizer_search, "_any_optimizer_made", lambda: False
    )  # other tests made some
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    weight = torch.zeros(4, 1, requires_grad=True)
    for inputs, targets in make_loader():
        loss = nn.functional.mse_loss(inputs @ weight, targets)
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
    assert len(complete(traced.finish())) == 8


def test_hundreds_of_micro_batches_are_one_step(traced):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, (inputs, targets) in enumerate(make_loader(600, batch=1), start=1):
        nn.functional.mse_loss(model(inputs), targets).backward()
        if index % 200 == 0:
            optimizer.step()
            optimizer.zero_grad()
    steps = complete(traced.finish())
    assert len(steps) == 3
    assert list(steps["micro_batches"]) == [200, 200, 200]


def test_what_the_user_patched_after_us_stays(traced):
    def mine(*_):
        return None

    ours = torch.save
    torch.save = mine
    try:
        current.end()
        assert torch.save is mine
    finally:
        torch.save = ours.__wrapped__


def test_what_is_logged_after_tracing_stopped_is_kept(tmp_path):
    (tmp_path / "run.json").write_text('{"run_name": "here", "started_unix_s": 0}')
    session = current.start(tmp_path, None, 3)
    hooks.install(session)
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    traceml.log_metrics({"accuracy": 0.9})
    current.end()
    from traceml.store.load import drain_rings, load_run

    drain_rings(tmp_path, everything=True)
    run = load_run(tmp_path)
    assert [metric.name for metric in run.metrics] == ["accuracy"]
    assert len(complete(run.ranks[0].steps)) == 3


def test_a_logged_value_that_is_no_number_costs_only_itself(traced):
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    loss = model(torch.zeros(1, 4)).sum()
    traceml.log_metrics({"loss": loss, "phase": "train", "accuracy": 0.5})
    current.end()
    from traceml.store.load import drain_rings, load_run

    drain_rings(traced.folder, everything=True)
    run = load_run(traced.folder)
    assert [metric.name for metric in run.metrics] == ["accuracy", "loss"]
    assert run.ranks[0].health.failures == 0
    assert run.ranks[0].health.messages_lost == 0
    assert run.ranks[0].health.values_refused == 1


def test_naming_an_artifact_never_raises(traced, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    traceml.log_artifact("model.pt")
    traceml.log_artifact(None)
    assert traced.session.active


def test_a_dead_proxy_among_the_callers_variables_holds_nothing_up(traced):
    class Gone:
        pass

    dead = weakref.proxy(Gone())  # raises ReferenceError at whatever it is asked
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert type(dead) is weakref.ProxyType
    assert len(traced.complete()) == 3


def test_a_closures_backward_passes_are_no_steps_of_their_own(traced):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    for batch in DataLoader(torch.randn(16, 4), batch_size=4):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = (model(batch) - 1).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    steps = traced.complete()
    assert len(steps) == 4
    assert steps["optimizer_steps"].tolist() == [1] * 4
    assert steps["micro_batches"].tolist() == [1] * 4


class Checkpointed(nn.Module):
    """Two layers that are recomputed in backward passes of their own, inside the model's."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, inputs):
        first, *others = self.layers
        hidden = first(inputs)
        for layer in others:
            hidden = checkpoint(layer, hidden, use_reentrant=True)
        return hidden


def penalised(model, batch):
    """A loss with a penalty for large gradients, as WGAN-GP has it."""
    inputs = batch.requires_grad_()
    output = model(inputs).pow(2).mean()
    (gradient,) = torch.autograd.grad(output, inputs, create_graph=True)
    return output + gradient.norm()


@pytest.mark.parametrize(
    ("make_model", "loss_of"),
    [
        pytest.param(Checkpointed, lambda model, batch: model(batch).mean(), id="checkpointed"),
        pytest.param(lambda: nn.Linear(4, 1), penalised, id="with a gradient penalty"),
    ],
)
def test_only_passes_that_the_script_asks_for_are_micro_batches(traced, make_model, loss_of):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.randn(16, 4).split(4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    assert traced.complete()["micro_batches"].tolist() == [1] * 4


def test_gradients_by_grad_alone_mark_the_steps_of_updates_by_hand(traced, monkeypatch):
    monkeypatch.setattr(
        optimizer_search, "_any_optimizer_made", lambda: False
    )  # other tests made some
    weight = torch.zeros(4, 1, requires_grad=True)
    for inputs, targets in make_loader():
        loss = nn.functional.mse_loss(inputs @ weight, targets)
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight -= 0.1 * gradient
    assert len(complete(traced.finish())) == 8


def rest_ns(steps):
    """What is left of each step's body."""
    phases = ("h2d", "forward", "backward", "optimizer", "communication")
    return steps["body_ns"] - sum(np.maximum(steps[f"{phase}_ns"], 0) for phase in phases)


SLEPT_NS = 10_000_000


class Remembering(Optimizer):
    """Keeps what it was called with, and steps as SGD does."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.seen = []

    def step(self, closure, *others, **named):
        self.seen.append((closure, others, named))
        return closure(*others, **named)


@pytest.mark.parametrize("calls", [1, 5], ids=["once", "as often as LBFGS does"])
def test_a_sleep_in_a_closure_is_no_optimizers(traced, calls):
    model = nn.Linear(4, 1)
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1)
        if calls == 1
        else torch.optim.LBFGS(model.parameters(), max_iter=calls, tolerance_grad=0)
    )
    called = []
    for batch in DataLoader(torch.randn(16, 4), batch_size=4):
        called.append(0)

        def closure(batch=batch):
            called[-1] += 1
            optimizer.zero_grad()
            time.sleep(SLEPT_NS / 1e9)
            loss = (model(batch) - 1).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    steps = traced.complete()
    assert max(called) >= calls
    assert all(rest_ns(steps) >= SLEPT_NS * np.array(called))
    if calls == 1:  # of LBFGS nobody knows how long its own work takes here
        assert all(steps["optimizer_ns"] + SLEPT_NS <= steps["body_ns"])


class Sharpness(Optimizer):
    """Calls its closure twice, and has another optimizer take the step, as SAM does."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)

    def step(self, closure):
        closure()
        time.sleep(SLEPT_NS / 1e9)  # it perturbs the parameters, which is its own work
        loss = closure()
        self.base.step()
        return loss


@pytest.mark.parametrize("fetches", [True, False], ids=["from a loader", "without one"])
def test_an_optimizer_around_another_has_its_own_time_and_no_step_is_lost(traced, fetches):
    model = nn.Linear(4, 1)
    optimizer = Sharpness(model.parameters())
    data = torch.randn(24, 4)
    for batch in DataLoader(data, batch_size=4) if fetches else data.split(4):

        def closure(batch=batch):
            optimizer.zero_grad()
            time.sleep(SLEPT_NS / 1e9)
            loss = model(batch).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    records = traced.finish()
    steps = complete(records)
    assert len(steps) == 6
    assert not any(records["flags"] & int(StepFlag.ABORTED))
    assert all(steps["optimizer_ns"] >= SLEPT_NS)
    assert all(rest_ns(steps) >= 2 * SLEPT_NS)


class OfMethods:
    """A closure that is a method, or the object itself."""

    def __init__(self, closure):
        self.name, self._closure = "an attribute", closure

    def method(self, factor=1):
        return self(factor)

    def __call__(self, factor=1):
        """What it says of itself."""
        return self._closure(factor)


def closures(closure):
    thing = OfMethods(closure)
    return (closure, functools.partial(closure), thing.method, thing)


@pytest.mark.parametrize("which", range(4), ids=["function", "partial", "method", "object"])
def test_a_closure_is_called_as_without_us_and_gives_back_what_it_did(traced, which):
    model, answer = nn.Linear(4, 1), object()
    optimizer = Remembering(model.parameters())

    def closure(factor=1):
        """What it says of itself."""
        model(torch.ones(2, 4)).sum().backward()
        return answer, factor

    given = closures(closure)[which]
    assert optimizer.step(given) == (answer, 1)
    assert optimizer.step(given, 2) == (answer, 2)
    assert optimizer.step(given, factor=3) == (answer, 3)
    assert optimizer.step(closure=given) == (answer, 1)
    for seen, *_ in optimizer.seen:
        assert inspect.signature(seen) == inspect.signature(given)
        assert seen.__doc__ == given.__doc__
        assert getattr(seen, "name", None) == getattr(given, "name", None)
        assert getattr(seen, "__name__", None) == getattr(given, "__name__", "timed_closure")
    assert len(traced.complete()) == 4


class NotAClosure(Optimizer):
    """Gets its model where others get a closure."""

    def step(self, model):
        assert type(model) is nn.Linear
        model.weight.grad = None


def test_a_model_that_an_optimizer_gets_stays_itself(traced):
    model = nn.Linear(4, 1)
    optimizer = NotAClosure(model.parameters(), {})
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step(model)
    assert len(traced.complete()) == 2


def test_a_closure_that_raises_says_so_to_the_script_and_costs_one_step(traced):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for place, batch in enumerate(DataLoader(torch.randn(24, 4), batch_size=4)):

        def closure(batch=batch, place=place):
            loss = model(batch).sum()
            loss.backward()
            if place == 2:
                raise ValueError("a bad batch")
            return loss

        try:
            optimizer.step(closure)
        except ValueError as error:
            assert str(error) == "a bad batch"
    steps = traced.complete()
    assert len(steps) == 5
    assert [message["phase"] for message in traced.messages() if message["kind"] == "failure"] == [
        "closure"
    ]


# What is looked at after each step


def failures(traced):
    """How many failures of ours the session counted, and its complete steps."""
    session = traced.session
    current.end()
    reader = RingReader(session.ring.path)
    try:
        return reader.head().counters["failures"], session.count_steps()
    finally:
        reader.close()


def test_a_look_after_a_step_that_fails_costs_neither_the_others_nor_the_step(traced):
    class Parts(nn.Module):
        """Called neither as a module nor by `forward`, so that its parts are looked for."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def children(self):
            raise ValueError("not for you")

        def run(self, inputs):
            return nn.functional.linear(inputs, self.inner.weight)

    model, looked = Parts(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.run(torch.randn(2, 4)).mean().backward()
    optimizer.step()  # from here on the model is known, and looked for
    traced.session.looks.append(lambda: looked.append(traced.session.count_steps()))
    for _ in range(11):
        optimizer.zero_grad()
        model.run(torch.randn(2, 4)).mean().backward()
        optimizer.step()
    assert looked == list(range(2, 12 + 1))
    assert failures(traced) == (1, 12)


def test_a_look_that_fails_at_the_end_leaves_the_others_theirs(traced):
    def fail():
        raise ValueError("ours")

    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader(samples=16))
    looked = []
    traced.session.looks[:] = [fail, lambda: looked.append("later")]
    before = traced.session._failures
    current.end()
    assert looked
    assert traced.session._failures > before


def test_what_a_signals_handler_raises_in_a_look_reaches_the_script(traced):
    def interrupt():
        traced.session.looks.remove(interrupt)
        signal.raise_signal(signal.SIGALRM)

    def time_out(number, frame):
        raise TimeoutError("the script's own")

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, make_loader())
    traced.session.looks.insert(0, interrupt)
    before = signal.signal(signal.SIGALRM, time_out)
    try:
        with pytest.raises(TimeoutError):
            train(model, optimizer, make_loader())
    finally:
        signal.signal(signal.SIGALRM, before)
    train(model, optimizer, make_loader())
    assert failures(traced)[0] == 0


@pytest.fixture
def no_memory_statistics(monkeypatch):
    """A GPU's timeline without a GPU, under an allocator that keeps no statistics."""
    asked = []

    def refuse(device):
        asked.append(device)
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    replaced = {
        "_cuda_getCurrentRawStream": lambda device: 0,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_memoryStats": refuse,
        "_CudaEventBase": type("Base", (), dict.fromkeys(("record", "query", "elapsed_time"))),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch._C, name, value, raising=False)
    return asked


def test_an_allocator_without_statistics_costs_neither_phases_nor_losses(
    traced, no_memory_statistics, monkeypatch
):
    monkeypatch.setattr(gpu, "MEMORY_EVERY_NS", 0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, make_loader(samples=8))
    timeline = traced.session.recorder.gpu = gpu.CudaTimeline(traced.session.recorder, 0)
    timeline.mark = timeline.mark_boundary = lambda: 0  # memory alone is asked for
    train(model, optimizer, make_loader())
    current.end()
    drain_rings(traced.folder, everything=True)
    (files,) = RankFiles.all_in(traced.folder)
    steps = complete(files.read_steps())
    assert len(steps) == 9
    assert (steps["backward_ns"] > 0).all()
    assert (steps["flags"] & int(StepFlag.LOSS_SEEN)).all()
    assert len(no_memory_statistics) == files.head().counters["failures"] == 1


def test_a_script_that_clears_the_collectors_callbacks_ends_as_usual(traced):
    others = [each for each in gc.callbacks if each is not traced.session.collections.callback]
    try:
        gc.callbacks.clear()
        model = nn.Linear(4, 1)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
        assert len(traced.complete()) == 8
    finally:
        gc.callbacks[:] = others
    assert not traced.session.restores


def test_a_hook_that_cannot_be_taken_out_leaves_no_other_in(tmp_path):
    before = patched_places()
    session = current.start(tmp_path, None, None)
    hooks.install(session)

    def fail():
        raise ValueError("somebody else has taken it out")

    session.restores.append(fail)
    current.end()
    assert patched_places() == before
    assert session._failures == 1


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.inner(inputs)


class Derived(Base):
    """Its calls go through two wrappers of ours, once both classes are watched."""


def test_a_call_that_two_wrappers_see_is_left_once(traced):
    for model in (Base(), Derived()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
    recorder, ring = traced.session.recorder, traced.session.ring
    first = recorder.written
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 5))
    slots = range(first, recorder.written)
    noted = [EVENT.unpack_from(recorder.buffer, ring.event_base + n * EVENT_BYTES) for n in slots]
    assert [kind for _, kind, *_ in noted] == [events.BEGIN_FORWARD, events.ABORT]
