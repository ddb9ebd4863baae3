"""Chooses how a run is shown: as requested, or as this terminal allows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

from traceml.launch.messages import say
from traceml.model.environment import RUN_FOLDER

STAYS = "stays"
"""What a dashboard says on its standard output when it stays for those who look at it."""
MODES = ("auto", "summary", "cli", "dashboard")
_KERNEL = "JPY_PARENT_PID"
"""A variable in processes that a notebook's kernel starts; their terminal can only print."""
_STREAMS = {0: "stdin", 1: "stdout", 2: "stderr"}


def choose(asked: str) -> str:
    """Returns the mode in which a run is shown; prints why, where it is not the requested one."""
    if asked == "auto":
        in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        # a run inside a run, or in a notebook's cell
        nobody_looks = in_ci or RUN_FOLDER in os.environ or _KERNEL in os.environ
        return "summary" if nobody_looks or any(obstacles("cli")) else "cli"
    for obstacle in obstacles(asked):
        say(f"--mode={asked} is not possible here: {obstacle}; the run goes on without it")
        return "summary"
    return asked


def obstacles(mode: str) -> Iterator[str]:
    """Returns why a mode is impossible, in words."""
    if mode == "dashboard" and not (find_spec("starlette") and find_spec("uvicorn")):
        yield "the server is not installed (pip install 'traceml-insight[web]')"
    if mode == "cli":
        yield from terminal_obstacles()


def terminal_obstacles() -> Iterator[str]:
    """Returns why a live view is impossible in this terminal, in words."""
    missing = [name for stream, name in _STREAMS.items() if not os.isatty(stream)]
    if missing:
        yield f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} no terminal"
    elif os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        yield "the terminal can only print lines (TERM)"
    elif not in_foreground():
        yield "it would be in the terminal's background"
    if find_spec("textual") is None:
        yield "textual is not installed (pip install 'traceml-insight[tui]')"


def in_foreground() -> bool:
    """Returns whether keys pressed in our terminal reach us."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # a terminal, but not ours
        return False
