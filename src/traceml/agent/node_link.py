"""A node's side of a run over several machines: measures its clock and sends its records to the
head.

In a thread of the node's agent, which reads files and sends what has changed once a second. A
broken link is tried again for as long as the run goes on: the files on this node stay.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import random
import ssl
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import msgspec

from traceml.model.node import (
    MAX_DRIFT,
    TRANSPORT_VERSION,
    HeadAddress,
    Header,
    NodeState,
    NodeWay,
)
from traceml.model.secrets import masked_message
from traceml.store.node_folders import read_node, write_node
from traceml.store.node_mirror import FilePiece, FolderChanges

SEND_EVERY_S = 1.0
MIN_RETRY_S, MAX_RETRY_S = 0.5, 10.0
"""How long to wait before a link is tried again: twice as long after each failure, and a random
part of it, so that not all nodes come back to a restarted head at the same moments."""
REQUEST_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 2.0
"""How long somebody on this machine may take to say whether it is the head."""
GREETING_TIMEOUT_S = 600.0
"""How long a node waits to be known: a restarted head reads all that it has of all nodes before it
has answered the last of them, and one that gives up has to wait in the same queue again."""
CLOCK_EXCHANGES = 16
CLOCK_EVERY_S = 300.0
"""How often the clock is looked at again: clocks drift by some milliseconds in that time."""
LAST_EXCHANGES = 4
"""At the end of the run, which waits for them."""
OLD_CLOCK_S = 10.0
"""After which the clock is looked at again at the end of the run: the last steps, whose moments are
compared with those of other machines, are the ones just taken."""
COMPRESSION = 6

_packer = msgspec.msgpack.Encoder()


_LINK_FAILS = "its link to the machine that collects the run fails and is tried again"


class HeadRefuses(Exception):
    """The head will not take this node's records, however often it is asked."""


class BrokenLink(Exception):
    """The head could not be reached, or did not answer as expected."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """By how much this machine's clock is ahead of the head's."""

    offset_s: float
    uncertainty_s: float


class Greeting(msgspec.Struct, frozen=True):
    """What the head answers a node that joins."""

    name: str
    """The node's folder under `nodes`."""
    files: dict[str, tuple[int, int]]
    """What the head has of it: sizes and checksums, by name."""
    machine: str = ""
    folder: str = ""
    """Where the run is."""


