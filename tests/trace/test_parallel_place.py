"""A rank says where it stands in the device mesh: read once, from whatever the script uses."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from traceml.model.parallel_place import NO_PLACE
from traceml.store import logged
from traceml.trace import current, hooks
from traceml.trace.parallel_place import READ_AFTER_STEPS, PlaceReader


@pytest.fixture
def rank_five_of_eight():
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield
    dist.destroy_process_group()


def train(steps=2, **held):
    """A training loop whose frame holds these things."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return held


def place_of(traced):
    traced.finish()
    return logged.parallel_place(traced.messages())


def test_a_mesh_gives_names_and_coordinates(traced, rank_five_of_eight):
    mesh = init_device_mesh("cpu", (2, 1, 4), mesh_dim_names=("dp", "cp", "tp"))
    _ = mesh["tp"], mesh["dp"]  # slices are meshes too, and say nothing new
    train()
    place = place_of(traced)
    assert place.label == "dp 1, tp 1"
    assert [each.size for each in place.dimensions] == [2, 4]


def test_experts_have_a_mesh_of_their_own(traced, rank_five_of_eight):
    init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    init_device_mesh("cpu", (8,), mesh_dim_names=("ep",))
    train()
    assert place_of(traced).label == "dp 1, tp 1, ep 5"


def test_a_mesh_from_before_tracing_is_known_by_its_groups(tmp_path, rank_five_of_eight):
    init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    session = current.start(tmp_path, None, None)
    hooks.install(session)
    sent = []
    session.messages.write = sent.append
    train()
    current.end()
    assert logged.parallel_place(sent).label == "dp 1, tp 1"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        pytest.param("dp", "", id="copies or shards"),
        pytest.param(None, "", id="no name, as FSDP2 makes one"),
        pytest.param("tp", "tp 5", id="parts of layers"),
    ],
)
def test_a_mesh_of_all_ranks_says_something_where_it_splits_the_model(
    traced, rank_five_of_eight, name, label
):
    init_device_mesh("cpu", (8,), mesh_dim_names=None if name is None else (name,))
    train()
    assert place_of(traced).label == label


def test_a_plain_job_says_how_large_its_model_is(traced, rank_five_of_eight):
    dist.new_group([4, 5])  # nobody says what it is for
    train()
    place = place_of(traced)
    assert (place.label, place.model) == ("", (1, 2))  # a layer with its weight and bias


def test_a_rank_that_trains_alone_says_nothing(traced):
    train()
    assert place_of(traced) == NO_PLACE
    assert "place" not in {message["kind"] for message in traced.messages()}


def test_described_groups_are_dimensions(traced, rank_five_of_eight):
    dist.new_group([4, 5, 6, 7], group_desc="experts")
    dist.new_group([1, 5], group_desc="replicas")
    train()
    assert place_of(traced).label == "experts 1, replicas 1"


@pytest.mark.parametrize("as_schedule", [False, True], ids=["a stage", "a schedule"])
def test_the_stages_are_found_where_the_loop_holds_them(traced, rank_five_of_eight, as_schedule):
    from torch.distributed.pipelining import stage as stages

    stage = object.__new__(stages.PipelineStage)
    stage.__dict__.update(stage_index=5)
    trainer = SimpleNamespace(schedule=SimpleNamespace(_stages=[stage]))
    train(held=trainer.schedule if as_schedule else stage)
    place = place_of(traced)
    assert (place.stages, place.label) == ((5,), "stage 5")


def test_a_class_that_cannot_be_hashed_costs_nothing(traced, rank_five_of_eight):
    from torch.distributed.pipelining import stage as stages

    class Unhashable(type):
        __hash__ = None

    stage = object.__new__(stages.PipelineStage)
    stage.__dict__.update(stage_index=5)
    train(before=Unhashable("Odd", (), {})(), held=stage)
    assert place_of(traced).stages == (5,)


def test_megatrons_own_functions_are_asked(traced, monkeypatch):
    def missing():
        raise AssertionError("expert model parallel group is not initialized")

    answers = {
        "tensor_model_parallel": (1, 2),
        "pipeline_model_parallel": (3, 4),
        "data_parallel": (0, 1),
    }
    module = SimpleNamespace(model_parallel_is_initialized=lambda: True)
    for name, (at, size) in answers.items():
        setattr(module, f"get_{name}_rank", lambda at=at: at)
        setattr(module, f"get_{name}_world_size", lambda size=size: size)
    module.get_expert_model_parallel_rank = missing
    module.get_expert_model_parallel_world_size = missing
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", module)
    train()
    place = place_of(traced)
    assert place.label == "pp 3, tp 1"
    assert place.pipeline == (3,)


def test_the_grid_of_a_deepspeed_pipeline_is_read(traced, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace())
    model = nn.Linear(2, 2)
    model.grid = SimpleNamespace(
        stage_id=1, pipe_parallel_size=2, data_parallel_id=2, data_parallel_size=4
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert place_of(traced).label == "pp 1, dp 2"


def test_it_is_read_twice_and_then_no_more(traced, rank_five_of_eight, monkeypatch):
    readings = []
    read = PlaceReader.place
    monkeypatch.setattr(PlaceReader, "place", lambda reader: readings.append(1) or read(reader))
    init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    train(READ_AFTER_STEPS[-1] + 3)
    traced.finish()
    assert len(readings) == len(READ_AFTER_STEPS)
    kinds = [message["kind"] for message in traced.messages()]
    assert kinds.count("place") == 1


def test_a_failure_of_ours_never_reaches_a_mesh(traced, rank_five_of_eight, monkeypatch):
    train()
    monkeypatch.setattr(DeviceMesh, "get_coordinate", lambda mesh: 1 / 0)
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    assert mesh.mesh_dim_names == ("dp", "tp")
    with pytest.raises(AssertionError, match="division"):
        traced.finish()


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "place"},
        {"kind": "place", "dimensions": "dp"},
        {"kind": "place", "dimensions": [["dp", -1, 2]]},
        {"kind": "place", "dimensions": [["dp", 0, 2]] * 9},
        {"kind": "place", "dimensions": [], "stages": ["x"]},
    ],
    ids=["nothing in it", "no list", "a negative coordinate", "too many", "a stage of no number"],
)
def test_a_damaged_place_is_none(message):
    assert logged.parallel_place([message]).label == ""
