"""The run folder: its name, its files, and the small JSON files that say what the run is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from traceml.model.environment import MARKS
from traceml.model.errors import RunNotFound, UsageError
from traceml.model.run import Ending, Manifest

MANIFEST = "run.json"
ENDING = "ending.json"
SUMMARY = "final_summary.json"
TEXT = "final_summary.txt"
AGENT_LOG = "agent.log"
REQUESTS = "summary-request-*"
"""Files by which training processes ask for a summary; each vanishes when it is answered."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@ -]{0,199}")


def unique_name(script: str) -> str:
    """A readable name nobody has used: what runs, when, and three letters of chance."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(script).stem).strip("-")[:40] or "run"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def create(logs_folder: Path, name: str, overwrite: bool) -> Path:
    """Make the folder of a new run; raises UsageError where that cannot be."""
    if not _NAME.fullmatch(name) or name in (".", "..") or name != name.strip():
        raise UsageError(
            f"{name!r} cannot be a run name: a run name is a folder's name under the logs folder, "
            "1 to 200 letters, digits and . _ - + = @, beginning with a letter or digit; "
            "choose another --run-name"
        )
    folder = logs_folder.absolute() / name
    try:
        if folder.exists() and overwrite:
            _remove_run(folder)
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(
            f"a run named {name!r} exists already ({folder}); "
            "choose another --run-name, or pass --overwrite to replace it"
        ) from None
    except OSError as error:
        raise UsageError(
            f"the run folder {folder} cannot be made: {error.strerror}; "
            "choose a folder that can be written with --logs-dir"
        ) from None
    return folder


def _remove_run(folder: Path) -> None:
    """Remove an earlier run; anything that is not a run stays."""
    if folder.is_symlink() or not folder.is_dir():
        raise FileExistsError(folder)
    if any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UsageError(
            f"{folder} holds no {MANIFEST}, so it is not a run that --overwrite may replace; "
            "choose another --run-name"
        )
    with contextlib.suppress(OSError, ValueError, KeyError):
        remove_rings(read_manifest(folder))
    shutil.rmtree(folder)


def make_ring_folder() -> str:
    """A folder on tmpfs for this run's rings; empty where there is none: rings go to the run."""
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir() or not os.access(shared_memory, os.W_OK):
        return ""
    folder = shared_memory / f"traceml-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        folder.mkdir(mode=0o700)
    except OSError:
        return ""
    return str(folder)


def remove_rings(manifest: Manifest) -> None:
    """Give the rings' memory back, once everything in them is on disk."""
    if manifest.ring_folder and Path(manifest.ring_folder).name.startswith("traceml-"):
        shutil.rmtree(manifest.ring_folder, ignore_errors=True)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write what is known about the run."""
    write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=2).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read what was known about the run when it started."""
    try:
        fields = json.loads((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFound(
            f"{folder} is not a run folder: it has no {MANIFEST}; "
            "pass a folder that `traceml run` made, or its name"
        ) from None
    known = Manifest.__dataclass_fields__
    fields = {name: value for name, value in fields.items() if name in known}
    return Manifest(**{**fields, "command": tuple(fields.get("command", ()))})


def write_ending(folder: Path, ending: Ending) -> None:
    """Write how the run ended."""
    write_atomically(folder / ENDING, json.dumps(asdict(ending), indent=2).encode())


def read_ending(folder: Path) -> Ending | None:
    """Read how the run ended; `None` while it goes on, or when nobody saw it."""
    try:
        fields = json.loads((folder / ENDING).read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    known = Ending.__dataclass_fields__
    return Ending(**{name: value for name, value in fields.items() if name in known})


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_mark(folder: Path, name: str) -> str | None:
    """What a mark says; `None` where it was not left."""
    try:
        return (folder / MARKS / name).read_text()
    except OSError:
        return None
