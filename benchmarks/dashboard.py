"""What the dashboard costs, and how soon it shows something: a live run of eight ranks, looked at.

The first paint is a real browser's; without one that row is left out, and why is said.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks import commands
from benchmarks.figure import Figure
from benchmarks.stats import median_interval
from traceml.web.delta import apply

RANKS = 8
STEP_S = 0.04
"""Eight ranks share the cores with everything else: they leave some of them idle."""
FULL_STEPS = 1500
"""From there on the histories are as long as they get."""
WATCHED_S = 30.0
ROUNDS = 3
MANY = 10
REQUESTS = 50
PAINTS = 9
BROWSERS = ("/usr/bin/chromium", "/usr/bin/google-chrome")
_TICKS = os.sysconf("SC_CLK_TCK")
RUN = "live"


def run() -> list[Figure]:
    """Every row of the table that is about the dashboard."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        logs = place / "logs"
        with _training(place, logs), serve(logs) as (pid, address):
            first_byte = [_first_byte_ms(address) for _ in range(REQUESTS)]
            figures = [_first_byte_figure(first_byte), *_watched_figures(pid, address, place)]
        with serve(logs) as (_, address):  # eight ranks would paint as well
            return [*figures, *_paint_figures(f"{address}runs/{RUN}")]


@contextmanager
def _training(place: Path, logs: Path) -> Iterator[None]:
    """The run, under way."""
    words = [
        *(*commands.traceml(), "run", "--mode=summary", "--logs-dir", str(logs)),
        *("--run-name", RUN, "--nproc-per-node", str(RANKS)),
        *(str(commands.SCRIPTS / "live_ranks.py"), "--args", str(place), str(STEP_S)),
    ]
    process = commands.start(words)
    try:
        while not (place / "steps-0").exists() or len(_ends(place)) < FULL_STEPS:
            if process.poll() is not None:
                raise subprocess.CalledProcessError(process.returncode, words)
            time.sleep(1)
        yield
    finally:
        (place / "stop").touch()
        process.wait()


