"""An object's own dictionary, found without running any code of its class."""

import weakref
from typing import Any

import pytest

from traceml.trace.script_objects import own_attributes


class Plain:
    def __init__(self) -> None:
        self.size = 3


class Hostile(Plain):
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


class HostileKind(type):
    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"the class was asked for {name}")


class OfHostileKind(metaclass=HostileKind):
    pass


class Slotted:
    __slots__ = ("size",)


def dead_proxy() -> Any:
    return weakref.proxy(Plain())


@pytest.mark.parametrize(
    ("thing", "found"),
    [
        pytest.param(Plain(), {"size": 3}, id="an object"),
        pytest.param(Hostile.__new__(Hostile), {}, id="one that answers nothing"),
        pytest.param(type.__call__(OfHostileKind), {}, id="one whose class answers nothing"),
        pytest.param(Slotted(), {}, id="one with slots alone"),
        pytest.param(None, {}, id="nothing"),
        pytest.param(3, {}, id="a number"),
        pytest.param(dead_proxy(), {}, id="a proxy of an object that is gone"),
        pytest.param(Plain, {}, id="a class, whose dictionary is no plain one"),
    ],
)
def test_its_own_dictionary(thing: Any, found: dict[str, Any]) -> None:
    assert own_attributes(thing) == found
