"""The folders of a run over several machines: `nodes/<name>` in the head's folder, and `node.json`
in each of them."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from traceml import __version__
from traceml.model import record_layout
from traceml.model.environment import TOKEN
from traceml.model.errors import UsageError
from traceml.model.node import HEAD_WANTED_MARK, JOIN_MARK, HeadAddress, NodeState, NodeWay
from traceml.model.printable import shell_word
from traceml.model.quantities import count
from traceml.store import folder as folders
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.regular_files import read_regular

if TYPE_CHECKING:  # the launcher needs none of the records, and loads nothing heavy
    from traceml.store.records import NodeRecords

NODES = "nodes"
NODE = "node.json"
REFUSED = "refused.json"
SHARED_MARK = ".shared"
"""A file in `nodes` that holds the head's random number."""
MAX_NODES = 4_096
MAX_NAMES = 3
"""Nodes that a remark about many of them names."""
_state = msgspec.json.Decoder(NodeState)


def write_node(folder: Path, state: NodeState) -> None:
    """Writes what is known about the node whose folder this is."""
    folders.write_atomically(folder / NODE, json.dumps(asdict(state), indent=2).encode())


def read_node(folder: Path) -> NodeState | None:
    """Returns what a folder says about its node; `None` where the run is not known to have several,
    or the file cannot be read."""
    try:
        return _state.decode(read_regular(folder / NODE))
    except (OSError, *UNDECODABLE):
        return None


def node_folders(folder: Path) -> list[Path]:
    """Returns the folders of the other nodes of a run, by name; none for most runs."""
    try:
        found = [path for path in (folder / NODES).iterdir() if is_node_folder(path)]
    except OSError:
        return []
    return sorted(found)[:MAX_NODES]


def is_node_folder(path: Path) -> bool:
    """Returns whether a path is the folder of a node, and no link that leads elsewhere."""
    return (
        folders.is_run_name(path.name)
        and path.is_dir()
        and not path.is_symlink()
        and (path / folders.MANIFEST).is_file()
    )


def leads_to_node(link: Path) -> bool:
    """Returns whether a link leads to the folder of a node inside that of its run."""
    target = link.resolve()
    return target.parent.name == NODES and (target.parents[1] / folders.MANIFEST).is_file()


def node_name(hostname: str) -> str:
    """Returns a hostname as the name of a folder."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", hostname).strip("-.")[:100]
    return name or "node"


def free_name(nodes: Path, name: str, taken: Collection[str] = ()) -> str:
    """Returns the name, or the next one with a number where a folder or another node has it: the
    head has one, too, and no folder here."""
    there = {path.name for path in nodes.iterdir()} if nodes.is_dir() else set()
    head = read_node(nodes.parent)
    if head is not None:
        there.add(head.name)
    number, free = 2, name
    while free in there or free in taken:
        number, free = number + 1, f"{name}-{number}"
    return free


def read_refused(folder: Path) -> dict[str, int]:
    """Returns how often the head refused something, by the reason."""
    try:
        found = load_json(read_regular(folder / NODES / REFUSED))
    except (OSError, *UNDECODABLE):
        return {}
    if not isinstance(found, dict):
        return {}
    return {why: times for why, times in found.items() if isinstance(times, int) and times > 0}


def write_refused(folder: Path, refused: Counter[str]) -> None:
    """Writes how often the head refused something."""
    folders.write_atomically(folder / NODES / REFUSED, json.dumps(refused).encode())


# A head that was named on the command line


def parse_head(text: str, token: str) -> HeadAddress:
    """Returns the head that `--head HOST:PORT` names; raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(
            f"--head {text!r} is no address; expected HOST:PORT, such as host-a:7654, the same on "
            "all machines"
        )
    if not token:
        raise UsageError(
            f"--head {text} needs a token, by which the machines know each other; set {TOKEN} to "
            "the same random text on all of them"
        )
    run_id = hashlib.sha256(token.encode()).hexdigest()[:16]
    return HeadAddress(run_id, host.strip("[]"), int(port), token, machine=host.strip("[]"))


def leave_head(folder: Path, head: HeadAddress) -> None:
    """Leaves the marks by which the agent becomes the head, where that address is this machine's,
    or joins it; raises OSError."""
    if is_own_address(resolve(head.host) or ""):
        folders.write_mark(folder, HEAD_WANTED_MARK, json.dumps(asdict(head)))
    else:
        folders.write_mark(folder, JOIN_MARK, json.dumps(asdict(head)))


def resolve(host: str) -> str | None:
    """Returns the first address of a host; `None` where it has none."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return None


def is_own_address(address: str) -> bool:
    """Returns whether an address is one of this machine's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return bool(address)


# What is missing, in words

_REFUSALS = {
    "token": "without the run's token",
    "run": "of another run",
    "version": "of another version of TraceML",
    "path": "with pieces of files that no machine sends",
    "size": "larger than a request may be",
    "request": "that were no requests of TraceML's",
}
"""Why the head refuses a request, as `refused.json` counts it."""


