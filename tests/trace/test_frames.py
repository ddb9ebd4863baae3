"""Reading a running function's variables changes nothing in it and keeps nothing alive."""

import sys
import weakref
from types import SimpleNamespace

import pytest

from traceml.trace.interruptions import variables_of


class Thing:
    """Something whose end can be seen."""


def here():
    return variables_of(sys._getframe(1))


def test_arguments_cells_and_free_variables_are_read_and_stay():
    free = "free"

    def function(argument):
        cell = "cell"

        def inner():
            return cell

        found = here()
        assert {found[name] for name in ("argument", "cell", "free")} == {1, "cell", "free"}
        return argument, cell, inner(), free

    assert function(1) == (1, "cell", "cell", "free")


def test_a_variable_that_was_read_dies_when_it_is_bound_anew():
    def bind():
        thing = Thing()
        first = weakref.ref(thing)
        was_read = here()["thing"] is thing
        thing = Thing()
        return was_read, first() is None

    assert bind() == (True, True)


def test_what_a_script_took_from_locals_stays_its_own():
    rate = 0.1
    taken = locals()
    here()
    assert taken["rate"] == rate


def test_what_a_script_executes_stays_known_to_it():
    exec("made = 3")
    made_before = "made" in locals()  # since Python 3.13 it never is
    here()
    assert ("made" in locals()) is made_before


def test_a_modules_and_a_class_bodys_variables_stay():
    module = {"__name__": "script", "here": here}
    exec("kept = 1\nfound = here()\nclass Body:\n    inner = 2\n    found_there = here()", module)
    assert (module["kept"], module["found"]["kept"]) == (1, 1)
    assert (module["Body"].inner, module["Body"].found_there["inner"]) == (2, 2)


@pytest.mark.parametrize("follow", [sys.settrace, sys.setprofile], ids=["debugger", "profiler"])
def test_a_function_under_a_debugger_keeps_its_variables(follow):
    """After each of its looks Python writes the variables it was shown back to the function."""

    def look(frame, event, argument):
        if frame.f_code is followed.__code__:
            variables_of(frame)
        return look

    def followed():
        kept = 1
        len([])
        return kept

    before = sys.gettrace(), sys.getprofile()
    follow(look)
    try:
        assert followed() == 1
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


def test_a_dictionary_that_a_script_got_from_locals_stays_as_it_is():
    def main(rate=0.1):
        config = locals()
        model = object()
        found = variables_of(sys._getframe(0))
        return config, found, model

    config, found, _ = main()
    assert set(config) == {"rate"}
    assert sys.version_info >= (3, 13) or not found


def test_a_script_that_asks_for_its_arguments_as_a_dictionary_is_read():
    """`vars(args)`, to log them, is of an object and not of the function's variables."""

    def main(arguments):
        config = vars(arguments)
        model = object()
        found = variables_of(sys._getframe(0))
        return config, found, model

    arguments = SimpleNamespace(rate=0.1)
    config, found, _ = main(arguments)
    assert config == {"rate": 0.1}
    assert found["arguments"] is arguments


def test_a_dictionary_that_a_script_got_from_vars_stays_as_it_is():
    def main(rate=0.1):
        config = vars()
        model = object()
        found = variables_of(sys._getframe(0))
        return config, found, model

    def by_another_name(rate=0.1):
        names = vars
        config = names()
        model = object()
        found = variables_of(sys._getframe(0))
        return {name: config[name] for name in config if name != "names"}, found, model

    for function in (main, by_another_name):
        config, found, _ = function()
        assert set(config) == {"rate"}
        assert sys.version_info >= (3, 13) or not found