@contextmanager
def serve(logs: Path) -> Iterator[tuple[int, str]]:
    """A server for a logs folder; its process and its address."""
    words = [*commands.traceml(), "ui", "--logs-dir", str(logs), "--port", "0"]
    with subprocess.Popen(
        words, env=commands.environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found, "the server did not say where it is"
            yield process.pid, found[0]
        finally:
            process.terminate()


def _first_byte_ms(address: str) -> float:
    connection = _connect(address)
    began = time.perf_counter()
    connection.request("GET", f"/runs/{RUN}")
    answer = connection.getresponse()
    taken_ms = (time.perf_counter() - began) * 1e3
    answer.read()
    connection.close()
    return taken_ms


def _connect(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)


def _first_byte_figure(taken_ms: list[float]) -> Figure:
    middle, low, high = median_interval(taken_ms)
    return Figure("page, first byte", "–", middle, "ms", low, high, f"95 %, {REQUESTS} requests")


# Viewers


class _Viewer:
    """Reads a page's stream in a thread, as a browser does."""

    def __init__(self, address: str) -> None:
        self._connection = _connect(address)
        self.changes_bytes: list[int] = []
        self.page_bytes = 0
        self.seen: list[tuple[float, int]] = []
        """When a change came, and how many steps the page had then."""
        self._page: Any = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._connection.request("GET", f"/api/events?page=/runs/{RUN}")
        answer = self._connection.getresponse()
        name = b""
        try:
            while line := answer.readline():
                field, _, value = line.rstrip(b"\n").partition(b": ")
                if field == b"event":
                    name = value
                elif field == b"data":
                    self._take(name, value)
        except (OSError, ValueError, AttributeError):  # closed under us
            return

    def _take(self, name: bytes, data: bytes) -> None:
        now_s = time.monotonic()
        if name == b"page":
            self.page_bytes, self._page = len(data), json.loads(data)
            return
        self.changes_bytes.append(len(data))
        self._page = apply(self._page, json.loads(data))
        steps = re.match(r"[\d,]+", self._page["head"]["steps"])
        if steps:
            self.seen.append((now_s, int(steps[0].replace(",", ""))))

    def close(self) -> None:
        """Look no longer."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)  # closing alone wakes no reader
        self._thread.join()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _watch(pid: int, address: str, viewers: int) -> tuple[float, list[_Viewer], float, float]:
    """The share of a core that the server took while so many looked; from when to when."""
    looking = [_Viewer(address) for _ in range(viewers)]
    time.sleep(3)  # the first page is another matter
    cpu_s, began = _cpu_s(pid), time.monotonic()
    time.sleep(WATCHED_S)
    ended = time.monotonic()
    share = (_cpu_s(pid) - cpu_s) / (ended - began)
    for viewer in looking:
        viewer.close()
    return share, looking, began, ended


def _watched_figures(pid: int, address: str, place: Path) -> list[Figure]:
    share, (viewer,), _, _ = _watch(pid, address, 1)
    shares: list[float] = []
    steps_ms: dict[int, list[float]] = {viewers: [] for viewers in (0, MANY)}
    for _ in range(ROUNDS):
        for viewers, found_ms in steps_ms.items():
            many_share, _, began, ended = _watch(pid, address, viewers)
            found_ms.append(_step_ms(place, began, ended))
            shares += [many_share] * bool(viewers)
    added = [on - off for on, off in zip(steps_ms[MANY], steps_ms[0], strict=True)]
    whole, note = f"range of {ROUNDS}", f"of a core, over {WATCHED_S:.0f} s"
    return [
        _share_figure(1, "≤ 5 %", [share], note),
        _share_figure(MANY, "–", shares, note),
        *_stream_figures(viewer, place),
        Figure(
            f"step of the training, {MANY} viewers",
            "nothing measurable",
            median(added),
            "ms",
            min(added),
            max(added),
            whole,
            f"{median(steps_ms[0]):.2f} ms without",
        ),
    ]


def _share_figure(viewers: int, target: str, shares: list[float], note: str) -> Figure:
    what = f"server, {viewers} viewer{'s' * (viewers > 1)} of {RANKS} live ranks"
    percent = [100 * share for share in shares]
    spread = (min(percent), max(percent), f"range of {len(percent)}")
    if len(percent) == 1:
        return Figure(what, target, percent[0], "%", note=note)
    return Figure(what, target, median(percent), "%", *spread, note)


def _stream_figures(viewer: _Viewer, place: Path) -> list[Figure]:
    ends = _ends(place)
    late = [now_s - ends[steps - 1] for now_s, steps in viewer.seen if 0 < steps <= len(ends)]
    changes = viewer.changes_bytes
    return [
        Figure(
            "a change of the page, sent",
            "–",
            median(changes) / 1e3,
            "kB",
            min(changes) / 1e3,
            max(changes) / 1e3,
            f"range of {len(changes)}",
            f"the whole page: {viewer.page_bytes / 1e3:.0f} kB",
        ),
        Figure(
            "step to viewer",
            "≤ 2 s",
            median(late),
            "s",
            min(late),
            max(late),
            f"range of {len(late)}",
            "the newest step in a change",
        ),
    ]


def _ends(place: Path) -> list[float]:
    """When each step was over on every rank."""
    files = [place / f"steps-{rank}" for rank in range(RANKS)]
    ranks = [
        [float(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []
        for file in files
    ]
    return [max(step) for step in zip(*ranks)]  # noqa: B905 - a rank may be a step ahead


def _step_ms(place: Path, began: float, ended: float) -> float:
    inside = [end for end in _ends(place) if began <= end <= ended]
    return (inside[-1] - inside[0]) / (len(inside) - 1) * 1e3


# A browser


@contextmanager
def launched_browser() -> Iterator[Any]:
    """Yields a browser without a screen; `None` where there is none, and says why."""
    browser = next((path for path in BROWSERS if Path(path).exists()), None)
    if browser is None:
        print(f"nothing is measured in a browser: there is none at {' or '.join(BROWSERS)}")
        yield None
        return
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("nothing is measured in a browser: playwright is not installed")
        yield None
        return
    with sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        chromium = driver.chromium.launch(executable_path=browser, args=options)
        yield chromium
        chromium.close()


def _paint_figures(address: str) -> list[Figure]:
    paints, verdicts = [], []
    with launched_browser() as chromium:
        if chromium is None:
            return []
        for _ in range(PAINTS):
            page = chromium.new_context().new_page()  # nothing is cached
            page.goto(address)
            page.wait_for_selector("main h2, main .verdict")
            verdicts.append(float(page.evaluate("performance.now()")))
            paints.append(float(page.evaluate(_FIRST_PAINT)))
            page.context.close()
    whole = f"range of {PAINTS}"
    return [
        Figure("first paint", "≤ 1 s", median(paints), "ms", min(paints), max(paints), whole),
        Figure(
            "verdict there", "≤ 1 s", median(verdicts), "ms", min(verdicts), max(verdicts), whole
        ),
    ]


_FIRST_PAINT = """() => new Promise((seen) => new PerformanceObserver((list) => {
  for (const entry of list.getEntriesByName("first-contentful-paint")) seen(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""
