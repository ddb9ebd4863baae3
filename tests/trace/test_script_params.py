"""Parameters are taken from the objects that hold a script's arguments, and nothing else is."""

from __future__ import annotations

import argparse
import enum
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import traceml
from processes import TORCH_STEPS, run_traceml
from traceml.store import logged
from traceml.trace import script_params


@pytest.fixture
def taken(traced):
    """Trains one step below a function that has variables; what was recorded of them."""

    def take(**variables):
        _function_with(variables)(_train)
        traced.finish()
        return logged.merge_params(traced.messages())

    return take


def _function_with(variables):
    """A function of a script's whose own variables these are."""
    names = ", ".join(variables)
    place = {}
    exec(compile(f"def main(train, {names}):\n    train()\n", "train.py", "exec"), place)
    return lambda train: place["main"](train, **variables)


def _train():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


@dataclass
class Model:
    width: int = 64
    layers: list[int] = field(default_factory=lambda: [2, 3])


@dataclass
class TrainConfig:
    lr: float = 0.1
    model: Model = field(default_factory=Model)
    name: str = "small"


@dataclass(slots=True)
class SlottedArgs:
    seed: int = 3


@dataclass
class Batch:
    inputs: float = 1.0


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class CountedFloat(float):
    """A number of a class of its own that would rather be asked nothing."""

    def __repr__(self):
        raise RuntimeError("asked")

    __str__ = __float__ = __repr__


class Hostile:
    """An object that raises whatever is asked of it."""

    def __getattribute__(self, name):
        raise RuntimeError("asked")

    __repr__ = __str__ = __eq__ = __bool__ = __len__ = __iter__ = __getattribute__
    __hash__ = object.__hash__


class Meta(type):
    """Makes classes that cannot be asked anything, and cannot be hashed."""

    def __getattribute__(cls, name):
        ASKED.append(name)
        raise RuntimeError("asked")

    def __eq__(cls, other):
        ASKED.append("__eq__")
        raise RuntimeError("asked")


ASKED: list[str] = []


class Withheld:
    """Its attributes are computed, and cannot be."""

    @property
    def __dict__(self):
        raise RuntimeError("asked")


def test_the_arguments_of_the_command_come_before_what_a_library_configured(taken):
    found = taken(config=TrainConfig(), args=argparse.Namespace(epochs=2))
    assert list(found.values) == ["epochs", "lr", "model", "name"]


def test_an_argparse_namespace_is_taken(taken):
    found = taken(args=argparse.Namespace(lr=0.1, epochs=3, name="x", resume=None, amp=True))
    assert found.values == {"lr": 0.1, "epochs": 3, "name": "x", "resume": None, "amp": True}
    assert set(found.sources.values()) == {"argparse"}


def test_a_namespace_under_any_name_and_of_any_subclass_is_taken(taken):
    class Tidy(argparse.Namespace):
        def __getattr__(self, name):
            raise RuntimeError("asked")

    assert taken(whatever=Tidy(lr=0.5)).values == {"lr": 0.5}


def test_values_are_taken_as_plain_ones_and_objects_left_out(taken):
    found = taken(
        args=argparse.Namespace(
            path=Path("data/train"),
            colour=Colour.RED,
            level=Level.HIGH,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            sizes=(1, 2),
            kinds={"b", "a"},
            nested={"depth": 2, "f": print},
            inner=argparse.Namespace(lr=1),
            not_a_number=float("nan"),
            large=10**30,
            counted=CountedFloat(2.5),
            text="x" * 10_000,
            func=_train,
            kind=Model,
            model=torch.nn.Linear(1, 1),
            tensor=torch.ones(3),
            hostile=Hostile(),
            several=[1, Hostile()],
            _private=1,
        )
    ).values
    assert found.pop("text").endswith("x…")
    assert found == {
        "path": "data/train",
        "colour": "red",
        "level": 3,
        "dtype": "torch.bfloat16",
        "device": "cpu",
        "sizes": [1, 2],
        "kinds": ["a", "b"],
        "nested": {"depth": 2},
        "inner": {"lr": 1},
        "not_a_number": "nan",
        "large": str(10**30),
        "counted": 2.5,
    }


