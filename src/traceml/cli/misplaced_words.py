"""What was probably meant by a command line that names no command of ours, or that mixes `traceml
run` with Python's or a launcher's words."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from traceml.model.errors import UsageError, did_you_mean
from traceml.store.folder import MANIFEST
from traceml.summaries.read import FILE_NAME

_TORCHRUN_OPTIONS = (
    *("--standalone", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"),
    *("--max-restarts", "--monitor-interval", "--start-method", "--role", "--module"),
    *("--no-python", "--log-dir", "--redirects", "--tee", "--local-ranks-filter"),
    *("--local-addr", "--run-path"),
)
_LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "srun", "mpirun", "uv")
"""Commands that people begin with, also where they are not on the PATH."""
_MAX_SHOWN = 12
"""Words of the user's that an error repeats."""


def join_words(words: Iterable[str]) -> str:
    """Returns words as a shell takes them, cut where there are many."""
    known = list(words)
    shown = shlex.join(word for word in known[:_MAX_SHOWN] if word != "…")
    return f"{shown} …" if len(known) > _MAX_SHOWN or "…" in known[:_MAX_SHOWN] else shown


def refuse_misplaced(words: list[str], script: str | None) -> None:
    """Raises UsageError where a program or an option of Python's stands in the script's place."""
    for place, word in enumerate(words):
        if word in ("-m", "-c"):
            raise _without_dashes(["python", *words[place:]], f"{word} is an option of Python's")
        if word == script and is_program(script):
            raise _without_dashes(words[place:], f"{script!r} is a program and no Python script")
        if word == script:
            return  # what follows is about this script
        if len(word) > 1 and word[0] == "-" != word[1]:
            raise _without_dashes(["python", *words[place:]], f"{word} is no option of ours")


def refuse_launcher_option(name: str, words: list[str]) -> None:
    """Raises UsageError for an option that torchrun has and we have not."""
    if name.replace("_", "-") in _TORCHRUN_OPTIONS:
        raise _without_dashes(["torchrun", *words], f"{name} is an option of torchrun's")


def _without_dashes(command: list[str], what: str) -> UsageError:
    return UsageError(
        f"{what}; expected a script; a whole command goes after --: "
        f"traceml run -- {join_words(command)}"
    )


def is_program(word: str) -> bool:
    """Returns whether a word names a command of this machine and no file here."""
    if "/" in word or os.path.exists(word):  # noqa: PTH110 - never raises, however long the name
        return False
    return word in _LAUNCHERS or shutil.which(word) is not None


def what_was_meant(words: list[str], commands: Iterable[str]) -> str:
    """Returns the error's text: what was found, what was expected, what to say instead."""
    word, known = words[0], list(commands)
    expected = f"the commands are {', '.join(known)}"
    if word.startswith("-"):
        near = did_you_mean(word, ("--version", "--help"))
        near = near or "; options follow the command: traceml run --mode=summary train.py"
        return f"there is no option {word}{near}; {expected}"
    return f"there is no command {word!r}{_near_command(words, known)}; {expected}"


def _near_command(words: list[str], known: list[str]) -> str:
    path, line = Path(words[0]), join_words(words)
    if _is_run(path):
        return f" (did you mean traceml view {line}?)"
    if words[0].endswith(".py"):
        arguments = f" --args {join_words(words[1:])}" if words[1:] else ""
        return f" (did you mean traceml run {join_words(words[:1])}{arguments}?)"
    near = did_you_mean(words[0], known)
    if not near and is_program(words[0]):
        return f" (did you mean traceml run -- {line}?)"
    return near


def _is_run(path: Path) -> bool:
    try:
        return path.name == FILE_NAME or any(
            (path / name).is_file() for name in (FILE_NAME, MANIFEST)
        )
    except (OSError, ValueError):  # a name that is too long, or holds a null byte
        return False
