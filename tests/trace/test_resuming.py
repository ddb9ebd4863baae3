"""What a process loads before its first step tells from which step it goes on."""

import importlib

import pytest
import torch
from torch import nn

from traceml.store import logged

LOADERS = (
    (torch, "load"),
    (nn.Module, "load_state_dict"),
    (torch.optim.Optimizer, "load_state_dict"),
)


def train(model, optimizer, steps=2):
    for _ in range(steps):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(kind, steps, **options):
    """A model and an optimizer that have taken so many steps, untraced."""
    model = nn.Linear(3, 3)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    train(model, optimizer, steps)
    return model, optimizer


def resumption(traced):
    traced.finish()
    return logged.resumption(traced.messages())


def test_a_run_that_loads_nothing_begins_anew(traced):
    trained(torch.optim.SGD, 2)
    found = resumption(traced)
    assert not found.has_loaded
    assert found.step is None


@pytest.mark.parametrize("foreach", [False, True])
def test_the_optimizers_state_says_how_many_steps_it_had_taken(traced_in, tmp_path, foreach):
    model, optimizer = trained(torch.optim.AdamW, 7, foreach=foreach)
    traced = traced_in(tmp_path)
    again = torch.optim.AdamW(model.parameters(), lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    train(model, again)
    assert resumption(traced).step == 7


def test_a_file_that_names_its_step_says_it_where_the_optimizer_does_not(traced_in, tmp_path):
    model, optimizer = trained(torch.optim.SGD, 3, momentum=0.9)
    saved = {"model": model.state_dict(), "opt": optimizer.state_dict(), "iter_num": 3}
    torch.save(saved, tmp_path / "checkpoint.pt")
    traced = traced_in(tmp_path)
    content = torch.load(tmp_path / "checkpoint.pt")
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(state_dict=content["opt"])
    train(model, optimizer)
    assert resumption(traced).step == 3


@pytest.mark.parametrize(
    "saved",
    [
        pytest.param({"weights": 1}, id="no step"),
        pytest.param({"step": 4, "global_step": 16}, id="two that differ"),
        pytest.param({"step": "later"}, id="no number"),
        pytest.param({"step": -1}, id="none yet"),
        pytest.param({"step": float("nan")}, id="not a number"),
        pytest.param([1, 2], id="no dictionary"),
    ],
)
def test_a_file_that_does_not_say_is_loaded_and_no_more(traced_in, tmp_path, saved):
    torch.save(saved, tmp_path / "checkpoint.pt")
    traced = traced_in(tmp_path)
    torch.load(tmp_path / "checkpoint.pt")
    trained(torch.optim.SGD, 1)
    found = resumption(traced)
    assert found.has_loaded
    assert found.step is None


def test_the_loaders_are_torchs_own_again_after_the_first_step(traced_in, tmp_path):
    originals = [vars(owner)[name] for owner, name in LOADERS]
    traced = traced_in(tmp_path)
    assert [vars(owner)[name] for owner, name in LOADERS] != originals
    model, optimizer = trained(torch.optim.Adam, 1)
    assert [vars(owner)[name] for owner, name in LOADERS] == originals
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer)
    assert not resumption(traced).has_loaded


def test_what_fails_to_load_fails_as_before_and_shows_no_frame_of_ours(traced, tmp_path):
    with pytest.raises(FileNotFoundError) as found:
        torch.load(tmp_path / "nothing.pt")
    assert not [entry for entry in found.traceback if "traceml/trace" in str(entry.path)]
    with pytest.raises(RuntimeError, match="Missing key"):
        nn.Linear(2, 2).load_state_dict({})


def test_the_launchers_count_of_restarts_is_told(traced_in, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    traced = traced_in(tmp_path)
    trained(torch.optim.SGD, 1)
    assert resumption(traced).restart == 2


def resume_by_torchs_checkpoint(model, optimizer, given=None):
    """Resume as torch's tutorials do: take the state, have it loaded into, and set it."""
    state = importlib.import_module("torch.distributed.checkpoint.state_dict")
    of_model, of_optimizer = state.get_state_dict(model, optimizer)
    for name, value in (given or {}).items():
        of_optimizer["state"][name]["step"].copy_(value)
    state.set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)


@pytest.mark.parametrize("hooks_in", ["C", "Python"], indirect=True)
def test_a_state_that_torch_makes_to_load_into_is_no_step_of_the_training(traced_in, tmp_path):
    traced = traced_in(tmp_path)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    steps = torch.tensor(500.0)
    resume_by_torchs_checkpoint(model, optimizer, {"weight": steps, "bias": steps})
    train(model, optimizer, 4)
    assert len(traced.complete()) == 4
    found = logged.resumption(traced.messages())
    assert found.has_loaded
    assert found.step == 500


def test_a_second_optimizer_is_told_apart_from_its_first_state_too(traced):
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    kept = torch.optim.AdamW(first.parameters(), lr=0.1)
    train(first, kept, 2)
    other = torch.optim.AdamW(second.parameters(), lr=0.1)
    resume_by_torchs_checkpoint(second, other)
    train(first, kept, 3)
    assert len(traced.complete()) == 5


def test_what_torchs_checkpoint_loads_in_place_is_seen(traced_in, tmp_path):
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    model = nn.Linear(3, 3)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "saved")
    traced = traced_in(tmp_path)
    checkpoint.load({"model": model.state_dict()}, checkpoint_id=tmp_path / "saved")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert resumption(traced).has_loaded
