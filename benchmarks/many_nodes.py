"""One run over many machines that are not there: a real head, real links, synthetic records.

Three measurements: a head that takes 128 nodes of eight ranks live, one of which begins to
straggle; a node's agent that follows eight ranks and sends their records; and the final summary of
10,240 ranks.
"""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import psutil

from benchmarks.figure import Figure
from benchmarks.large_summary import summarise
from benchmarks.made_nodes import MadeNode, MadeTraining, StragglingJob, write_nodes
from benchmarks.made_runs import PER_NODE
from traceml.agent.node_link import NodeLink
from traceml.agent.node_server import HeadServer
from traceml.launch.supervise import AgentProcess
from traceml.model.node import HEAD_MARK, HEAD_WANTED_MARK, JOIN_MARK, HeadAddress
from traceml.model.run import Manifest
from traceml.store import folder as folders

NODES = 128
STEP_S = 0.5
SETTLING_S = 40.0
"""Until all nodes have joined and the window is full enough."""
HEALTHY_S = 30.0
"""Over which the head is measured while nothing is wrong …"""
STRAGGLING_S = 40.0
"""… and while one node is."""
TIMEOUT_S = 120.0

SHIPPED_STEP_S = 0.1
SHIPPING_S = 60.0

SUMMARY_NODES, SUMMARY_STEPS, REPEATS = 1_280, 1_000, 3


class SentBytes:
    """Counts what the links of this process send."""

    def __init__(self) -> None:
        self.count = 0
        send = http.client.HTTPConnection.send

        def counted(connection: Any, data: Any) -> None:
            self.count += len(data)
            send(connection, data)

        http.client.HTTPConnection.send = counted  # type: ignore[assignment, method-assign]
        self._send = send

    def end(self) -> None:
        """Stops counting."""
        http.client.HTTPConnection.send = self._send  # type: ignore[method-assign]


@contextmanager
def running_agent(folder: Path) -> Iterator[tuple[AgentProcess, psutil.Process]]:
    """The real agent of a run folder, until the block ends."""
    agent = AgentProcess(folder, os.environ)
    agent.start()
    agent.send_training_pid(os.getpid())
    assert agent._process is not None
    try:
        yield agent, psutil.Process(agent._process.pid)
    finally:
        agent.kill()
        agent.let_go()


def head_of(folder: Path) -> HeadAddress:
    """Asks the folder's agent to be the head; returns how it is reached."""
    wanted = {"host": "127.0.0.1", "run_id": "benchmark", "token": "benchmark"}
    folders.write_mark(folder, HEAD_WANTED_MARK, json.dumps(wanted))
    text = wait_for(lambda: folders.read_mark(folder, HEAD_MARK))
    return HeadAddress(**json.loads(text))


def wait_for(look: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Returns what it finds, as soon as it finds anything."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nothing was found in {timeout_s:.0f} s")
        time.sleep(0.1)
    return found


def cpu_s(process: psutil.Process) -> float:
    """CPU time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


class Spent:
    """What a process spends from now on."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._began_s, self._cpu_s = time.monotonic(), cpu_s(process)

    def cores(self) -> float:
        """Cores kept busy."""
        return (cpu_s(self._process) - self._cpu_s) / (time.monotonic() - self._began_s)


