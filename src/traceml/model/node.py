"""What a node of a run over several machines says about itself, and how it reaches the head."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

HEAD_MARK = "head.json"
"""A mark in the run folder: the agent of this node is the head, and this is how it is reached."""
HEAD_WANTED_MARK = "head-wanted.json"
"""A mark that rank 0 leaves for its agent: be the head."""
JOIN_MARK = "join.json"
"""A mark that a rank of another node leaves for its agent: this is the head."""
ORIGIN_MARK = "origin"
"""A mark for the agent of a node where the command that began the run runs on another machine: the
path of that run's folder."""
JOINED_MARK = "nodes-joined"
"""A mark that rank 0 leaves for its agent at the end of the job: how many other machines know the
head by then."""
STORE_KEY = "traceml/head"
"""The key of the head in the job's own store; others begin with it."""
STORE_EXPECTED_KEY = f"{STORE_KEY}/expected"
"""Set by rank 0 while its agent is about to be the head."""
STORE_NO_HEAD_KEY = f"{STORE_KEY}/none"
"""Set by rank 0 at the end of the job where its agent is gone: there will be no head."""
STORE_MACHINE_KEY = f"{STORE_KEY}/machine"
"""Set by rank 0 to what tells its machine from others, where no launcher counts them …"""
STORE_ELSEWHERE_KEY = f"{STORE_KEY}/elsewhere"
"""… and by a rank that is on another one."""


def traced_key(node: int) -> str:
    """Returns the key that the first rank of a machine sets when the job begins: it is traced."""
    return f"{STORE_KEY}/traced/{node}"


def joined_key(node: int) -> str:
    """Returns the key that the first rank of a machine sets when it has found the head."""
    return f"{STORE_KEY}/joined/{node}"


TRANSPORT_VERSION = 1
"""Of what agents say to each other. History: 1 is the first."""


class NodeWay(str, Enum):
    """How the records of a node come to the head."""

    HEAD = "head"
    """It is the head."""
    SHARED = "shared"
    """Its agent writes them into the head's folder, which both machines share."""
    HTTP = "http"
    """Its agent sends them."""
    COPIED = "copied"
    """`traceml recover` copied its folder; its agent never reached the head."""


@dataclass(frozen=True, slots=True)
class HeadAddress:
    """How the head is reached: what rank 0 publishes in the job's store, as JSON."""

    run_id: str
    """A random number that is this run's alone."""
    host: str
    port: int
    token: str
    """What the head asks of everybody who sends it anything."""
    folder: str = ""
    """The run folder's path on the head; empty where it is not known."""
    nonce: str = ""
    """What the file `.shared` in its `nodes` folder holds: who can read it shares the folder."""
    machine: str = ""
    """The head's name."""
    certificate: str = ""
    """In hexadecimal, the SHA-256 of the certificate that the head shows; empty without TLS."""

    @property
    def place(self) -> str:
        """Host and port as people write them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Header:
    """The headers of a request to the head, in lower case, as they are compared."""

    TOKEN = "authorization"
    RUN = "x-traceml-run"
    TRANSPORT = "x-traceml-transport"
    LENGTH = "content-length"


MAX_DRIFT = 5e-5
"""How fast two clocks may drift apart: 4 s a day, as those of machines without a time server do."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What `node.json` holds: one node of a run over several machines, as its own agent knows it.

    Times are those of the node's own clock.
    """

    run_id: str
    name: str
    """Its folder's name under `nodes` of the head's folder."""
    node_id: str = ""
    """A random number that is this node's alone: two machines may have one hostname."""
    hostname: str = ""
    way: NodeWay = NodeWay.COPIED
    traceml_version: str = ""
    record_format: int = 0
    joined_unix_s: float | None = None
    clock_offset_s: float | None = None
    """The node's clock minus the head's; `None` where it was not measured."""
    clock_uncertainty_s: float | None = None
    """Half of the shortest round trip: the offset was wrong by no more than this …"""
    clock_unix_s: float | None = None
    """… at this moment; `None` in records that do not say it."""
    is_finished: bool = False
    """Whether its agent has closed the folder, so that nothing more will come."""
    is_delivered: bool = False
    """Whether the head has confirmed that all of it is there."""
    files_left: tuple[str, ...] = ()
    """Files that stay on the node alone."""
    trouble: str | None = None
    """What went wrong on the way to the head, in words."""
    folder: str = ""
    """The path of its own run folder on its machine; empty where it is not known."""
    head_machine: str = ""
    head_folder: str = ""

    @property
    def has_known_head(self) -> bool:
        """Whether there is a head: it answered, or the job's own store named it. At the address
        that `--head` names there may be none, or that of another run."""
        is_with_head = self.way in (NodeWay.HEAD, NodeWay.SHARED)
        return is_with_head or bool(self.head_folder) or self.clock_offset_s is not None
