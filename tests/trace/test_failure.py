"""Exceptions that pass a hook are noted with phase and module, and nothing is kept alive."""

import gc
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import traceml
from traceml.model.failure import amounts_in, is_consequence, is_out_of_memory
from traceml.trace import failure as failing
from traceml.trace.footprint import footprint


class Refuses(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.error = None

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return self.inner(x)


class Job:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Refuses()))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)

    @property
    def refuses(self):
        return self.model[1][1]

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()


@pytest.fixture
def job(traced):
    made = Job()
    for _ in range(3):
        made.step()
    return made


def failures(traced):
    traced.finish()
    return [said for said in traced.messages() if said["kind"] == "failure"]


def test_an_exception_in_forward_is_noted_with_its_module(traced, job):
    job.refuses.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        job.step()
    (found,) = failures(traced)
    assert (found["error"], found["message"], found["is_handled"]) == ("ValueError", "no", True)
    assert (found["step"], found["phase"], found["module"]) == (4, "forward", "1.1")
    assert found["where"].endswith("in forward")


class TrainerAndModel(torch.nn.Module):
    """A module that trains itself, as those of some frameworks do."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def fit(self):
        raise self.error

    def forward(self):
        raise self.error


@pytest.mark.parametrize(
    ("method", "phase", "module"),
    [("fit", None, None), ("__call__", "forward", "TrainerAndModel")],
    ids=["a method that is no forward pass", "a forward pass"],
)
def test_only_a_call_of_a_module_is_a_forward_pass(traced, job, method, phase, module):
    trainer = TrainerAndModel(job.model[0])
    trainer.error = ValueError("no")
    with pytest.raises(ValueError, match="no"), traceml.trace_step():
        getattr(trainer, method)()
    (found,) = failures(traced)
    assert (found["phase"], found["module"]) == (phase, module)


def test_an_exception_in_backward_is_noted(traced, job):
    with pytest.raises(RuntimeError):
        job.model(torch.ones(2, 4)).backward()
    (found,) = failures(traced)
    assert (found["step"], found["phase"], found["module"]) == (4, "backward", None)


def test_wrappers_are_no_part_of_a_modules_name(traced):
    job = Job()
    wrapped = nn.DataParallel(job.model)
    job.model = wrapped
    for _ in range(3):
        job.step()
    wrapped.module[1][1].error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        job.step()
    assert failures(traced)[0]["module"] == "1.1"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), StopIteration()])
def test_what_is_no_failure_is_not_noted(traced, job, error):
    job.refuses.error = error
    with pytest.raises(type(error)):
        job.step()
    assert failures(traced) == []


def test_a_script_that_raises_in_every_step_is_noted_now_and_then(traced, job, monkeypatch):
    monkeypatch.setattr(failing, "RARELY_S", 3600.0)
    for number in range(3 * failing.MAX_NOTED):
        job.refuses.error = ValueError(str(number))
        with pytest.raises(ValueError, match=str(number)):
            job.step()
    assert len(failures(traced)) == failing.MAX_NOTED


def test_the_last_of_many_is_known_at_the_end(traced, job, monkeypatch):
    monkeypatch.setattr(failing, "RARELY_S", 0.0)
    for number in range(failing.MAX_NOTED + 5):
        job.refuses.error = ValueError(str(number))
        with pytest.raises(ValueError, match=str(number)):
            job.step()
    found = failures(traced)
    assert len(found) == failing.MAX_NOTED + 1
    assert found[-1]["message"] == str(failing.MAX_NOTED + 4)


def test_the_same_error_again_after_more_steps_is_another_one(traced, job):
    for _ in range(2):
        job.refuses.error = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            job.step()
        job.refuses.error = None
        job.step()
    assert [found["step"] for found in failures(traced)] == [4, 5]


def test_where_torch_alone_is_below_the_line_is_the_callers(traced, job):
    with pytest.raises(RuntimeError):
        job.model(torch.ones(2, 5))
    (found,) = failures(traced)
    assert found["module"] == "0"
    assert "test_where_torch_alone" in found["where"]


def test_noting_keeps_nothing_alive(traced):
    def fail():
        job = Job()
        job.step()
        job.refuses.error = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            job.step()
        return weakref.ref(job.model)

    kept = fail()
    gc.collect()
    assert kept() is None
    assert len(failures(traced)) == 1


def test_noting_keeps_no_variable_of_a_training_that_goes_on(traced, job):
    class Trainer:
        def fit(self):
            batch = torch.ones(2, 4)
            first = weakref.ref(batch)
            try:
                with traceml.trace_step(job.model):
                    raise ValueError("a bad batch")
            except ValueError:
                batch = torch.ones(2, 4)
            return first(), batch

    assert Trainer().fit()[0] is None
    assert len(failures(traced)) == 1


def test_the_exception_that_ends_the_process_is_told_in_two_lines(traced, job, monkeypatch, capsys):
    job.refuses.error = RuntimeError("x" * 500)
    try:
        job.step()
    except RuntimeError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    found = failures(traced)[-1]
    assert not found["is_handled"]
    first, second = capsys.readouterr().err.splitlines()
    begin = "traceml: rank 0 failed at step 4 in forward, module 1.1: RuntimeError: xxx"
    assert first.startswith(begin)
    assert len(first) < 300
    assert second.startswith("traceml: your line: ")


@pytest.mark.parametrize(
    ("name", "use", "phase"),
    [
        ("absent.pt", torch.load, None),
        ("nowhere/model.pt", lambda path: torch.save({}, path), "checkpoint"),
    ],
    ids=["loading", "saving"],
)
def test_to_load_is_not_to_save(traced, job, monkeypatch, tmp_path, name, use, phase):
    try:
        use(tmp_path / name)
    except (OSError, RuntimeError) as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    found = failures(traced)[-1]
    assert found["phase"] == phase


def test_the_module_of_a_cause_is_told_with_the_error_that_was_raised(traced, job, monkeypatch):
    job.refuses.error = KeyError("token")
    try:
        try:
            job.step()
        except KeyError as cause:
            raise RuntimeError("training failed") from cause
    except RuntimeError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    found = failures(traced)[-1]
    assert (found["error"], found["module"], found["phase"]) == ("RuntimeError", "1.1", "forward")


def test_out_of_memory_says_what_the_model_holds(traced, job):
    job.refuses.error = torch.cuda.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
        "of which 1.50 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, "
        "and 4.00 GiB is reserved by PyTorch but unallocated."
    )
    with pytest.raises(torch.cuda.OutOfMemoryError):
        job.step()
    memory = failures(traced)[0]["memory"]
    parameters = sum(each.numel() * 4 for each in job.model.parameters())
    assert memory["parameter_bytes"] == parameters
    assert memory["optimizer_bytes"] >= 2 * parameters
    assert memory["tried_bytes"] == 2 << 30
    assert memory["reserved_bytes"] == 74 << 30


@pytest.mark.parametrize(
    ("text", "tried"),
    [
        pytest.param(
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity; "
            "14.56 GiB already allocated; 8.75 MiB free; 14.77 GiB reserved in total by PyTorch)",
            20 << 20,
            id="an older torch",
        ),
        pytest.param(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 4000 bytes. Error code 12 (Cannot allocate memory)",
            4000,
            id="the host",
        ),
        pytest.param("Unable to allocate 2.00 KiB for an array with shape", 2048, id="numpy"),
    ],
)
def test_amounts_are_read_from_the_text(text, tried):
    assert is_out_of_memory("RuntimeError", text)
    assert amounts_in(text)["tried_bytes"] == tried


@pytest.mark.parametrize(
    ("error", "text", "expected"),
    [
        ("RuntimeError", "Connection closed by peer [127.0.0.1]:14745", True),
        ("RuntimeError", "[..] Timed out waiting 1800000ms for recv operation to complete", True),
        ("DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp:2251, remote process", True),
        ("ProcessRaisedException", "-- Process 1 terminated with the following error", True),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", True),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x5 and 4x4)", False),
        ("ValueError", "closed", False),
    ],
)
def test_what_only_says_that_another_has_gone_is_told_apart(error, text, expected):
    assert is_consequence(error, text) is expected


def test_a_forked_child_keeps_nothing_of_its_parents(traced, job):
    job.refuses.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        job.step()
    traced.session.failures.forget()
    assert traced.session.failures._last is None


def test_a_secret_is_masked_before_a_long_text_is_cut():
    """Half a token has no form to be known by."""
    text = "no " * (failing.MAX_MESSAGE // 3 - 2) + "hf_" + "q1" * 20
    message = failing.describe(ValueError(text)).message
    assert len(message) <= failing.MAX_MESSAGE
    assert "q1" not in message


class _Full(torch.nn.Linear):
    """A layer that runs out of memory when it is told to, in evaluation or not."""

    is_full = False

    def forward(self, inputs):
        if self.is_full:
            torch.empty(1 << 50, dtype=torch.uint8)
        return super().forward(inputs)


def failure_of(traced):
    traced.finish()
    return next(said for said in traced.messages() if said["kind"] == "failure")


def test_memory_that_runs_out_in_validation_is_told_as_evaluation(traced):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), _Full(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 2)).sum().backward()
        optimizer.step()
    model[1].is_full = True
    model.eval()
    with torch.no_grad(), pytest.raises(RuntimeError, match="allocate"):
        model(torch.randn(2, 2))
    found = failure_of(traced)
    assert (found["phase"], found["module"]) == ("evaluation", "1")


def test_memory_that_runs_out_for_an_optimizer_s_state_names_the_layer(traced, monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(torch.randn(2, 2)).sum().backward()
    make = torch.zeros_like

    def zeros_like(like, **options):
        if like is model[1].weight:
            torch.empty(1 << 50, dtype=torch.uint8)
        return make(like, **options)

    monkeypatch.setattr(torch, "zeros_like", zeros_like)
    with pytest.raises(RuntimeError, match="allocate") as raised:
        optimizer.step()
    walk = failing._walk(raised.value)
    assert walk.phase == "optimizer" and walk.parameter is model[1].weight


def test_what_a_lazy_layer_has_not_made_yet_is_not_counted():
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4))
    assert footprint([model], []).parameter_bytes == 4 * (16 + 4)


def test_of_what_is_spread_over_ranks_this_rank_s_part_is_counted(one_of_several_ranks):
    model = nn.Sequential(nn.Linear(8, 16, bias=False))
    model = parallelize_module(model, one_of_several_ranks, {"0": ColwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    found = footprint([model], [optimizer])
    wanted = 8 * 16 * 4 // one_of_several_ranks.size()
    assert (found.parameter_bytes, found.gradient_bytes, found.optimizer_bytes) == (wanted,) * 3


def test_of_a_sparse_gradient_what_it_holds_is_counted():
    model = nn.Embedding(1000, 4, sparse=True)
    model(torch.tensor([3, 5])).sum().backward()
    assert footprint([model], []).gradient_bytes == 2 * (8 + 4 * 4)


class _FullAtBackward(torch.autograd.Function):
    """Runs out of memory in the backward pass."""

    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        torch.empty(1 << 50, dtype=torch.uint8)


class _Recurrent(nn.Module):
    """Takes its input with the batch in the second dimension, by name."""

    def __init__(self):
        super().__init__()
        self.inner = _Full(2, 2)

    def forward(self, *, inputs):
        return self.inner(inputs)


def memory_at_failure(traced, model, loader, fail):
    """What is known of the memory when it runs out after three steps of training."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fetched = iter(loader)
    for _ in range(3):
        batch = next(fetched)
        optimizer.zero_grad()
        fail.call(model, batch).sum().backward()
        optimizer.step()
    with pytest.raises(RuntimeError, match="allocate"):
        fail(model, fetched)
    return failure_of(traced)["memory"]