class SimulatedNodes:
    """Nodes that train together, each with a real link to the head; one of them can be slow."""

    def __init__(self, place: Path, nodes: int, head: HeadAddress) -> None:
        slow = nodes // 2
        self.slow_ranks = set(range(slow * PER_NODE, (slow + 1) * PER_NODE))
        self.job = StragglingJob(STEP_S, slow)
        self._nodes = [MadeNode(place / f"node-{n}", n, nodes, head) for n in range(nodes)]
        self._links = [NodeLink(node.folder, replace(head, folder="")) for node in self._nodes]
        for link in self._links:
            link.start()

    def train(self, seconds: float) -> None:
        """Takes steps for so long, as fast as they are due."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            due = self.job.steps_until(time.perf_counter_ns())
            for node in self._nodes:
                node.append(self.job, *due)
            time.sleep(STEP_S / 2)

    def finish(self) -> None:
        """Sends what is left."""
        if not all(link.finish(TIMEOUT_S) for link in self._links):
            raise RuntimeError("the head did not get all records of all nodes")


def run_head(place: Path, nodes: int = NODES) -> dict[str, float]:
    """The head of a run over so many nodes, one of which begins to straggle."""
    folder = place / "run"
    folder.mkdir()
    folders.write_manifest(
        folder, Manifest("live", time.time(), expected_world_size=nodes * PER_NODE, nodes=nodes)
    )
    with running_agent(folder) as (agent, process):
        simulated, sent = SimulatedNodes(place, nodes, head_of(folder)), SentBytes()
        simulated.train(SETTLING_S)
        sent.count, healthy = 0, Spent(process)
        simulated.train(HEALTHY_S)
        found = {"healthy_cores": healthy.cores(), "bytes_per_s": sent.count / HEALTHY_S}
        found |= _straggle(folder, simulated, process)
        simulated.finish()
        sent.end()
        return found | _end(folder, agent, process)


def _straggle(folder: Path, simulated: SimulatedNodes, process: psutil.Process) -> dict[str, float]:
    """One node becomes slow: how long until it is named, and what the head spends meanwhile."""
    onset_s = simulated.job.begin_straggling()
    named, over = [float("nan")], Event()
    watch = Thread(target=_note_when_named, args=(folder, simulated.slow_ranks, named, over))
    watch.start()
    spent = Spent(process)
    simulated.train(STRAGGLING_S)
    over.set()
    watch.join()
    return {
        "straggling_cores": spent.cores(),
        "named_s": named[0] - onset_s,
        "peak_bytes": _peak_bytes(process),
    }


def _note_when_named(folder: Path, ranks: set[int], named: list[float], over: Event) -> None:
    """Notes the time at which a live finding names some of these ranks and no others."""
    while not over.wait(0.25):
        try:
            findings = json.loads((folder / "live.json").read_bytes())["findings"]
        except (OSError, ValueError):
            continue
        if any(each["ranks"] and ranks.issuperset(each["ranks"]) for each in findings):
            named[0] = time.time()
            return


def _end(folder: Path, agent: AgentProcess, process: psutil.Process) -> dict[str, float]:
    """The training has ended: how long until the head has written the summary."""
    before_s = last_s = cpu_s(process)
    ended_s = time.monotonic()
    agent.send({"ended": {"exit_status": 0}})
    while not agent.has_ended():
        with suppress(psutil.NoSuchProcess):
            last_s = cpu_s(process)
        time.sleep(0.05)
    wall_s = time.monotonic() - ended_s
    summary = json.loads((folder / folders.SUMMARY).read_bytes())
    return {
        "summary_wall_s": wall_s,
        "summary_cpu_s": last_s - before_s,
        "ranks": summary["meta"]["world_size"],
    }


def run_node(place: Path) -> dict[str, float]:
    """A node's agent that follows eight ranks: alone at first, then sending their records."""
    head, folder = place / "head", place / "node"
    for path in (head, folder):
        path.mkdir()
        folders.write_manifest(path, Manifest("ship", time.time(), expected_world_size=16, nodes=2))
    received = [0]

    class CountingServer(HeadServer):
        def _take(self, name: str, body: bytes) -> dict[str, Any]:
            received[0] += len(body)
            return super()._take(name, body)

    server = CountingServer(head, HeadAddress("benchmark", "127.0.0.1", 0, "benchmark"))
    server.start()
    training = MadeTraining(folder, SHIPPED_STEP_S)
    with running_agent(folder) as (_, process):
        training.train(SETTLING_S / 4)
        alone = Spent(process)
        training.train(SHIPPING_S)
        alone_cores, threads = alone.cores(), {each.id for each in process.threads()}
        folders.write_mark(folder, JOIN_MARK, json.dumps(asdict(server.address)))
        training.train(SETTLING_S / 4)
        link = next(each.id for each in process.threads() if each.id not in threads)
        received[0], joined, before_s = 0, Spent(process), thread_s(process, link)
        training.train(SHIPPING_S)
        found = {
            "alone_cores": alone_cores,
            "joined_cores": joined.cores(),
            "link_cores": (thread_s(process, link) - before_s) / SHIPPING_S,
            "bytes_per_s": received[0] / SHIPPING_S,
            "agent_bytes": process.memory_info().rss,
        }
    server.stop()
    return found


