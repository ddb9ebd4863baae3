"""What an agent does in a run over several machines: it is the head, or joins it.

Ranks leave marks in the run folder that say which (`trace/head_exchange.py`).
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import psutil

from traceml import __version__
from traceml.agent.node_link import HeadClient, NodeLink
from traceml.agent.node_server import HeadServer
from traceml.model import record_layout
from traceml.model.environment import AGENT_MARK, HEAD_CERTIFICATE, MARKS
from traceml.model.node import (
    HEAD_MARK,
    HEAD_WANTED_MARK,
    JOIN_MARK,
    JOINED_MARK,
    ORIGIN_MARK,
    HeadAddress,
    NodeState,
    NodeWay,
)
from traceml.store import folder as folders
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.node_folders import (
    NODES,
    SHARED_MARK,
    free_name,
    is_own_address,
    node_name,
    read_node,
    resolve,
    write_node,
)
from traceml.store.node_mirror import copy_folder
from traceml.store.regular_files import read_regular

DELIVERY_TIMEOUT_S = 10.0
"""How long the end of a node waits until the head has its last records."""
HEAD_WAITS_S = 25.0
"""How long the end of the head waits for the last records of other nodes …"""
HEAD_SILENCE_S = 8.0
"""… of which something was heard within this time."""
SILENT_WAIT_S = 6.0
"""How long the end waits for a silent node: its link may have just recovered."""
FIRST_NODE_WAIT_S = 6.0
"""How long the end waits for a first node, where rank 0 did not report how many nodes know the
head: rank 0 may have died, and a short job may be over before nodes and head have found each
other. The same time for all nodes that know the head, once it has listened for `KNOWN_FOR_S`."""
KNOWN_FOR_S = 60.0
"""A node of which nothing was heard in this time cannot reach the head."""
ORIGIN_TIMEOUT_S = 15.0
"""How long a node waits until the agent of the command that began the run is its head."""
PORT_TIMEOUT_S = 30.0
"""How long an agent that takes over from another one tries to get the head's port, which the other
nodes know: connections of other programs use a free port for a moment."""
POLL_S = 0.05

_address = msgspec.json.Decoder(HeadAddress)


class NodeDuties:
    """The part of one agent in a run over several machines; nothing, in a run on one."""

    def __init__(self, folder: Path, said: Callable[[str], None]) -> None:
        self._folder = folder
        self._said = said
        self._server: HeadServer | None = None
        self._listens_since_s = 0.0
        self._link: NodeLink | None = None
        self._joined: HeadAddress | None = None
        self._cannot_be_head = False
        self._port_until_s = time.monotonic() + PORT_TIMEOUT_S
        self.is_delivered = False
        """Whether the head has confirmed that it has everything of this node."""
        origin = folders.read_mark(folder, ORIGIN_MARK)
        self._origin = None if origin is None else Path(origin)
        """The folder of the run as the command began it, on another machine."""
        self._origin_until_s = time.monotonic() + ORIGIN_TIMEOUT_S

    @property
    def is_joined(self) -> bool:
        """Whether this node's records go to another one."""
        return self._link is not None

    @property
    def is_head(self) -> bool:
        """Whether other nodes may send their records here."""
        return self._server is not None

    def look(self) -> None:
        """Does what the ranks ask for."""
        if self._origin is not None and not self._ask_origin(self._origin):
            return
        joined = self._read_address(JOIN_MARK)
        if joined is not None and joined != self._joined and not self._is_own(joined):
            self._join(joined)
        if self._server is None and self._joined is None:
            wanted = folders.read_mark(self._folder, HEAD_WANTED_MARK)
            if wanted is not None and not self._cannot_be_head:
                try:
                    self._be_head(wanted)
                except OSError as error:
                    self._cannot_be_head = True
                    self._said(f"other nodes cannot join: no port can be opened ({error})")

    def _is_own(self, head: HeadAddress) -> bool:
        """Returns whether a head is this agent: where rank 0 is on another machine that joined it,
        the ranks here find it published all the same."""
        own = self._read_address(HEAD_MARK)
        return own is not None and own.run_id == head.run_id

    def _ask_origin(self, origin: Path) -> bool:
        """Asks the agent of the command that began the run to be the head, in its folder, if this
        machine shares that; returns whether it is known by now, or is waited for no longer."""
        if folders.read_mark(self._folder, JOIN_MARK) is None and folders.is_run(origin):
            head = folders.read_mark(origin, HEAD_MARK)
            if head is not None:
                folders.write_mark(self._folder, JOIN_MARK, head)
            elif time.monotonic() < self._origin_until_s:
                if folders.read_mark(origin, HEAD_WANTED_MARK) is None:
                    folders.write_mark(origin, HEAD_WANTED_MARK, "{}")
                return False
        self._origin = None
        return True

    # The head

    def _be_head(self, wanted: str) -> None:
        try:
            asked = load_json(wanted.encode())
        except UNDECODABLE:
            asked = {}
        if not isinstance(asked, dict):
            asked = {}
        known = self._read_address(HEAD_MARK)  # of an agent before us
        address = known or HeadAddress(
            run_id=str(asked.get("run_id") or secrets.token_hex(8)),
            host=own_address(str(asked.get("host") or asked.get("master", ""))),
            port=int(asked.get("port") or 0),
            token=str(asked.get("token") or secrets.token_urlsafe(24)),
            folder=str(self._folder.resolve()),
            nonce=secrets.token_hex(16),
            machine=socket.gethostname(),
        )
        certificate = os.environ.get(HEAD_CERTIFICATE)
        is_patient = known is not None and time.monotonic() < self._port_until_s
        self._server = self._started(
            address, Path(certificate) if certificate else None, is_patient
        )
        if self._server is None:
            return  # the next look tries again
        self._listens_since_s = time.monotonic()
        address = self._server.address
        folders.write_atomically(self._folder / NODES / SHARED_MARK, address.nonce.encode())
        write_node(
            self._folder,
            replace(self._new_state(address), way=NodeWay.HEAD, joined_unix_s=time.time()),
        )
        folders.write_mark(self._folder, HEAD_MARK, json.dumps(asdict(address)))

    def _started(
        self, address: HeadAddress, certificate: Path | None, is_patient: bool
    ) -> HeadServer | None:
        """Returns a server that listens: on the port that is known already, or any other one.

        `None` where that port is taken and whoever `is_patient` tries it again later, or where
        another agent on this machine is the head there: then this one joins it.
        """
        server = HeadServer(self._folder, address, certificate)
        try:
            server.start()
        except OSError as error:
            if not address.port:
                raise
            if is_patient and error.errno == errno.EADDRINUSE:
                return None
            if self._is_named_twice(address, certificate):
                there = replace(address, folder="", nonce="")  # those would be our own
                folders.write_mark(self._folder, JOIN_MARK, json.dumps(asdict(there)))
                return None
            self._said(f"port {address.port} cannot be had ({error}); another one is opened")
            server = HeadServer(self._folder, replace(address, port=0), certificate)
            server.start()
        return server

    def _is_named_twice(self, address: HeadAddress, certificate: Path | None) -> bool:
        """Returns whether another agent of this machine is the head that `--head` names: two
        launchers of one job may have one network address, as pods on the host's network have."""
        if self._read_address(HEAD_MARK) is not None:
            return False
        with closing(HeadClient(address, certificate)) as client:
            return client.answers()

    def wait_for_nodes(self) -> None:
        """At the end of the head: waits for the last records of nodes that still send."""
        if self._server is None:
            return
        began_s, joined = time.monotonic(), self._joined_nodes()
        is_known_for_long = began_s - self._listens_since_s > KNOWN_FOR_S
        first_wait_s = FIRST_NODE_WAIT_S if joined is None or is_known_for_long else HEAD_WAITS_S
        expected = 1 if joined is None else joined
        while (waited_s := time.monotonic() - began_s) < HEAD_WAITS_S:
            waits = self._server.unfinished_nodes().values()
            have_come = self._server.node_count >= expected or waited_s > first_wait_s
            is_silent = waited_s > SILENT_WAIT_S and all(
                silent_s is not None and silent_s > HEAD_SILENCE_S for silent_s in waits
            )
            if have_come and (is_silent or not waits):
                return
            time.sleep(POLL_S)

    def _joined_nodes(self) -> int | None:
        """Returns how many other machines know this head, as rank 0 saw it at the job's end."""
        text = folders.read_mark(self._folder, JOINED_MARK) or ""
        return int(text) if text.isdigit() else None

    def close(self) -> None:
        """Closes the port."""
        if self._server is not None:
            self._server.stop()

    # Another node

    def _join(self, address: HeadAddress) -> None:
        """Begins to send records to a head. Raises OSError, such as for a full disk: the caller
        then tries again later."""
        if self._link is not None:
            self._link.stop()  # its head was another one, or has another address now
        state = read_node(self._folder)
        if state is None or state.run_id != address.run_id:
            state = self._new_state(address)
        is_shared = state.way is NodeWay.SHARED
        if not is_shared:
            # A head that has a copy would have this node twice, if its folder came there as well.
            has_copy = state.way is NodeWay.HTTP
            name = None if has_copy else self._move_to_shared(address, state)
            is_shared = name is not None
            state = replace(
                state,
                name=name or state.name,
                way=NodeWay.SHARED if is_shared else NodeWay.HTTP,
                joined_unix_s=time.time(),
            )
        write_node(self._folder, replace(state, is_finished=False, is_delivered=False))
        authority = os.environ.get(HEAD_CERTIFICATE)
        self._link = NodeLink(
            self._folder, address, is_shared, Path(authority) if authority else None, self._said
        )
        self._link.start()
        self._joined = address

    def _move_to_shared(self, address: HeadAddress, state: NodeState) -> str | None:
        """Moves this node's folder into the head's, where both machines share that; returns its
        name there, `None` where they do not.

        The old path stays as a link until the end of the run: training processes know it.
        """
        if not address.folder:
            return None
        nodes = Path(address.folder) / NODES
        if self._folder.is_symlink():  # it was moved before
            target = self._folder.resolve()
            return target.name if target.parent == nodes.resolve() else None
        try:
            if read_regular(nodes / SHARED_MARK).decode() != address.nonce:
                return None
            name = free_name(nodes, state.name)
            self._folder.rename(nodes / name)
        except (OSError, ValueError):  # not there, not ours to write, or on another disk
            return None
        try:
            self._folder.symlink_to(nodes / name)
        except OSError:
            (nodes / name).rename(self._folder)
            return None
        return name

    def folder_is_lost(self) -> bool:
        """Returns whether the folder that this node shares with the head can no longer be written:
        the disk or the server that holds it became read-only."""
        return (
            self._link is not None and self._link.is_shared and not os.access(self._folder, os.W_OK)
        )

    def leave_shared_folder(self) -> Path:
        """Copies this node's folder to this machine's own disk, where its records go from now on;
        returns the copy. Raises OSError."""
        local = Path(tempfile.mkdtemp(prefix="traceml-"))
        copy_folder(self._folder.resolve(), local)
        (local / MARKS).mkdir(exist_ok=True)
        for mark in (JOIN_MARK, AGENT_MARK):
            text = folders.read_mark(self._folder, mark)
            if text is not None:
                folders.write_mark(local, mark, text)
        state = read_node(local)
        assert state is not None
        trouble = f"the shared folder became read-only: its later records are in {local}"
        write_node(
            local,
            replace(state, way=NodeWay.HTTP, trouble=trouble, folder=str(local.absolute())),
        )
        folders.note_move(folders.read_manifest(local), local)
        return local

    def deliver(self, notes: Sequence[str] = (), is_whole: bool = True) -> bool:
        """At the end of a node: sends what is left; returns whether the head has all of it.

        Where the node's disk was full, say, not all of its records are on it: then it is not
        `is_whole`, and `notes` say so, which the head shows.
        """
        assert self._link is not None
        self.is_delivered = self._link.finish(DELIVERY_TIMEOUT_S, is_whole, notes)
        has_all = self.is_delivered and (is_whole or self._link.is_shared)
        self._link.update(is_delivered=has_all)
        return self.is_delivered

    # Both

    def _new_state(self, address: HeadAddress) -> NodeState:
        return NodeState(
            run_id=address.run_id,
            name=node_name(socket.gethostname()),
            node_id=secrets.token_hex(8),
            hostname=socket.gethostname(),
            traceml_version=__version__,
            record_format=record_layout.VERSION,
            folder=str(self._folder.absolute()),
            head_machine=address.machine or address.host,
            head_folder=address.folder,
        )

    def _read_address(self, mark: str) -> HeadAddress | None:
        text = folders.read_mark(self._folder, mark)
        if text is None:
            return None
        try:
            return _address.decode(text)
        except UNDECODABLE as error:
            self._said(f"{mark} cannot be read: {error}")
            return None