class _Fail:
    """Runs out of memory in some way."""

    def __init__(self, name, call=lambda model, batch: model(batch)):
        self.name, self.call = name, call

    def __call__(self, model, fetched):
        getattr(self, self.name)(model, fetched)

    def training(self, model, fetched):
        batch = next(fetched)
        _fill(model)
        self.call(model, batch)

    def backward(self, model, fetched):
        _FullAtBackward.apply(self.call(model, next(fetched))).sum().backward()

    def micro_batch(self, model, fetched):
        part = next(fetched)[:3]
        _fill(model)
        self.call(model, part)

    def validation(self, model, fetched):
        _fill(model.eval())
        with torch.no_grad():
            for batch in loader_of(64):
                self.call(model, batch)

    def validation_of_all(self, model, fetched):
        next(fetched)
        _fill(model.eval())
        with torch.no_grad():
            self.call(model, torch.randn(100, 2))

    def validation_with_graph(self, model, fetched):
        _fill(model.eval())
        for batch in loader_of(64):
            self.call(model, batch)


def _fill(model):
    for module in model.modules():
        module.is_full = True


def loader_of(batch):
    return torch.utils.data.DataLoader(torch.randn(400, 2), batch)


@pytest.mark.parametrize(
    ("way", "samples", "elements", "is_graph_kept"),
    [
        pytest.param("training", 8, 16, False, id="in training"),
        pytest.param("backward", 8, None, False, id="in backward"),
        pytest.param("micro_batch", 3, 6, False, id="of one of several batches in a step"),
        pytest.param("validation", 64, 128, False, id="in validation"),
        pytest.param("validation_of_all", 100, 200, False, id="in validation without a loader"),
        pytest.param("validation_with_graph", 64, 128, True, id="in validation without no_grad"),
    ],
)
def test_the_batch_that_did_not_fit_is_told(traced, way, samples, elements, is_graph_kept):
    model = nn.Sequential(nn.Linear(2, 2), _Full(2, 2))
    found = memory_at_failure(traced, model, loader_of(8), _Fail(way))
    told = found["batch_samples"], found["input_elements"], found["is_graph_kept"]
    assert told == (samples, elements, is_graph_kept)


def test_a_batch_that_is_not_in_the_first_dimension_is_the_loaders(traced):
    fail = _Fail("training", lambda model, batch: model(inputs=batch.expand(4, 8, 2)))
    found = memory_at_failure(traced, _Recurrent(), loader_of(8), fail)
    assert (found["batch_samples"], found["input_elements"]) == (8, 64)


def test_without_a_loader_the_batch_is_the_first_dimension(traced):
    found = memory_at_failure(
        traced, nn.Sequential(_Full(2, 2)), [torch.randn(5, 2)] * 4, _Fail("training")
    )
    assert found["batch_samples"] == 5
