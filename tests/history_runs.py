"""Makes traced runs of commits, as agents leave them: what has a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from factories import STARTED_UNIX_S, make_run
from run_folders import write_run
from traceml.agent.close import summarise
from traceml.model.lineage import Code, Command, Environment, Hardware, Lineage
from traceml.model.run import Ending
from traceml.store.folder import write_ending
from traceml.store.lineage import write_lineage

TRAIN = ("python", "train.py")


def write_traced(
    logs: Path,
    name: str,
    code: str | None,
    *,
    command: Sequence[str] = TRAIN,
    started_s: float = 0.0,
    host: str = "node",
    exit_status: int = 0,
    torch: str = "2.11",
    folder: str | None = None,
    content: str | None = None,
    repository: str | None = None,
    seed: int = 0,
    **parts: Any,
) -> None:
    """A run as an agent leaves it, of a commit."""
    run = make_run(steps=60, seed=seed, **parts)
    manifest = replace(
        run.manifest,
        command=tuple(command),
        hostname=host,
        started_unix_s=STARTED_UNIX_S + started_s,
    )
    place = write_run(logs / name, replace(run, manifest=manifest), is_over=False)
    lineage = Lineage(
        code=Code(repository=repository, commit=code, branch="main", dirty=False) if code else None,
        command=Command(
            words=tuple(command),
            script="train.py",
            arguments=tuple(command[2:]),
            folder=folder,
            script_sha256=content,
        ),
        environment=Environment(torch=torch),
        hardware=Hardware(hostname=host),
    )
    write_lineage(place, lineage)
    write_ending(place, Ending(STARTED_UNIX_S + started_s + 60, exit_status))
    summarise(place)