def test_an_object_that_cannot_be_read_costs_the_others_nothing(taken):
    ASKED.clear()
    odd = type.__call__(Meta("Unhashable", (), {}))
    args = argparse.Namespace(lr=0.1, odd=odd, many=[1, odd])
    found = taken(a=odd, self=Withheld(), config=odd, b=Withheld(), args=args)
    assert found.values == {"lr": 0.1}
    assert ASKED == []


def test_a_value_that_holds_itself_ends(taken):
    loop: dict[str, object] = {"lr": 1}
    loop["again"] = loop
    found = taken(config=loop).values
    assert found["lr"] == 1
    assert len(json.dumps(found)) < 1000


def test_secrets_are_masked(taken):
    found = taken(args=argparse.Namespace(api_key="sk-abcdefghijklmnop1234", lr=0.1)).values
    assert found == {"api_key": "***", "lr": 0.1}


@pytest.mark.parametrize(
    ("variables", "expected", "source"),
    [
        pytest.param(
            {"cfg": TrainConfig()},
            {"lr": 0.1, "model": {"width": 64, "layers": [2, 3]}, "name": "small"},
            "dataclass",
            id="a dataclass in another",
        ),
        pytest.param({"x": TrainConfig(lr=2)}, None, "dataclass", id="by the name of its class"),
        pytest.param({"run_args": SlottedArgs()}, {"seed": 3}, "dataclass", id="with slots"),
        pytest.param({"opt": SimpleNamespace(lr=3)}, {"lr": 3}, "dataclass", id="SimpleNamespace"),
        pytest.param({"config": {"lr": 4}}, {"lr": 4}, "dict", id="a dictionary"),
        pytest.param({"train_cfg": {"lr": 4}}, {"lr": 4}, "dict", id="a dictionary's longer name"),
    ],
)
def test_what_holds_a_configuration_is_taken(taken, variables, expected, source):
    found = taken(**variables)
    if expected is not None:
        assert found.values == expected
    assert found.values
    assert set(found.sources.values()) == {source}


@pytest.mark.parametrize(
    "variables",
    [
        {"batch": Batch()},
        {"results": {"accuracy": 0.5}},
        {"state": SimpleNamespace(step=3)},
        {"options_class": TrainConfig},
        {"hostile": Hostile(), "config": Hostile()},
        {"args": (1, 2), "config": "small.yaml", "opts": [1]},
        {"config": {}},
        {"config": {3: "x"}},
    ],
    ids=lambda variables: ", ".join(variables),
)
def test_nothing_else_is_taken(taken, variables):
    assert taken(**variables).values == {}


def test_a_name_that_two_use_for_different_things_keeps_both(taken):
    found = taken(args=argparse.Namespace(width=1, lr=1), model_config={"width": 2, "lr": 1}).values
    assert found == {"width": 1, "lr": 1, "model_config.width": 2}


def test_an_object_that_only_self_holds_is_taken(taken):
    class Program:
        def __init__(self):
            self.args = argparse.Namespace(lr=0.3)

    assert taken(self=Program()).values == {"lr": 0.3}


def test_what_the_script_logs_itself_wins_whenever_it_does(traced):
    def main(train, args):
        traceml.log_params({"lr": 0.2})
        train()
        traceml.log_params({"epochs": 5})

    main(_train, argparse.Namespace(lr=0.1, epochs=3, seed=1))
    traced.finish()
    found = logged.merge_params(traced.messages())
    assert found.values == {"lr": 0.2, "epochs": 5, "seed": 1}
    assert found.sources == {"seed": "argparse"}