def thread_s(process: psutil.Process, thread: int) -> float:
    """CPU time of one thread so far."""
    return next(e.user_time + e.system_time for e in process.threads() if e.id == thread)


def _peak_bytes(process: psutil.Process) -> int:
    """The most memory that a process has held so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def run() -> list[Figure]:
    """All three, one after the other."""
    with tempfile.TemporaryDirectory() as place:
        head = run_head(Path(place))
    with tempfile.TemporaryDirectory() as place:
        node = run_node(Path(place))
    with tempfile.TemporaryDirectory() as place:
        write_nodes(Path(place), SUMMARY_NODES, SUMMARY_STEPS)
        ranks = SUMMARY_NODES * PER_NODE
        built = [summarise(Path(place), ranks, SUMMARY_STEPS) for _ in range(REPEATS)]
    return [*_of_head(head), *_of_node(node), *_of_summary(built)]


def _of_head(found: dict[str, float]) -> list[Figure]:
    what = f"head of {NODES} nodes × {PER_NODE} ranks at {1 / STEP_S:.0f} steps/s"
    low, high = sorted((found["healthy_cores"], found["straggling_cores"]))
    return [
        Figure(
            f"{what}: CPU",
            "≤ 1 core",
            high,
            "cores",
            low,
            high,
            spread="while nothing is wrong, and while a node straggles",
            details=found,
        ),
        Figure(f"{what}: peak memory", "≤ 1,000 MB", found["peak_bytes"] / 1e6, "MB"),
        Figure(f"{what}: received", "–", found["bytes_per_s"] / 1e3, "kB/s"),
        Figure(f"{what}: a straggling node is named after", "≤ 15 s", found["named_s"], "s"),
        Figure(
            f"{what}: end to summary",
            "–",
            found["summary_wall_s"],
            "s",
            note=f"{found['summary_cpu_s']:.1f} s of CPU time",
        ),
    ]


def _of_node(found: dict[str, float]) -> list[Figure]:
    what = f"agent of a node, {PER_NODE} ranks at {1 / SHIPPED_STEP_S:.0f} steps/s"
    return [
        Figure(f"{what}: CPU", "≤ 2 %", 100 * found["joined_cores"], "%", details=found),
        Figure(f"{what}: CPU of sending", "–", 100 * found["link_cores"], "%"),
        Figure(f"{what}: CPU before it joined", "–", 100 * found["alone_cores"], "%"),
        Figure(f"{what}: sent", "≤ 20 kB/s", found["bytes_per_s"] / 1e3, "kB/s"),
    ]


def _of_summary(found: list[dict[str, Any]]) -> list[Figure]:
    total, cpu = ([each[name] for each in found] for name in ("total_s", "cpu_s"))
    peak = [each["peak_bytes"] / 1e6 for each in found]
    what = f"summary of {SUMMARY_NODES:,} nodes × {PER_NODE} ranks × {SUMMARY_STEPS:,} steps"
    spread = f"range of {REPEATS}"
    note = f"{median(cpu):.1f} s of CPU time"
    times = median(total), "s", min(total), max(total), spread, note, {"runs": found}
    return [
        Figure(f"{what}: time", "≤ 10 s", *times),
        Figure(f"{what}: peak memory", "≤ 2,000 MB", median(peak), "MB", min(peak), max(peak)),
    ]
