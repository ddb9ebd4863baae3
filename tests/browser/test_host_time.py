"""Where the host's time goes, as a flame graph: by mouse, by keys and by words."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from browser.runs import BAD, FAST
from browsing import Look, Window, expect
from processes import run_traceml
from served import Served, serving
from traceml.summaries.host_time_record import HostCallSummary, HostPhaseSummary, HostTimeSummary

RUN = "sampled"
PHONE = {"width": 390, "height": 844, "device_scale_factor": 2, "is_mobile": True}
CALLS = (
    HostCallSummary("main", "train.py", 40, True, -1, 80, 0),
    HostCallSummary("__next__", "torch/utils/data/dataloader.py", 700, False, 0, 80, 10),
    HostCallSummary("collate", "train.py", 9, True, 1, 50, 50),
    HostCallSummary(BAD, BAD, 9, True, 1, 20, 20),
)
FOUND = HostTimeSummary(
    looks=100,
    by="py-spy",
    phases={
        "input": HostPhaseSummary(80, 0.8, 10.0, (), CALLS),
        "forward": HostPhaseSummary(20, 0.2, 2.5, (), (CALLS[0],)),
        "workers": HostPhaseSummary(30, None, None, (), (CALLS[2],)),
    },
)


@pytest.fixture(scope="module")
def sampled_logs(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a real run with sampled stacks in its summary."""
    folder = tmp_path_factory.mktemp("sampled")
    shutil.copytree(logs / FAST, folder / RUN)
    path = folder / RUN / "final_summary.json"
    summary = json.loads(path.read_text())
    summary["host_time"] = msgspec.to_builtins(FOUND)
    path.write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="module")
def sampled_server(sampled_logs: Path) -> Iterator[Served]:
    with serving(sampled_logs) as served:
        yield served


def graph(seen: Window):
    return seen.part("Where the host's time goes").locator("figure").first


def test_packages_are_shown_when_asked_and_one_call_alone(look: Look, sampled_server: Served):
    seen = look(f"{sampled_server.address}runs/{RUN}")
    boxes = graph(seen).locator(".flame-box")
    expect(boxes).to_have_count(6)  # two phases, and the user's four calls
    graph(seen).get_by_role("button", name="All calls").click()
    expect(boxes).to_have_count(7)
    graph(seen).get_by_role("button", name="collate, train.py:9").click()
    expect(boxes).to_have_count(4)  # it, and what is above it
    expect(boxes.last).to_have_attribute("title", re.compile(r"62% of the phase \(52–72%\)"))
    boxes.first.focus()
    seen.page.keyboard.press("ArrowDown")
    expect(boxes.nth(1)).to_be_focused()
    seen.page.keyboard.press("Escape")
    expect(boxes).to_have_count(7)


def test_calls_without_the_words_are_dimmed(look: Look, sampled_server: Served):
    seen = look(f"{sampled_server.address}runs/{RUN}")
    graph(seen).get_by_role("searchbox").fill("train.py coll")
    expect(graph(seen).locator(".flame-box:not(.dim)")).to_have_count(1)


def test_it_fits_a_phone(look: Look, sampled_server: Served):
    seen = look(f"{sampled_server.address}runs/{RUN}", **PHONE)
    expect(graph(seen)).to_be_visible()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_function_s_name_is_text_on_the_page_and_in_the_report(
    look: Look, sampled_server: Served, sampled_logs: Path, tmp_path: Path
):
    seen = look(f"{sampled_server.address}runs/{RUN}")
    expect(graph(seen)).to_contain_text(BAD[:20])
    assert not seen.was_hurt()
    report = tmp_path / "report.html"
    done = run_traceml(["report", str(sampled_logs / RUN), "-o", str(report)], tmp_path)
    assert done.status == 0, done.stderr
    seen = look(report.as_uri())
    expect(graph(seen).locator(".flame-box").first).to_be_visible()
    assert not seen.was_hurt()
