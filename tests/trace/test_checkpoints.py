"""Saving is seen whoever saves; once, and only where it holds up the training."""

import ast
import importlib.util
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as distributed_checkpoint
from safetensors.torch import save_file as bound_early
from torch import nn

from traceml.trace import checkpoints

SAVING_S = 0.05


class Loop:
    def __init__(self):
        self.model = nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def steps(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 64)).mean().backward()
            self.optimizer.step()

    @property
    def state(self):
        return dict(self.model.state_dict())


@pytest.fixture
def saved(traced):
    """Trains, saves, trains on; what was seen of the saving and how long it took, in seconds."""

    def save_by(function):
        loop = Loop()
        loop.steps(3)
        began = time.perf_counter()
        function(loop)
        took_s = time.perf_counter() - began
        loop.steps(3)
        steps = traced.complete()
        assert len(steps) == 6
        return steps["checkpoint_ns"].sum() * 1e-9, took_s

    return save_by


SAVERS = {
    "torch.save": lambda loop, path: torch.save(loop.state, path / "model.pt"),
    "safetensors": lambda loop, path: safetensors.torch.save_file(loop.state, path / "model.st"),
    "safetensors, a model": lambda loop, path: safetensors.torch.save_model(
        loop.model, str(path / "model.st")
    ),
    "safetensors, imported early": lambda loop, path: bound_early(loop.state, path / "model.st"),
    "torch.distributed.checkpoint": lambda loop, path: distributed_checkpoint.save(
        loop.state, checkpoint_id=str(path / "sharded")
    ),
}


@pytest.mark.parametrize("save", SAVERS.values(), ids=SAVERS)
def test_a_saver_is_seen(saved, tmp_path, save):
    seen_s, took_s = saved(lambda loop: save(loop, tmp_path))
    assert 0 < seen_s <= took_s
    assert list(tmp_path.glob("*model*")) or (tmp_path / "sharded").is_dir()


def test_a_saver_in_another_thread_holds_up_nobody(saved, tmp_path):
    def save_aside(loop):
        thread = threading.Thread(target=torch.save, args=(loop.state, tmp_path / "model.pt"))
        thread.start()
        thread.join()

    assert saved(save_aside)[0] == 0


@pytest.fixture
def accelerate_not_loaded(monkeypatch):
    """Before tracing begins: another test may have imported the real one into this process."""
    monkeypatch.delitem(sys.modules, "accelerate.accelerator", raising=False)


def test_a_library_that_is_loaded_later_is_seen_and_a_saver_in_a_saver_counts_once(
    accelerate_not_loaded, traced, tmp_path, monkeypatch
):
    class Accelerator:
        def save_state(self, state):
            time.sleep(SAVING_S)
            torch.save(state, tmp_path / "model.pt")
            return tmp_path

    module = types.ModuleType("accelerate.accelerator")
    module.Accelerator = Accelerator
    loop = Loop()
    loop.steps(2)
    monkeypatch.setitem(sys.modules, "accelerate.accelerator", module)
    loop.steps(2)  # it is noticed where a step ends
    began = time.perf_counter()
    assert Accelerator().save_state(loop.state) == tmp_path
    took_s = time.perf_counter() - began
    loop.steps(2)
    steps = traced.complete()
    assert len(steps) == 6
    assert SAVING_S <= steps["checkpoint_ns"].sum() * 1e-9 <= took_s


def test_savers_are_as_they_were_afterwards(traced):
    before = safetensors.torch.save_file.__wrapped__
    assert torch.save.__name__ == "save"
    traced.finish()
    assert safetensors.torch.save_file is before
    assert not hasattr(torch.save, "__wrapped__")


@pytest.mark.parametrize(
    ("module", "kind", "names"),
    [entry for entry in checkpoints.SAVERS if importlib.util.find_spec(entry[0].split(".")[0])],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_savers_that_are_known_exist_where_the_library_is_installed(module, kind, names):
    """Read, not imported: some of these libraries take many seconds to load."""
    package, _, rest = module.partition(".")
    root = Path(importlib.util.find_spec(package).origin).parent
    place = root.joinpath(*rest.split(".")).with_suffix(".py")
    place = place if place.is_file() else root.joinpath(*rest.split("."), "__init__.py")
    tree = ast.parse(place.read_text())
    owner = tree if kind is None else _class_of(tree, kind)
    found = {each.name for each in ast.walk(owner) if isinstance(each, ast.FunctionDef)}
    found |= {
        alias.asname or alias.name
        for each in ast.walk(owner)
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert any(name in found for name in names)


def _class_of(tree, name):
    return next(
        each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name == name
    )