def own_address(master: str) -> str:
    """Returns the address of this machine that the ranks of others can reach.

    It is the one that the job's own meeting point has, or the head that `--head` names, if that is
    here; loopback, if the job meets there, because then all of it is on this machine; else the one
    by which the meeting point is reached.
    """
    found = resolve(master)
    if found is not None and is_own_address(found):
        is_name_of_loopback = master not in ("localhost", found)
        if not ipaddress.ip_address(found).is_loopback or not is_name_of_loopback:
            return found
        found = None  # the machine's own name, which its hosts file leads to loopback
    # No packet is sent: the system only chooses the interface. The other address is of nobody.
    outside = found or "192.0.2.1"
    return _address_towards(outside) or _named_address() or _interface_address() or "127.0.0.1"


def _address_towards(address: str) -> str | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def _named_address() -> str | None:
    """Returns the address of this machine's name, where others can reach that."""
    found = resolve(socket.gethostname())
    return None if found is None or ipaddress.ip_address(found).is_loopback else found


def _interface_address() -> str | None:
    """Returns the first address that others can reach, on a network that leads nowhere else."""
    stats = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            is_up = name in stats and stats[name].isup
            is_outside = each.family == socket.AF_INET and not each.address.startswith("127.")
            if is_up and is_outside:
                return str(each.address)
    return None
