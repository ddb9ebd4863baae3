"""Pages of what goes on: a training, a server that dies, a run that is deleted, many who look."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from browser.runs import FAST, SLOW, SLOW_INPUT_MS, TRAINING
from browsing import Look, Window, expect
from processes import (
    PATIENT_VIEWS,
    PYTHON,
    STEPS,
    TRACEML,
    Running,
    free_port,
    kill,
    started,
    wait_until,
)
from served import Served, serving

TICKING = STEPS + "import time\nwhile True:\n    take_steps(1)\n    time.sleep(0.02)\n"
"""Goes on until it is ended."""


@contextmanager
def ticking(cwd: Path) -> Iterator[Running]:
    """A run that goes on."""
    words = [TRACEML, "run", "--mode=summary", "--run-name", "ticking", "train.py"]
    with started(words, cwd, TICKING) as running:
        live = cwd / "logs" / "ticking" / "live.json"
        wait_until(live.exists, "the run is under way")
        yield running


def said_address(running: Running) -> str | None:
    found = re.search(r"http://\S+", running.stderr_path.read_text())
    return found[0] if found else None


def grows(*windows: Window) -> None:
    """Every page counts more steps than it did."""
    before = [seen.steps for seen in windows]
    for seen, steps in zip(windows, before, strict=True):
        wait_until(lambda seen=seen, steps=steps: seen.steps > steps, "more steps are on the page")


def test_a_training_is_diagnosed_while_it_runs_and_stays_on_the_page_when_it_is_over(
    look: Look, tmp_path: Path
):
    words = ["run", "--mode=dashboard", "--run-name", "live", "train.py"]
    words += ["--args", "100000", SLOW_INPUT_MS, "wait"]
    with started([PYTHON, "-c", PATIENT_VIEWS, *words], tmp_path, TRAINING) as running:
        address = wait_until(lambda: said_address(running), "the launcher says where to look")
        seen = look(address, excuses=("net::ERR",))
        expect(seen.page.get_by_role("banner")).to_contain_text("live")
        expect(seen.verdict).to_be_visible()
        expect(seen.verdict).not_to_contain_text("INPUT-BOUND")
        told = seen.page.locator("[aria-live=polite]")  # to those who do not see the page
        expect(told).to_have_text("")
        (tmp_path / "go").touch()
        expect(seen.verdict).to_contain_text("INPUT-BOUND")
        expect(told).to_contain_text("The verdict is now INPUT-BOUND.")
        grows(seen)
        expect(seen.part("Output")).to_contain_text(re.compile(r"step \d+ loss"))
        running.send(signal.SIGINT)
        done = running.finish()
        assert done.status == 130
        bar = seen.page.get_by_role("banner")
        expect(bar).to_contain_text("interrupted with status 130")
        seen.page.reload()  # it stays for who looks at it
        expect(seen.verdict).to_be_visible()
        (left,) = done.left()
        kill(left)
        expect(seen.page.get_by_role("status")).to_contain_text("The run is over")
        expect(seen.verdict).to_be_visible()


def test_a_run_that_begins_appears_in_the_list_by_itself(
    look: Look, opening: ExitStack, tmp_path: Path
):
    logs = tmp_path / "logs"
    logs.mkdir()
    server = opening.enter_context(serving(logs))
    seen = look(server.address)
    expect(seen.main).to_contain_text("There are no runs here yet")
    with ticking(tmp_path):
        row = seen.main.get_by_role("row").nth(1)
        expect(row).to_contain_text("ticking")
        expect(row).to_contain_text("live")
    expect(row).not_to_contain_text("live")  # it was killed: nobody holds it any more


def test_ten_who_look_at_a_run_see_the_same_and_it_goes_on(
    look: Look, opening: ExitStack, tmp_path: Path
):
    running = opening.enter_context(ticking(tmp_path))
    server = opening.enter_context(serving(tmp_path / "logs"))
    address = f"{server.address}runs/ticking"
    windows = [look(address, width=640, height=480) for _ in range(10)]
    grows(*windows)
    assert running.process.poll() is None


def test_a_tab_that_is_not_seen_lets_go_and_catches_up_when_it_is(
    look: Look, opening: ExitStack, tmp_path: Path
):
    opening.enter_context(ticking(tmp_path))
    server = opening.enter_context(serving(tmp_path / "logs"))
    seen = look(f"{server.address}runs/ticking")
    grows(seen)
    seen.page.evaluate(_SHOW, False)
    wait_until(lambda: _connections(server) == 0, "its connection is given back")
    before = _streams(seen)  # one, or more where a busy server was silent for too long
    seen.page.evaluate(_SHOW, True)
    grows(seen)
    assert _streams(seen) > before > 0


_SHOW = """isSeen => {
  Object.defineProperty(document, "hidden", { configurable: true, value: !isSeen });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A browser without a screen takes every tab for seen; this is what it says of the others."""


def _streams(seen: Window) -> int:
    return sum("/api/events" in each for each in seen.asked)


def _connections(server: Served) -> int:
    open_ones = psutil.Process(server.running.pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED for each in open_ones)


def test_a_lost_connection_is_said_and_heals_when_the_server_is_back(
    look: Look, opening: ExitStack, logs: Path
):
    with serving(logs, "--port", str(free_port())) as server:
        seen = look(f"{server.address}runs/{SLOW}", excuses=("net::ERR",))
        lost = seen.page.get_by_text("Connection lost")
        expect(lost).to_have_count(0)
        server.running.send(signal.SIGKILL)
        expect(lost).to_be_visible()
        expect(seen.verdict).to_contain_text("INPUT-BOUND")  # what was seen stays
    opening.enter_context(serving(logs, "--port", str(server.port)))
    expect(lost).to_have_count(0)
    expect(seen.verdict).to_contain_text("INPUT-BOUND")


def test_a_page_that_lost_its_server_no_longer_says_live(look: Look, tmp_path: Path):
    with ticking(tmp_path), serving(tmp_path / "logs") as server:
        seen = look(f"{server.address}runs/ticking", excuses=("net::ERR",))
        bar = seen.page.get_by_role("banner")
        expect(bar).to_contain_text("live")
        server.running.send(signal.SIGKILL)
        expect(bar).to_contain_text("connection lost")
        expect(bar).not_to_contain_text("live")
        seen.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(seen.page.get_by_role("status")).to_contain_text("Connection lost")
        expect(seen.page.get_by_role("status")).to_be_in_viewport()


def test_a_run_that_is_deleted_stays_as_it_was_seen_and_says_so(
    look: Look, opening: ExitStack, logs: Path, tmp_path: Path
):
    copy = shutil.copytree(logs / SLOW, tmp_path / "logs" / SLOW)
    server = opening.enter_context(serving(copy.parent))
    seen = look(f"{server.address}runs/{SLOW}")
    copy.rename(tmp_path / "deleted")  # at once: half a run is a page as well
    expect(seen.page.get_by_role("alert")).to_contain_text(f"there is no run '{SLOW}'")
    expect(seen.verdict).to_contain_text("INPUT-BOUND")
    seen.page.keyboard.press("g")
    seen.page.keyboard.press("r")
    expect(seen.main).to_contain_text("There are no runs here yet")


def test_broken_runs_leave_the_others_readable_and_say_what_is_wrong(
    look: Look, opening: ExitStack, logs: Path, tmp_path: Path
):
    server = opening.enter_context(serving(_broken(logs, tmp_path / "shelf")))
    seen = look(server.address)
    expect(seen.main.get_by_role("link", name=FAST, exact=True)).to_be_visible()
    expect(seen.part("Notes")).to_contain_text("no-json")
    for name in ("half", "no-steps"):
        seen.go(f"{server.address}runs/{name}")
        expect(seen.verdict).to_be_visible()
        expect(seen.part("Notes")).to_be_visible()
    seen.go(f"{server.address}runs/{FAST}")
    expect(seen.verdict).to_be_visible()


def _broken(logs: Path, shelf: Path) -> Path:
    """A folder in which one run is whole."""
    shutil.copytree(logs / FAST, shelf / FAST)
    for name in ("no-json", "half", "no-steps"):
        shutil.copytree(logs / SLOW, shelf / name)
    (shelf / "no-json" / "run.json").write_text("not JSON")
    half = shelf / "half" / "final_summary.json"
    half.write_bytes(half.read_bytes()[:1000])
    for steps in (shelf / "no-steps").glob("*.steps"):
        steps.write_bytes(b"nothing of ours" * 1000)
    (shelf / "empty").mkdir()
    (shelf / "a file").write_text("no run")
    (shelf / "gone").symlink_to(shelf / "nowhere")
    return shelf
