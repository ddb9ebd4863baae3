"""`POST /api/runs/NAME/tags`: tags and a note of a run, changed from a page."""

from __future__ import annotations

from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from traceml.api.find_runs import tag_run
from traceml.model.errors import UsageError
from traceml.web.security import run_folder

MAX_BODY_BYTES = 256 << 10

_EXPECTED = (
    'expected {"add": ["good"], "remove": ["bad"], "note": "text"}, each of which may be missing'
)


class _AskedChange(msgspec.Struct, forbid_unknown_fields=True):
    """What a page sends."""

    add: list[str] = []
    remove: list[str] = []
    note: str | None = None
    """`None`: it stays; an empty one removes it."""


async def change_tags(logs: Path, name: str, request: Request) -> bytes:
    """Writes what `traceml tag` would; returns the run's tags and note as JSON.

    Raises UsageError for what cannot be a tag or a note, RunNotFound for a name that is no run's.
    """
    asked = _decoded(await _body(request))
    return await run_in_threadpool(_change, logs, name, asked)


def _change(logs: Path, name: str, asked: _AskedChange) -> bytes:
    folder = run_folder(logs, name)
    said = tag_run(str(folder.absolute()), logs, asked.add, asked.remove, asked.note)
    return msgspec.json.encode({"tags": said.tags, "note": said.note})


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise UsageError(
                f"the change has more than {MAX_BODY_BYTES >> 10} KiB; send fewer tags at a time"
            )
    return body


def _decoded(body: bytes) -> _AskedChange:
    try:
        return msgspec.json.decode(body, type=_AskedChange)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"the change cannot be read ({error}); {_EXPECTED}") from error
