"""Layers have the names that their author gave them, whatever wraps the model or a part of it."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils import parametrizations

from processes import AT_ONCE, TRACEML, run
from traceml.store.layer_records import read_layers
from traceml.trace.deep.bursts import FIRST_BURST
from traceml.trace.deep.layer_names import layers_of

STEPS = FIRST_BURST + 4
LATE_MS = 40
"""What rank 1 of a job takes longer in each backward pass, in which rank 0 waits for it …"""
CLEARLY = 0.7
"""… for so much of it at least: the rest is noise of a machine that is busy with other things."""
SCRIPT = Path(__file__).parents[2] / "distributed_training.py"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.inner(inputs).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.last = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.last(self.block(inputs))


NAMES = ["", "block", "block.inner", "last"]
KINDS = ["Model", "Block", "Linear", "Linear"]


class Lora(nn.Module):
    """Wraps a layer as adapters do: its own parts are layers, under the names it gives them."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.down = base, nn.Linear(4, 1, bias=False)
        self.up = nn.Linear(1, 4, bias=False)

    def forward(self, inputs):
        return self.base_layer(inputs) + self.up(self.down(inputs))


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def deep(begin_deep):
    """A session with the deep profile; what it wrote about a model, when it is called with it."""
    written = begin_deep()

    def trained(model):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(STEPS):
            loss = model(torch.randn(2, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return written()

    return trained


def data_parallel(model):
    return DataParallel(model)  # on a CPU it calls the model


def distributed(model):
    return DistributedDataParallel(model)


def distributed_part(model):
    model.block = DistributedDataParallel(model.block)
    return model


def checkpointed_part(model):
    model.block = checkpoint_wrapper(model.block)
    return model


def sharded(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model.block = FullyShardedDataParallel(model.block, device_id=torch.device("cpu"))
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def sharded_in_place(model):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.block)
    return fully_shard(model)


def fabric(model):
    lightning = pytest.importorskip("lightning_fabric")
    return lightning.Fabric(accelerator="cpu", devices=1).setup(model)


def accelerated(model):
    accelerate = pytest.importorskip("accelerate")
    return accelerate.Accelerator(cpu=True).prepare(model)


@pytest.mark.parametrize(
    "wrap",
    [
        *(data_parallel, distributed, distributed_part, checkpointed_part),
        *(sharded, sharded_in_place, accelerated, fabric),
    ],
)
def test_wrappers_add_neither_layers_nor_calls(deep, one_rank, wrap):
    found = deep(wrap(Model()))
    assert (list(found.names), list(found.kinds)) == (NAMES, KINDS)
    assert found.calls.tolist() == [[1] * 4] * 2
    for phase in ("host_forward", "host_backward"):
        assert (found.times_ns[phase] > 0).any(axis=0)[[1, 2, 3]].all(), phase
    held = found.held_bytes
    assert held["parameters"].sum() == held["gradients"].sum() == 2 * 4 * (4 * 4 + 4)
    assert np.nansum(held["saved"]) > 0  # what is checkpointed is not known
    assert not found.notes


def test_a_parametrized_layer_keeps_its_class(deep):
    model = Model()
    parametrizations.weight_norm(model.last)
    found = deep(model)
    assert (found.names[3], found.kinds[3]) == ("last", "Linear")
    assert found.calls[0, 3] == 1
    assert 3 in found.of_library and 1 not in found.of_library


def test_parts_of_an_adapter_are_layers(deep):
    model = Model()
    model.last = Lora(model.last)
    found = deep(model)
    assert list(found.names[3:]) == ["last", "last.base_layer", "last.down", "last.up"]
    assert found.calls[0].tolist() == [1] * 7


def test_models_of_one_class_have_the_script_s_names(monkeypatch):
    one, other, third = (nn.Sequential(nn.Linear(2, 2)) for _ in range(3))
    for name, value in (("_hidden", one), ("D", DataParallel(one)), ("G", other), ("again", other)):
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    names = [layer.name for layer in layers_of([one, other, third, Model()])]
    assert names[:6] == ["D", "D.0", "G", "G.0", "Sequential", "Sequential.0"]
    assert names[6] == "Model"
    assert [layer.name for layer in layers_of([one])] == ["", "0"]


def test_a_layer_of_a_class_made_by_fsdp_is_its_author_s(one_rank):
    layers = layers_of([sharded_in_place(Model())])
    assert [layer.is_of_library for layer in layers] == [False, False, True, True]


# Real jobs


class DeepJob:
    """What two ranks have learnt, and what each wrote about its layers."""

    def __init__(self, kind, cwd, traced):
        options = ["--profile=deep"] if traced else ["--disable-traceml"]
        late = ["--late-rank", 1, "--delay-ms", LATE_MS]
        words = ["--kind", kind, "--fork-ranks", 2, "--steps", 24, *late]
        cwd.mkdir()
        done = run([TRACEML, "run", *options, SCRIPT, "--args", *words], cwd)
        assert done.status == 0, done.stderr
        self.learnt = sorted(re.findall(r"rank \d+: [0-9a-f]{64}", done.stdout))
        self.ranks = read_layers(done.folder) if traced else ()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deep_jobs")
    wanted = [(kind, traced) for kind in ("ddp", "fsdp2") for traced in (True, False)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = {
            each: pool.submit(DeepJob, each[0], folder / str(number), each[1])
            for number, each in enumerate(wanted)
        }
        return {each: job.result() for each, job in made.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shards"), [("ddp", 1), ("fsdp2", 2)])
def test_two_ranks_have_their_layers_and_learn_the_same(jobs, kind, shards):
    traced, plain = jobs[kind, True], jobs[kind, False]
    assert len(traced.learnt) == 2 and traced.learnt == plain.learnt
    assert len(traced.ranks) == 2
    for found in traced.ranks:
        linears = ["first", "branches.0", "branches.1", "last"]
        assert set(found.names) == {"", "branches", "normal", *linears}
        assert found.kinds[0] == "Net" and not found.notes
        places = [found.names.index(name) for name in linears]
        whole = 4 * (32 * 32 + 32)
        for what in ("parameters", "gradients"):
            assert found.held_bytes[what][places].tolist() == [whole // shards] * 4
        assert (found.times_ns["host_backward"][:, places] > 0).all()
        assert found.norms.steps and np.isfinite(found.norms.values[:, places]).all()
        assert (found.norms.values[:, places] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_waiting_for_the_late_rank_is_in_the_time_of_no_layer(jobs, kind):
    """Rank 0 waits in every backward pass for rank 1, which sleeps there."""
    found = jobs[kind, True].ranks
    backward_ms, waits_ms = (
        sorted(whole_ms(each, phase) for each in found) for phase in ("backward", "communication")
    )
    assert backward_ms[1] - backward_ms[0] > CLEARLY * LATE_MS
    assert waits_ms[1] - waits_ms[0] > CLEARLY * LATE_MS
    longest = max(found, key=lambda each: whole_ms(each, "backward"))
    assert whole_ms(longest, "communication") == waits_ms[0]


def whole_ms(found, phase):
    """The median over steps of what a rank takes, in layers or not."""
    in_layers = found.times_ns.get(f"host_{phase}", np.zeros((1, 1)))
    whole_ns = np.nansum(in_layers, axis=1) + np.nan_to_num(found.outside_ns[f"host_{phase}"])
    return float(np.median(whole_ns)) / 1e6