def test_only_rank_0_speaks(taken, monkeypatch):
    monkeypatch.setitem(os.environ, "RANK", "1")
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    assert taken(args=argparse.Namespace(lr=0.1)).values == {}


def test_nothing_is_looked_at_after_the_first_step(traced):
    def main(train, args):
        train()
        args.lr = 0.7
        train()

    main(_train, argparse.Namespace(lr=0.1))
    assert not [look for look in traced.session.looks if "ScriptParams" in repr(look)]
    traced.finish()
    assert logged.merge_params(traced.messages()).values == {"lr": 0.1}


def test_very_many_parameters_are_bounded(taken):
    found = taken(config={f"name_{index}": "x" * 1000 for index in range(900)}).values
    assert 10 < len(found) < 900


def test_large_tables_are_neither_taken_nor_read_to_their_end(taken, monkeypatch):
    calls = []
    real = script_params._readable
    monkeypatch.setattr(script_params, "_readable", lambda *a: calls.append(1) or real(*a))
    table = [[0.5] * 64 for _ in range(64)]
    config = {f"layer{index}": {"table": table} for index in range(500)}
    found = taken(config=config, args=argparse.Namespace(lr=0.1, sizes=[[1] * 64] * 64)).values
    assert found == {"lr": 0.1}
    assert len(calls) < 2 * script_params.MAX_VALUES


def test_a_parameter_that_does_not_fit_costs_the_others_nothing(taken):
    large = {f"part{index}": "x" * 4000 for index in range(60)}
    found = taken(config={f"large{index}": large for index in range(9)} | {"lr": 0.1}).values
    assert found["lr"] == 0.1


SCRIPT = (
    """\
import argparse
import os

def parse():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    train = commands.add_parser("train")
    train.add_argument("--lr", type=float, default=0.1)
    train.add_argument("--token", default="hunter2hunter2")
    train.set_defaults(func=run)
    return parser.parse_known_args()

def run(args):
"""
    + "".join(f"    {line}\n" for line in (TORCH_STEPS + "take_steps(3)").splitlines())
    + """
if __name__ == "__main__":
    args, rest = parse()
    args.world = 1
    args.func(args)
    print(args.lr, rest)
"""
)


def test_a_real_scripts_arguments_are_in_its_summary(tmp_path: Path):
    """Parsed before torch is imported, with a subcommand, by `parse_known_args`."""
    words = ["run", "train.py", "--args", "train", "--lr", "0.5", "--other"]
    done = run_traceml(words, tmp_path, SCRIPT)
    assert (done.status, done.stdout) == (0, "0.5 ['--other']\n"), done.stderr
    assert done.summary["params"] == {"lr": 0.5, "token": "***", "world": 1}
    assert done.summary["param_sources"] == dict.fromkeys(("lr", "token", "world"), "argparse")
    assert "hunter2" not in (done.folder / "final_summary.json").read_text()
    assert done.summary["tracer"]["failures"] == 0


def test_thinned_messages_know_what_was_taken():
    params = logged.Params()
    params.add({"lr": 0.1, "seed": 1}, "argparse")
    params.add({"lr": 0.2})
    lines = [json.dumps(each).encode() for each in [*params.lines(), {"number": 3, "kind": "x"}]]
    again = logged.merge_params(logged.decode(logged.thin(b"\n".join(lines))))
    assert (again.values, again.sources) == ({"lr": 0.2, "seed": 1}, {"seed": "argparse"})


def test_a_source_that_is_no_text_is_a_call(tmp_path: Path):
    found = logged.merge_params([{"kind": "params", "source": 3, "values": {"lr": 1}}])
    assert (found.values, found.sources) == ({"lr": 1}, {})


def test_no_library_is_loaded_to_look_for_its_objects(taken):
    before = set(sys.modules)
    taken(args=argparse.Namespace(lr=0.1))
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not loaded & {"omegaconf", "hydra", "transformers", "pytorch_lightning", "lightning"}
