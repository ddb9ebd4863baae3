"""A script behaves the same with and without us: tracebacks, hooks of its own, odd objects."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.fx
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import traceml
from traceml.trace import copies, synchronising
from traceml.trace.spending import Spending

FAILING = """\
import io, json, logging, pathlib, re, sys, traceback

sys.path[:0] = [{source!r}]
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
import traceml

if sys.argv[1:]:
    from traceml.trace import copies, current, hooks, synchronising
    from traceml.trace.spending import Spending

    session = current.start(pathlib.Path(sys.argv[1]), None, None)
    hooks.install(session)
    if not torch.version.cuda:  # as they are set where torch knows a GPU
        copies.watch(session, Spending(session))
        synchronising.watch(session, Spending(session))

class Inner(nn.Module):
    error = None

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, inputs):
        if Inner.error is not None:
            raise Inner.error
        return inputs * self.weight

class Data(torch.utils.data.Dataset):
    def __init__(self, error=None):
        self.error = error

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.error is not None:
            raise self.error
        return torch.ones(4)

class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("in backward")

class FailingSampler(torch.utils.data.Sampler):
    def __iter__(self):
        raise ValueError("in the sampler")

    def __len__(self):
        return 1

class FailingHandler(logging.Handler):
    def handle(self, record):
        raise ValueError("in a log handler")

model = nn.Sequential(Inner(), nn.Sequential(Inner()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(inputs=None):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4) if inputs is None else inputs).sum()
    loss.backward()
    optimizer.step()

def fail_in_forward(error):
    Inner.error = error
    try:
        step()
    finally:
        Inner.error = None

def forward():
    fail_in_forward(ValueError("in forward"))

def interrupted_forward():
    fail_in_forward(KeyboardInterrupt())

def raised_from():
    try:
        forward()
    except ValueError as error:
        raise RuntimeError("no more") from error

def raised_while_handling():
    try:
        forward()
    except ValueError:
        fetch()

def other_model():
    other = nn.Sequential(Inner())
    Inner.error = ValueError("in another model")
    try:
        other(torch.ones(2, 4))
    finally:
        Inner.error = None

def backward():
    FailsInBackward.apply(model(torch.ones(2, 4))).sum().backward()

def backward_of_nothing():
    torch.ones(()).backward()

def gradient_of_nothing():
    torch.autograd.grad(torch.ones(()), torch.ones(()))

def closure():
    def fail():
        backward()

    optimizer.step(fail)

def closure_by_name():
    def fail():
        raise ValueError("in a closure")

    optimizer.step(closure=fail)

def fetch():
    for batch in DataLoader(Data(ValueError("in the dataset"))):
        pass

def collate():
    def fail(samples):
        raise ValueError("in collate")

    next(iter(DataLoader(Data(), collate_fn=fail)))

def start_of_a_loader():
    iter(DataLoader(Data(), batch_sampler=FailingSampler(), num_workers=0)).__next__()

def end_of_a_loader():
    iterator = iter(DataLoader(Data(), batch_size=8))
    next(iterator)
    next(iterator)

def save():
    torch.save(lambda: None, io.BytesIO())

def copy_to_nowhere():
    torch.ones(2).to("nowhere")

def copy_of_another_size():
    torch.ones(2).copy_(torch.ones(3))

def item_of_many():
    torch.ones(2).item()

def truth_of_many():
    bool(torch.ones(2))

def log():
    logger = logging.getLogger("failing")
    logger.propagate = False
    logger.addHandler(FailingHandler())
    logger.warning("a record")

def collective():
    dist.all_reduce(torch.ones(1))

def ddp():
    nn.parallel.DistributedDataParallel(model)

@traceml.trace_time("region")
def region():
    raise ValueError("in a region")

def explicit_step():
    with traceml.trace_step(model), traceml.trace_time("inside"):
        forward()

CASES = (
    forward, interrupted_forward, raised_from, raised_while_handling, other_model, backward,
    backward_of_nothing, gradient_of_nothing, closure, closure_by_name, fetch, collate,
    start_of_a_loader, end_of_a_loader, save, copy_to_nowhere, copy_of_another_size,
    item_of_many, truth_of_many, log, collective, ddp, region, explicit_step,
)

for batch in DataLoader(Data(), batch_size=2):
    step(batch)
shown = {{}}
ADDRESS = re.compile("0x[0-9a-f]+")  # another one in each process
for case in CASES:
    try:
        case()
        shown[case.__name__] = "nothing was raised"
    except BaseException:
        shown[case.__name__] = ADDRESS.sub("0x", traceback.format_exc())
print(json.dumps(shown))

def hook(kind, error, frames):
    # The user's own way of showing what ends the script.
    sys.stderr.write("the user's hook: " + "".join(traceback.format_exception(kind, error, frames)))