def notes_about_nodes(
    nodes: Sequence[NodeRecords],
    refused: Mapping[str, int],
    expected: int,
    is_over: bool,
    own: NodeState | None = None,
) -> list[str]:
    """Returns what the records of a run over several machines lack, and what was refused.

    `expected` is the number of nodes that the job had. While the run is in progress, nodes need not
    have sent everything. `own` is what the folder says about its node: the head, unless these are
    the folders of the others.
    """
    notes = group_remarks(
        (node.state.name, remark) for node in nodes for remark in _remarks_about(node, is_over)
    )
    missing = expected - len(nodes)
    if is_over and own is not None and own.way is not NodeWay.HEAD and own.head_machine:
        if not nodes:
            notes.append(_about_one_machine(own))
        elif missing > 0 and own.has_known_head:
            missing -= 1
            notes.append(
                f"the run folder of {own.head_machine}, which collected the run, is not here, and "
                "what its ranks did is missing: `traceml recover RUN FOLDER` with it adds that"
            )
    if is_over and missing > 0 and nodes:
        notes.append(
            f"{count(missing, 'node')} of {expected} never reached the machine that collects "
            "the run: what its ranks did is in its own run folder, and `traceml recover RUN "
            "FOLDER` adds it"
        )
    for why, times in refused.items():
        notes.append(
            f"{count(times, 'request')} {_REFUSALS.get(why, f'({why})')} "
            f"{'was' if times == 1 else 'were'} refused: nothing of it is in the records"
        )
    return notes


def _about_one_machine(state: NodeState) -> str:
    """Returns what is said of the folder of one machine of several, which is not the head."""
    head = (
        f"its run was collected on {state.head_machine}, and"
        if state.has_known_head
        else f"{state.head_machine}, which --head names, has taken none;"
    )
    return (
        f"these are the records of one machine alone: {head} `traceml recover RUN FOLDER …` puts "
        "the run folders of all machines together"
    )


def closing_words(folder: Path) -> str | None:
    """Returns the line that the end of a node prints about the one summary, which is elsewhere;
    `None` for the head, and for a run on one machine."""
    state = read_node(folder)
    if state is None or state.way is NodeWay.HEAD:
        return None
    there = f"{state.head_folder}/{folders.SUMMARY}"
    if state.is_delivered:
        return (
            f"the records of {state.hostname} are part of the run on {state.head_machine}: the "
            f"summary of all machines is {state.head_machine}:{there}"
        )
    if state.way is NodeWay.SHARED:
        return (
            f"{state.head_machine}, which collects the run, no longer answers; the records of "
            f"{state.hostname} are in its folder: where {there} is missing at its end, "
            f"`traceml recover {shell_word(state.head_folder)}` writes it"
        )
    why = f" ({state.trouble})" if state.trouble else ""
    if not state.has_known_head:
        return (
            f"{state.head_machine}, which --head names, has taken no records of "
            f"{state.hostname}{why}; they are kept in {folder}: `traceml recover RUN "
            f"{folder.name}` adds them to the run folder of another machine of the job"
        )
    return (
        f"{state.head_machine}, which collects the run, has not got all records of "
        f"{state.hostname}{why}; they are kept in {folder}: copy that to "
        f"{state.head_machine}, where `traceml recover "
        f"{state.head_folder or 'RUN'} {folder.name}` adds it"
    )


class Remark(NamedTuple):
    """What is said about a node, as it follows the name of one, and the names of several."""

    about_one: str
    about_several: str


def group_remarks(remarks: Iterable[tuple[str, Remark]]) -> list[str]:
    """Returns the remarks about nodes, given with each one's name: one that many nodes share is
    said once, with their number and the first names."""
    names: dict[Remark, list[str]] = {}
    for name, remark in remarks:
        names.setdefault(remark, []).append(name)
    return [_about_all(remark, dict.fromkeys(found)) for remark, found in names.items()]


def _about_all(remark: Remark, names: Collection[str]) -> str:
    first = list(names)[:MAX_NAMES]
    if len(names) == 1:
        return f"node {first[0]}{remark.about_one}"
    more = ", …" if len(names) > MAX_NAMES else ""
    return f"{count(len(names), 'node')} ({', '.join(first)}{more}){remark.about_several}"


def _remarks_about(node: NodeRecords, is_over: bool) -> Iterator[Remark]:
    state = node.state
    if is_over and not state.is_finished and state.way is not NodeWay.HEAD:
        yield Remark(
            " was cut off before its end: its last records are missing here; "
            "`traceml recover RUN FOLDER` with its own run folder adds them",
            " were cut off before their end: their last records are missing here; "
            "`traceml recover RUN FOLDER …` with their own run folders adds them",
        )
    if state.trouble:
        yield Remark(f": {state.trouble}", f": {state.trouble}")
    if state.files_left:
        shown = ", ".join(state.files_left[:3]) + (", …" if len(state.files_left) > 3 else "")
        files = f"{count(len(state.files_left), 'file')}"
        yield Remark(f" keeps {files} itself: {shown}", f" keep {files} each themselves: {shown}")
    if state.record_format > record_layout.VERSION:
        ran = (
            f" ran TraceML {state.traceml_version}, whose records this version ({__version__}) "
            "cannot read in full: `traceml recover` of the newer one can"
        )
        yield Remark(ran, ran)
