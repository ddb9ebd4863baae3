"""The run's lineage on disk: `lineage.json`, and the uncommitted changes beside it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from traceml.model.environment import INTERPRETER_MARK, TRAINER_MARK
from traceml.model.interpreter import Interpreter
from traceml.model.lineage import Lineage
from traceml.store.folder import read_mark, write_atomically
from traceml.store.json_lines import UNDECODABLE
from traceml.store.regular_files import read_regular

LINEAGE = "lineage.json"
DIFF = "diff.patch"

_lineage = msgspec.json.Decoder(Lineage)
_interpreter = msgspec.json.Decoder(Interpreter)


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Writes what is known so far."""
    content = msgspec.json.format(msgspec.json.encode(lineage), indent=2)
    write_atomically(folder / LINEAGE, content + b"\n")


def read_lineage(folder: Path) -> Lineage | None:
    """Returns the run's lineage; `None` where it was not recorded, or cannot be read."""
    try:
        return _lineage.decode(read_regular(folder / LINEAGE))
    except (OSError, *UNDECODABLE):
        return None


def write_diff(folder: Path, diff: str) -> None:
    """Writes the uncommitted changes; no file without any."""
    if diff:
        write_atomically(folder / DIFF, diff.encode())
    else:
        (folder / DIFF).unlink(missing_ok=True)


def read_interpreter(folder: Path) -> Interpreter | None:
    """Returns the Python that trains; before the first step, the first one that imported torch."""
    for mark in (TRAINER_MARK, INTERPRETER_MARK):
        text = read_mark(folder, mark)
        if text is None:
            continue
        try:
            return _interpreter.decode(text)
        except UNDECODABLE:
            continue  # it is just being written: it will be whole at the next look
    return None
