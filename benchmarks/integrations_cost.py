"""`python -m benchmarks.integrations_cost`: what all integrations together add to a traced run.

Runs of one script in turn: traced alone, and traced with `--log-to` four trackers, an OTLP
collector, a webhook and Lightning's callback. The script itself has runs of all four trackers open
and logs to them on both sides, offline. Each run with integrations is held against the one beside
it. Needs the packages of the extra `integrations`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil

from benchmarks import commands
from benchmarks.figure import Figure, machine, table
from benchmarks.stats import median_interval

TRACKERS = "wandb,mlflow,tensorboard,trackio"
WARM_UP_S = 12.0
"""Until the processes of the trackers have imported their packages, and each has begun its run."""
LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class IntegratedRun:
    """One run, as its script and a look at its processes tell it."""

    steps: int
    step_ms: float
    """The mean after the warm-up; the median is in `median_ms`."""
    median_ms: float
    main_cpu_ms: float
    """CPU time of the training thread per step."""
    looks: int
    looks_us: float
    """Of our looks for open runs, per step."""
    longest_look_ms: float
    wandb_thread_us: float
    """CPU time of our thread that logs to W&B, per step."""
    ours_cpu_share: float
    """Of one core, after the warm-up: launcher, agent, and the processes of trackers."""
    ours_cpu_s: float
    """From start to end."""
    requests: int
    """That the collector and the webhook got."""


@contextmanager
def receiver() -> Iterator[tuple[str, list[str]]]:
    """A collector and webhook on loopback; its address, and the paths that were posted to."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(place: Path, collector: str | None) -> dict[str, str]:
    """Nobody is logged in anywhere; what trackers keep stays in one folder."""
    found = {
        **commands.environment(),
        "HOME": str(place),
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db",
        "TRACKIO_DIR": str(place / "trackio"),
        "WANDB_DIR": str(place),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
    if collector is not None:
        found["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector
    return found


def make_run(is_on: bool, seconds: float) -> IntegratedRun:
    """One run, with all integrations or with none."""
    script = commands.SCRIPTS / "train_with_trackers.py"
    with tempfile.TemporaryDirectory() as folder, receiver() as (url, received):
        place = Path(folder)
        said = place / "said.json"
        options = ["--log-to", TRACKERS, "--notify", f"{url}/webhook"] if is_on else []
        words = [*commands.traceml(), "run", "--mode=summary", *options, str(script), "--args"]
        with (place / "output").open("wb") as output:
            process = subprocess.Popen(
                [*words, str(said), str(seconds), *(["callback"] if is_on else [])],
                cwd=place,
                env=environment(place, url if is_on else None),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            watched = OurProcesses(process)
            try:
                watched.follow()
            finally:
                commands.end_tree(process)
        if process.returncode:
            raise SystemExit((place / "output").read_text())
        return _measured(json.loads(said.read_text()), watched, len(received))


class OurProcesses:
    """The CPU time of what TraceML started: everything but the training and what that started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._root = psutil.Process(process.pid)
        self._seen_s: dict[int, float] = {}
        self.samples: list[tuple[float, float]] = []
        """Moments, on the script's clock, and the CPU time until then."""

    def follow(self) -> None:
        """Looks again and again until the command has ended."""
        while self._process.poll() is None:
            self._look()
            time.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        try:
            for each in (self._root, *self._ours(self._root)):
                self._seen_s[each.pid] = sum(each.cpu_times()[:2])
        except psutil.Error:
            return
        self.samples.append((time.perf_counter(), sum(self._seen_s.values())))

    def _ours(self, parent: psutil.Process) -> Iterator[psutil.Process]:
        for child in parent.children():
            if not _trains(child):
                yield child
                yield from self._ours(child)

    def cpu_share(self, from_s: float, until_s: float) -> float:
        """Of one core, between two moments."""
        inside = [(at, cpu) for at, cpu in self.samples if from_s <= at <= until_s]
        (first_s, first), (last_s, last) = inside[0], inside[-1]
        return (last - first) / (last_s - first_s)


def _trains(process: psutil.Process) -> bool:
    return any(word.endswith("train_with_trackers.py") for word in process.cmdline()[:3])


def _measured(said: dict[str, Any], watched: OurProcesses, requests: int) -> IntegratedRun:
    ends = said["ends"]
    warm = [end for end in ends if end - ends[0] > WARM_UP_S]
    steps_s = [after - before for before, after in pairwise(warm)]
    return IntegratedRun(
        steps=len(ends),
        step_ms=1e3 * fmean(steps_s),
        median_ms=1e3 * median(steps_s),
        main_cpu_ms=1e3 * said["main_cpu_s"] / len(ends),
        looks=len(said["looks_s"]),
        looks_us=1e6 * sum(said["looks_s"]) / len(ends),
        longest_look_ms=1e3 * max(said["looks_s"], default=0.0),
        wandb_thread_us=1e6 * said["wandb_thread_cpu_s"] / len(ends),
        ours_cpu_share=watched.cpu_share(warm[0], warm[-1]),
        ours_cpu_s=watched.samples[-1][1],
        requests=requests,
    )


def _figures(on: list[IntegratedRun], off: list[IntegratedRun]) -> list[Figure]:
    pairs = list(zip(on, off, strict=True))
    spread = f"95 %, {len(pairs)} pairs" if len(pairs) > 5 else f"range of {len(pairs)} pairs"

    def added(what: str, target: str, field: str) -> Figure:
        shares = [getattr(a, field) / getattr(b, field) - 1 for a, b in pairs]
        middle, low, high = (100 * value for value in median_interval(shares))
        usual = median(getattr(b, field) for _, b in pairs)
        return Figure(what, target, middle, "%", low, high, spread, f"of {usual:.2f} ms")

    def own(what: str, field: str, unit: str, note: str = "") -> Figure:
        found = [getattr(each, field) for each in on]
        return Figure(what, "–", median(found), unit, min(found), max(found), "range", note)

    longest = max(each.longest_look_ms for each in on)
    alone = median(each.ours_cpu_share for each in off)
    alone_s = median(each.ours_cpu_s for each in off)
    return [
        added("step time, mean: added", "within noise", "step_ms"),
        added("step time, median: added", "within noise", "median_ms"),
        added("CPU of the training thread per step: added", "within noise", "main_cpu_ms"),
        own("looks for open runs, per step", "looks_us", "µs", f"the longest {longest:.1f} ms"),
        own("thread that logs to W&B, CPU per step", "wandb_thread_us", "µs"),
        own("CPU of our processes, of a core", "ours_cpu_share", "", f"without: {alone:.3f}"),
        own("the same from start to end", "ours_cpu_s", "s", f"without: {alone_s:.1f} s"),
        own("requests at collector and webhook", "requests", ""),
    ]


def main() -> None:
    """Measures, and prints one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrations_cost")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40.0, help="of training in each run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run there")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    on: list[IntegratedRun] = []
    off: list[IntegratedRun] = []
    for number in range(options.pairs):
        for is_on in (True, False) if number % 2 else (False, True):
            made = make_run(is_on, options.seconds)
            (on if is_on else off).append(made)
            print(f"{'with' if is_on else 'alone'}: {made}", flush=True)
    print(f"{machine()}; load at the start {load:.1f}\n\n{table(_figures(on, off))}")
    if options.json:
        sides = {"with": on, "alone": off}
        content = {name: [asdict(each) for each in runs] for name, runs in sides.items()}
        options.json.write_text(json.dumps({"machine": machine(), **content}, indent=1) + "\n")


if __name__ == "__main__":
    main()
