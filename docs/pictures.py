"""Makes the pictures of the README and the documentation, from runs made here and now.

    make pictures

Two of them are the demo's, with a slow and with a fast input path; the third trains on four ranks,
one of which is late; 24 more are those of `examples/sweep.py`. Takes about four minutes, and a
browser (`tests/browsing.py`).
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from browsing import Window, obstacle, opened, window
from served import serving
from traceml.api.watch import RunWatch
from traceml.cli.demo import script
from traceml.figures.page import RunPage
from traceml.model.errors import TraceMLError
from traceml.tui.app import RunApp

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
LARGEST_BYTES = 300_000
"""Of a picture: a page of the documentation is to load at once."""
PATIENCE_S = 180.0

SLOW, FAST, LATE = "slow-input", "fast-input", "four-ranks"
SIZE = ("--batch-size", "64", "--hidden-dim", "768", "--print-every", "10")
DEMO = ("python", "train.py", "--scenario")
COMMANDS = {
    SLOW: (*DEMO, "slow", "--sleep-ms", "4", "--num-samples", "7680", *SIZE),
    FAST: (*DEMO, "fast", "--num-samples", "7680", *SIZE),
    LATE: (
        *("torchrun", "--nproc-per-node", "4", "train_ddp.py", "--steps", "400"),
        *("--late-rank", "2", "--where", "forward", "--delay-ms", "30"),
    ),
}
SWEEP_AXES = "lr,width,optimizer,seed,duration_s,metrics.val/loss"
SHOWN_FROM_STEP = 60
"""A live picture has something to show from here on."""


@dataclass(frozen=True)
class Shot:
    """A page as a picture."""

    name: str
    address: str
    height: int = 800
    width: int = 1280
    scheme: str = "light"
    piece: str = "body"
    """What of it."""


FINISHED = (
    Shot("ranks", f"runs/{LATE}", height=2400, piece=".figure-heatmap"),
    Shot("run-dark", f"runs/{LATE}", scheme="dark"),
    Shot("comparison", f"compare?a={SLOW}&b={FAST}", height=1120),
    Shot("runs", "", height=420),
    Shot("phone", f"runs/{SLOW}", width=390, height=844),
)


def main() -> None:
    """Make them all."""
    why_not = obstacle()
    if why_not is not None:
        sys.exit(f"no pictures: {why_not}")
    shutil.rmtree(IMAGES, ignore_errors=True)
    IMAGES.mkdir()
    with tempfile.TemporaryDirectory(prefix="traceml-") as place:
        home = Path(place)
        shutil.copy(script(), home / "train.py")
        shutil.copy(ROOT / "tests" / "distributed_training.py", home / "train_ddp.py")
        picture_live(home)
        for name in (FAST, LATE):
            with training(home, name) as process:
                process.wait(PATIENCE_S)
        picture_text(home / "logs" / SLOW)
        with opened() as browser, serving(home / "logs") as server:
            for shot in FINISHED:
                seen = window(browser, shot.width, shot.height, color_scheme=shot.scheme)
                take(seen.go(f"{server.address}{shot.address}"), shot.name, shot.piece)
        picture_sweep(home / "sweep")
    for path in sorted(IMAGES.iterdir()):
        size = path.stat().st_size
        print(f"{path.relative_to(ROOT)}  {size / 1000:.0f} kB")
        assert size < LARGEST_BYTES, f"{path} is too large; show less of the page"


@contextmanager
def training(home: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that goes on; it is ended where it does not end by itself."""
    folder = Path(sys.executable).parent
    environment = {
        **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    words = ["traceml", "run", "--mode=summary", "--save-output", "--run-name", name, "--"]
    print(f"{name} …", flush=True)
    process = subprocess.Popen(
        [*words, *COMMANDS[name]],
        cwd=home,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def picture_sweep(logs: Path) -> None:
    """Charts over many runs."""
    print("sweep …", flush=True)
    sweep = [sys.executable, ROOT / "examples" / "sweep.py", "--all", "--logs-dir", logs]
    subprocess.run(sweep, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with opened() as browser, serving(logs) as server:
        seen = window(browser, 1280, 1190).go(
            f"{server.address}explore?size=width&axes={SWEEP_AXES}"
        )
        seen.part("Scatter").wait_for()
        take(seen, "explore")


def picture_live(home: Path) -> None:
    """The terminal and the dashboard while a training runs."""
    with training(home, SLOW) as process:
        watch = watch_when_due(home / "logs" / SLOW)
        picture_terminal(watch)
        with opened() as browser, serving(home / "logs") as server:
            seen = window(browser)
            take(seen.go(f"{server.address}runs/{SLOW}"), "dashboard")
        process.wait(PATIENCE_S)


def watch_when_due(folder: Path) -> RunWatch:
    """A run that has gone on for long enough to be looked at."""
    deadline = time.monotonic() + PATIENCE_S
    watch: RunWatch | None = None
    while time.monotonic() < deadline:
        time.sleep(0.5)
        try:
            watch = watch or RunWatch(folder)
            steps = re.match(r"[\d,]+", watch.page().head.steps)
        except TraceMLError:
            continue  # there is nothing to read yet
        if steps and int(steps[0].replace(",", "")) >= SHOWN_FROM_STEP:
            return watch
    raise SystemExit(f"no pictures: {folder} did not reach step {SHOWN_FROM_STEP}")


def picture_terminal(watch: RunWatch) -> None:
    """The live terminal, as it is drawn at two sizes."""
    for name, size in {"terminal": (120, 40), "terminal-small": (80, 24)}.items():
        drawn = asyncio.run(screenshot(watch, size))
        (IMAGES / f"{name}.svg").write_text(alone(drawn))


async def screenshot(watch: RunWatch, size: tuple[int, int]) -> str:
    """What the app shows once it has a page."""
    pages: list[RunPage] = []

    def page() -> RunPage:
        pages.append(watch.page())
        return pages[-1]

    app = RunApp(page)
    async with app.run_test(size=size) as pilot:
        while not pages:
            await pilot.pause(0.1)
        await pilot.pause(0.5)  # until it is on the screen
        return app.export_screenshot(title="traceml run train.py")


def picture_text(folder: Path) -> None:
    """The summary that every run ends with."""
    text = (folder / "final_summary.txt").read_text().strip("\n")
    width = max(map(len, text.splitlines()))
    console = Console(record=True, width=width + 1, file=io.StringIO())
    console.print(Text(text), soft_wrap=True)
    drawn = console.export_svg(title="traceml run train.py")
    (IMAGES / "summary.svg").write_text(alone(drawn))


def alone(drawn: str) -> str:
    """A picture that asks nobody for a font, and ends its lines as files do."""
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    fonts = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
    drawn = re.sub(r"font-family: ?(Fira Code|arial)[^;}]*", f"font-family: {fonts}", drawn)
    assert "url(http" not in drawn.replace('"', "")
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines())


def take(seen: Window, name: str, piece: str = "body") -> None:
    """A picture of a window, when everything in it is drawn."""
    for canvas in seen.page.locator("canvas").all():
        canvas.wait_for()
    seen.page.wait_for_timeout(700)  # figures come one after the other
    path = str(IMAGES / f"{name}.png")
    if piece == "body":
        seen.page.screenshot(path=path)
    else:
        seen.page.locator(piece).screenshot(path=path)
    seen.page.context.close()


if __name__ == "__main__":
    main()
