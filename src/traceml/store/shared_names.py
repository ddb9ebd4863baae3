"""The name of a run over several machines that share a logs folder: one of them gets it at once,
the others are called `NAME.HOST`, and which of them collects the run is known only later."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from traceml.model.environment import WANTED_NAME_MARK
from traceml.store import folder as folders
from traceml.store.node_folders import NODES, leads_to_node, read_node


def note_wanted_name(folder: Path, name: str) -> None:
    """Notes under which name the user wants a run that was given another one; raises OSError."""
    if folder.name != name:
        folders.write_mark(folder, WANTED_NAME_MARK, name)


def take_wanted_name(folder: Path) -> None:
    """Gives a run the name that the user asked for, if that is free or a machine of this run had
    it; raises OSError.

    The run is one that a head has collected. A node that still runs needs the link of that name, so
    the link stays: when the node ends, it makes the link lead here (`settle`).
    """
    name = folders.read_mark(folder, WANTED_NAME_MARK)
    if name is None or not folders.is_run_name(name):
        return
    link = folder.parent / name
    if not os.path.lexists(link):
        link.symlink_to(folder.name)
    elif not link.is_symlink() or folder.resolve() not in (link.resolve(), *link.resolve().parents):
        return  # of another run, or of a machine whose records never came here
    elif leads_to_node(link):
        node = read_node(link)
        if node is None or not node.is_finished:  # it was lost, and needs the link no more
            _lead_to(link, folder)
    folders.write_manifest(folder, replace(folders.read_manifest(folder), run_name=name))


def settle(folder: Path) -> Path:
    """Returns the final place of a run's folder, and removes or redirects the link that was left in
    its old place.

    A node that shares the head's folder has moved its own folder into it; the link was for its
    training processes. It now leads to the whole run if that is to have this name, and is removed
    otherwise.
    """
    if not folder.is_symlink():
        return folder
    target = folder.resolve()
    with contextlib.suppress(OSError):  # it became read-only
        head = target.parents[1]
        is_wanted = folders.read_mark(head, WANTED_NAME_MARK) == folder.name
        if is_wanted and target.parent.name == NODES and head.parent == folder.parent.resolve():
            _lead_to(folder, head)
        else:
            folder.unlink(missing_ok=True)
    return target


def _lead_to(link: Path, head: Path) -> None:
    """Replaces a link, in one atomic operation, by one to the folder of a run beside it."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(head.name)
    temporary.replace(link)
