"""A traceback is kept as Python prints it, but for our frames, secrets and endless ones."""

import traceback

import pytest

import traceml
from traceml.trace.session import Session
from traceml.trace.traceback_text import MAX_LETTERS, shortened, traceback_text

SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


def raised(function):
    with pytest.raises((ValueError, RuntimeError, Hostile)) as caught:
        function()
    return caught.value


def fail_from_another():
    try:
        {}["epoch"]
    except KeyError as error:
        raise ValueError("bad batch") from error


def test_it_is_what_python_prints():
    error = raised(fail_from_another)
    assert traceback_text(error) == "".join(traceback.format_exception(error)).rstrip("\n")


def test_our_own_frames_are_left_out():
    @traceml.trace_time("load")
    def load():
        raise ValueError("no")

    error = raised(load)
    text = traceback_text(error)
    assert "in load" in text
    assert "traceml/decorators.py" not in text
    assert "/traceml/trace/" not in text


def test_what_it_has_not_passed_yet_is_added():
    def outer():
        try:
            raise ValueError("no")
        except ValueError as error:
            return traceback_text(error, with_callers=True)

    text = outer()
    assert text.index("in test_what_it_has_not_passed_yet_is_added") < text.index("in outer")


def test_secrets_are_masked():
    def connect():
        raise RuntimeError(f"401 for token={SECRET!r}")

    assert SECRET not in traceback_text(raised(connect))


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [Hostile(), ValueError("x\n" * 50_000), ValueError("x" * 99_999)])
def test_any_exception_is_told_and_not_too_long(error):
    def fail():
        raise error

    text = traceback_text(raised(fail))
    assert "in fail" in text
    assert len(text) <= MAX_LETTERS + 100


def test_a_long_text_keeps_its_head_and_its_tail():
    text = "\n".join(f"line {number}" for number in range(10_000))
    kept = shortened(text, 1000).splitlines()
    assert (kept[0], kept[-1]) == ("line 0", "line 9999")
    assert [line for line in kept if "left out" in line]


def test_a_line_on_stderr_holds_no_terminal_escape(tmp_path, capsys):
    """The text of an exception is the script's, or a server's that it talked to."""
    Session(tmp_path, None, None).say("rank 0 failed: ValueError: \x1b]0;title\x07bad\x1b[2J")
    assert capsys.readouterr().err == "traceml: rank 0 failed: ValueError: ?]0;title?bad?[2J\n"
