"""Writes down which Python trains, so that the agent can find its packages later.

The script may run under another interpreter than the agent's. It is written once, in well under a
millisecond: nothing is looked up here that the process does not already know. Torch is not asked
for the version of cuDNN: it would initialise CUDA, which the script may not want yet.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from traceml.model.interpreter import VARIABLE_FAMILIES, VARIABLES, Interpreter
from traceml.model.secrets import is_secret, masked, without_credentials
from traceml.trace.interruptions import is_interruption
from traceml.trace.marks import write_first_mark
from traceml.trace.recorder import Recorder, RecorderInPython


def introduce(run_folder: Path, mark: str) -> None:
    """Leave a mark that describes this interpreter; the first process to leave it is enough."""
    try:
        write_first_mark(run_folder, mark, json.dumps(_interpreter()))
    except OSError as error:
        if is_interruption(error):
            raise
        # somebody was first, or there is nowhere to write: then it stays unknown


def _interpreter() -> Interpreter:
    torch: Any = sys.modules.get("torch")
    return Interpreter(
        executable=_text(sys.executable or ""),
        version=sys.version.split()[0],
        path=tuple(_text(entry) for entry in sys.path if isinstance(entry, str)),
        argv=masked(map(_text, _argv())),
        folder=_text(_folder()),
        variables=_variables(),
        torch=_text(str(getattr(torch, "__version__", ""))) or None,
        cuda=_cuda(torch),
        hooks_in_c=Recorder is not RecorderInPython,
    )


def _argv() -> list[str]:
    """A notebook's arguments are its kernel's, and new each time."""
    return sys.argv[:1] if "ipykernel" in sys.modules else sys.argv


def _variables() -> dict[str, str]:
    return {
        name: _text(without_credentials(value))
        for name, value in os.environ.items()
        if (name in VARIABLES or name.startswith(VARIABLE_FAMILIES)) and not is_secret(name, value)
    }


def _cuda(torch: Any) -> str | None:
    version = getattr(torch, "version", None)
    rocm = getattr(version, "hip", None)
    return f"ROCm {rocm}" if rocm else getattr(version, "cuda", None)


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError as error:  # somebody removed it
        if is_interruption(error):
            raise
        return ""


def _text(value: str) -> str:
    """Names of files may hold bytes that no text can."""
    return value.encode(errors="replace").decode()