class HeadClient:
    """One connection to the head."""

    def __init__(self, address: HeadAddress, authority: Path | None = None) -> None:
        """`authority` is a file with the certificate to trust, where the address names none."""
        self._address = address
        self._headers = {
            Header.TOKEN: f"Bearer {address.token}",
            Header.RUN: address.run_id,
            Header.TRANSPORT: str(TRANSPORT_VERSION),
        }
        place = address.host, address.port
        is_tls = bool(address.certificate) or authority is not None
        self._connection = (
            http.client.HTTPSConnection(
                *place, timeout=REQUEST_TIMEOUT_S, context=_trusting(authority)
            )
            if is_tls
            else http.client.HTTPConnection(*place, timeout=REQUEST_TIMEOUT_S)
        )

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def answers(self) -> bool:
        """Returns whether the head of this run answers at the address, within a moment."""
        try:
            _, answer = self._ask("GET", "/v1/clock", timeout_s=PROBE_TIMEOUT_S)
        except (HeadRefuses, BrokenLink):
            return False
        return isinstance(answer.get("unix_ns"), int)

    def greet(self, state: NodeState, is_shared: bool = False) -> Greeting:
        """Returns how the head knows this node, and the files that it has of it; those of a node
        that shares its folder are not listed."""
        said = {"name": state.name, "node_id": state.node_id, "is_shared": is_shared}
        timeout_s = REQUEST_TIMEOUT_S if is_shared else GREETING_TIMEOUT_S
        _, answer = self._ask("POST", "/v1/hello", json.dumps(said).encode(), timeout_s)
        try:
            return msgspec.convert(answer, Greeting)
        except msgspec.ValidationError as error:
            raise BrokenLink(str(error)) from None

    def send(self, name: str, changes: FolderChanges) -> bool:
        """Sends what has changed, as much as one request holds; returns whether there was any."""
        pieces = changes.next_pieces()
        if pieces:
            status, answer = self._send_pieces(name, pieces)
            if status == HTTPStatus.CONFLICT:
                changes.send_again(answer["name"])
            else:
                changes.confirm()
        return bool(pieces)

    def show_life(self, name: str) -> None:
        """Tells the head that the node is there, whether or not anything has changed."""
        self._send_pieces(name, [])

    def _send_pieces(self, name: str, pieces: Sequence[FilePiece]) -> tuple[int, dict[str, Any]]:
        body = zlib.compress(_packer.encode(pieces), COMPRESSION)
        return self._ask("POST", f"/v1/pieces?node={name}", body)

    def measure_clock(self, exchanges: int = CLOCK_EXCHANGES) -> ClockOffset:
        """Returns by how much our clock is ahead, from the exchange with the shortest round trip:
        the head read its clock somewhere within that."""
        best: ClockOffset | None = None
        for _ in range(exchanges):
            asked_ns, began_ns = time.time_ns(), time.perf_counter_ns()
            _, answer = self._ask("GET", "/v1/clock")
            half_ns = (time.perf_counter_ns() - began_ns) / 2
            offset_s = (asked_ns + half_ns - answer["unix_ns"]) / 1e9
            if best is None or half_ns / 1e9 < best.uncertainty_s:
                best = ClockOffset(offset_s, half_ns / 1e9)
        assert best is not None
        return best

    def _ask(
        self, method: str, path: str, body: bytes = b"", timeout_s: float = REQUEST_TIMEOUT_S
    ) -> tuple[int, dict[str, Any]]:
        """Returns the status and the answer; raises HeadRefuses, or BrokenLink."""
        try:
            if self._connection.sock is None:
                self._connection.timeout = min(timeout_s, REQUEST_TIMEOUT_S)
                self._connection.connect()
                self._check_certificate()
            self._connection.sock.settimeout(timeout_s)
            self._connection.request(method, path, body, self._headers)
            response = self._connection.getresponse()
            answer = json.loads(response.read())
            if not isinstance(answer, dict):
                raise ValueError("the answer is not a JSON object, as the head's answers are")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise BrokenLink(str(error)) from error
        if response.status in (HTTPStatus.OK, HTTPStatus.CONFLICT):
            return response.status, answer
        words = str(answer.get("error", response.reason))
        if response.status in (
            HTTPStatus.UNAUTHORIZED,
            HTTPStatus.FORBIDDEN,
            HTTPStatus.UPGRADE_REQUIRED,
        ):
            raise HeadRefuses(words)
        self._connection.close()
        raise BrokenLink(words)

    def _check_certificate(self) -> None:
        """Raises OSError where the head does not show the certificate that its address names."""
        if not self._address.certificate:
            return
        socket: Any = self._connection.sock
        shown = socket.getpeercert(binary_form=True) or b""
        found = hashlib.sha256(shown).hexdigest()
        if not hmac.compare_digest(found, self._address.certificate):
            raise OSError(
                "the machine that collects the run shows another certificate than it published"
            )