sys.excepthook = hook
forward()
"""


class Ran:
    def __init__(self, script, *arguments):
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.stdout, done.stderr
        self.shown = json.loads(done.stdout)
        lines = done.stderr.splitlines()
        self.stderr = [line for line in lines if not line.startswith("traceml: ")]
        self.ours = [line for line in lines if line.startswith("traceml: ")]
        self.status = done.returncode


@pytest.fixture(scope="module")
def plain_and_traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failing")
    script = folder / "train.py"
    script.write_text(FAILING.format(source=str(Path(traceml.__file__).parents[1])))
    return Ran(script), Ran(script, str(folder))


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 puts a frame back at the bare raise"
)
def test_tracebacks_of_the_users_errors_read_as_without_us(plain_and_traced):
    plain, traced = plain_and_traced
    assert "nothing was raised" not in plain.shown.values()
    assert len(plain.shown) == 24
    for case, shown in plain.shown.items():
        assert traced.shown[case] == shown, case
        assert "traceml" not in shown, case


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 puts a frame back at the bare raise"
)
def test_the_error_that_ends_a_script_goes_to_the_users_own_hook_as_without_us(plain_and_traced):
    plain, traced = plain_and_traced
    assert plain.status == traced.status == 1
    assert plain.stderr[0].startswith("the user's hook: ")
    assert traced.stderr == plain.stderr
    assert traced.ours[0].startswith("traceml: rank 0 failed at step ")
    assert " in forward, module 0: ValueError: in forward" in traced.ours[0]


# Objects that fail whatever they are asked


class Hostile:
    """Fails whatever it is asked for."""

    def __getattr__(self, name):
        raise ZeroDivisionError(name)

    def __str__(self):
        raise ZeroDivisionError

    __repr__ = __len__ = __bool__ = __iter__ = __hash__ = __eq__ = __float__ = __int__ = __str__


class HostileList(list):
    """A batch that can be taken apart, and nothing else."""

    __len__ = __bool__ = Hostile.__len__


class HostileError(Exception):
    __str__ = Hostile.__str__


class HostileTensor(torch.Tensor):
    """Refuses to say anything about itself."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if "__get__" in str(function):
            raise ZeroDivisionError("nobody asks for my attributes")
        return super().__torch_function__(function, types, args, kwargs or {})


class OddModel(nn.Module):
    """`training` is its own matter."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)

    @property
    def training(self):
        raise ZeroDivisionError("not yours")

    @training.setter
    def training(self, value):
        pass

    def forward(self, inputs):
        return self.inner(inputs)


class OddlyTraining(OddModel):
    training = "pre-training"


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = 0
    for (inputs,) in batches:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        seen += 1
    return seen


def make_loader(**options):
    return DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=4, **options)


def collate_to_a_hostile_batch(samples):
    return HostileList([torch.stack([sample[0] for sample in samples])])


def test_a_batch_that_cannot_be_asked_anything(traced):
    loader = make_loader(collate_fn=collate_to_a_hostile_batch)
    assert train(nn.Linear(4, 1), loader) == 4
    assert traced.session.count_steps() == 4
    assert traced.session._failures == 0  # none of the batches was asked for its size


@pytest.mark.parametrize("kind", [OddModel, OddlyTraining])
def test_a_model_whose_mode_is_something_else(traced, kind):
    assert train(kind(), make_loader()) == 4


def test_a_graph_of_torch_fx_has_the_layers_that_it_has_without_us(traced):
    """Layers of the class of a model that is traced, too: fx replaces the calls of all modules."""
    other = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    before = torch.fx.symbolic_trace(other).code
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert torch.fx.symbolic_trace(other).code == before


def test_a_dataset_that_cannot_be_asked_anything(traced):
    class Data(Hostile):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return (torch.ones(4),)

        def __getattr__(self, name):
            raise AttributeError(name)  # torch itself asks for some

    sampler = torch.utils.data.SequentialSampler(range(8))
    assert train(nn.Linear(4, 1), DataLoader(Data(), sampler=sampler, batch_size=2)) == 4
    assert len(traced.complete()) == 4


def test_an_error_that_cannot_be_shown_passes_as_it_is(traced):
    class Net(nn.Linear):
        def forward(self, inputs):
            raise HostileError

    model = nn.Linear(4, 1)
    train(model, make_loader())
    model.__class__ = Net
    for _ in range(2):
        with pytest.raises(HostileError):
            train(model, make_loader())
    assert traced.session._failures == 0


def test_what_the_script_names_may_be_anything(traced):
    with traceml.trace_step(Hostile()), traceml.trace_time(Hostile()):
        pass
    assert traceml.trace_model_instance(hostile := Hostile()) is hostile
    assert train(nn.Linear(4, 1), make_loader()) == 4
    assert traced.session.active


def test_tensors_of_the_users_own_kind_are_asked_nothing_that_can_fail_the_script(traced):
    session = traced.session
    if not torch.version.cuda:
        copies.watch(session, Spending(session))
        synchronising.watch(session, Spending(session))
    hostile = torch.ones(1).as_subclass(HostileTensor)
    assert hostile.item() == 1.0
    assert float(hostile) == 1.0
    assert hostile.tolist() == [1.0]
    hostile.copy_(torch.zeros(1))
    assert type(hostile.to("cpu")) is HostileTensor
