"""Writes down the exception that ends an interpreter, whether it was traced or not.

Asked for when Python has shown the exception and the process is about to end. A process that took
training steps says the same, and more, through its ring; that report is the one that is read.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from traceml.model.environment import FAILURE_MARK, MARKS, RUN_FOLDER
from traceml.trace.failure import NO_FAILURES, describe
from traceml.trace.place import has_rank, place_in_environment


def leave_report(error: BaseException, script: int | None, machine: str) -> None:
    """Leave a mark with the exception, named after this process and its machine.

    A helper's is named after the pid of the script that it helps, `script`: of the helpers of one
    script only the last that failed is kept.
    """
    folder = os.environ.get(RUN_FOLDER)
    if not folder or isinstance(error, NO_FAILURES):
        return
    report = replace(
        describe(error),
        rank=place_in_environment()[0],
        is_rank=has_rank(),
        pid=os.getpid(),
        started_by=script,
    )
    process = os.getpid() if script is None else f"below-{script}"
    name = f"{FAILURE_MARK}{process}-{machine}.json"
    content = json.dumps(asdict(report)).encode(errors="replace")
    _write_atomically(Path(folder) / MARKS / name, content)


def _write_atomically(place: Path, content: bytes) -> None:
    place.parent.mkdir(exist_ok=True)
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(place)