def _trusting(authority: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nodes are reached by address; the certificate is compared
    if authority is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(authority)
    return context


class NodeLink:
    """Keeps a node's records at the head, from joining to the end of the run."""

    def __init__(
        self,
        folder: Path,
        address: HeadAddress,
        is_shared: bool = False,
        authority: Path | None = None,
        said: Callable[[str], None] = print,
    ) -> None:
        """`is_shared`: the folder lies in the head's already, and only the clock is measured.
        `said` takes what goes wrong, in words."""
        self._folder = folder
        self._address = address
        self.is_shared = is_shared
        self._authority = authority
        self._said = said
        self._lock = Lock()
        self._wake = Event()
        self._is_ending = False
        self._is_replaced = False
        self._delivered = Event()
        self._over = Event()
        self._clock_due_s = 0.0
        self._measured_s = 0.0
        """When the offset was measured that `node.json` has."""
        self._changes = FolderChanges(folder)
        self._last_said = ""
        self._noted: str | None = None
        """What `node.json` has from this link that is wrong with it, until it works again."""
        self._trouble_before: str | None = None
        """What `node.json` said until then."""
        self.failures = 0
        """How often something failed that is no fault of the network's."""
        self._thread = Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        """Begins to send, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the link without a last word, because another one takes its place: it sends nothing
        more to its head, and `node.json` is no longer its to change."""
        with self._lock:
            self._is_replaced = True
        self._over.set()
        self._wake.set()

    def finish(self, timeout_s: float, is_whole: bool = True, notes: Sequence[str] = ()) -> bool:
        """Sends what is left; returns whether the head has confirmed all of it in time.

        `notes` say what is missing of this node's records even so: the head shows them.
        """
        trouble = "; ".join(filter(None, (self._state().trouble, *notes))) or None
        # A head that shares our folder reads that at once, and may end: it is asked before.
        is_asked_first = self.is_shared and self._measured_s > 0
        if not is_asked_first:
            self.update(is_finished=is_whole, trouble=trouble)
        self._is_ending = True
        self._wake.set()
        self._over.wait(timeout_s)
        if is_asked_first:
            self.update(is_finished=is_whole, trouble=trouble)
        return self._delivered.is_set()

    def _run(self) -> None:
        retry_s = MIN_RETRY_S
        while not self._over.is_set():
            began_s = time.monotonic()
            try:
                with closing(HeadClient(self._address, self._authority)) as client:
                    self._talk(client)
                return
            except HeadRefuses as error:
                self._trouble(f"the machine that collects the run refused its records: {error}")
                self._over.set()
                return
            except BrokenLink:
                pass  # the network, or the head is being restarted: nobody need be told
            except OSError as error:  # a certificate that is not here, our own disk
                self._trouble(f"{_LINK_FAILS} ({error})")
            except Exception as error:  # noqa: BLE001 - counted, said with its traceback, tried again
                self.failures += 1
                self._trouble(
                    f"{_LINK_FAILS} ({error!r})",
                    masked_message(traceback.format_exc()),
                )
            if time.monotonic() - began_s > MAX_RETRY_S:
                retry_s = MIN_RETRY_S
            self._pause(retry_s)
            retry_s = min(MAX_RETRY_S, 2 * retry_s)

    def _pause(self, most_s: float) -> None:
        """Waits before the link is tried again; a short time only, where the run ends."""
        if self._is_ending or self._wake.wait(random.uniform(most_s / 2, most_s)):
            time.sleep(MIN_RETRY_S)

    def _talk(self, client: HeadClient) -> None:
        """Sends what changes until the end of the run; raises where the link breaks."""
        state = self._state()
        found = client.greet(state, self.is_shared)
        name = found.name
        if not self.is_shared:
            where = {"head_machine": found.machine, "head_folder": found.folder}
            self.update(name=name, **where)
            self._changes.begin_from(found.files)
        while not self._is_replaced:
            self._look_at_clock(client)
            self._forget_trouble()
            is_last = self._is_ending  # asked before: what was written until then is sent
            if self.is_shared:
                client.greet(state, is_shared=True)  # a sign of life
            else:
                self._send_all(client, name)
                if not is_last:  # then the head may have ended, with all that it waited for
                    client.show_life(name)
            if is_last:
                self._delivered.set()
                self._over.set()
                return
            self._wake.wait(SEND_EVERY_S)

    def _send_all(self, client: HeadClient, name: str) -> None:
        """Sends all that has changed, and then which files stay here, where that is news."""
        while client.send(name, self._changes):
            pass
        if self._changes.files_left != self._state().files_left:
            self.update(files_left=self._changes.files_left)
            client.send(name, self._changes)

    def _look_at_clock(self, client: HeadClient) -> None:
        """Measures the clock, where it is time for that; on a busy link the earlier result may be
        the better one still."""
        now_s = time.monotonic()
        if now_s >= self._clock_due_s:
            found = client.measure_clock()
        elif self._is_ending and now_s - self._measured_s > OLD_CLOCK_S:
            found = client.measure_clock(LAST_EXCHANGES)
        else:
            return
        self._clock_due_s = now_s + CLOCK_EVERY_S  # only now: the link may break meanwhile
        before_s, passed_s = self._state().clock_uncertainty_s, now_s - self._measured_s
        if before_s is None or found.uncertainty_s <= before_s + MAX_DRIFT * passed_s:
            self._measured_s = now_s
            self.update(
                clock_offset_s=found.offset_s,
                clock_uncertainty_s=found.uncertainty_s,
                clock_unix_s=time.time(),
            )

    def _trouble(self, words: str, details: str = "") -> None:
        """Says what goes wrong, in the log and in `node.json`; once, however often it is tried."""
        if words != self._last_said:
            self._last_said = words
            self._said("\n".join(filter(None, (words, details))))
        if words != self._noted:
            if self._noted is None:
                self._trouble_before = self._state().trouble
            self._noted = words
            self.update(trouble=words)

    def _forget_trouble(self) -> None:
        """The link works again: what was wrong with it is of no interest any more."""
        if self._noted is not None and self._state().trouble == self._noted:
            self.update(trouble=self._trouble_before)
        self._noted = None

    def _state(self) -> NodeState:
        return read_node(self._folder) or NodeState(self._address.run_id, "node", way=NodeWay.HTTP)

    def update(self, **fields: Any) -> None:
        """Changes what `node.json` says; from any thread."""
        with self._lock:
            if self._is_replaced:
                return
            state = self._state()
            changed = replace(state, **fields)
            try:
                if changed != state:
                    write_node(self._folder, changed)
            except OSError as error:
                self._said(f"{self._folder} cannot be written: {error}")
