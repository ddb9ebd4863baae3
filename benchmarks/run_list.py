"""How quick the list of runs is in a real browser: 10,000 runs of 100 parameters and 200 metrics.

The folders and the index are those of `benchmarks/run_index.py`. First rows are counted from the
navigation, with nothing cached; a sort from the click to the rows in their new order; frames while
the list is scrolled through from top to bottom. Without a browser there is nothing to measure, and
why is said.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.dashboard import launched_browser, serve
from benchmarks.figure import Figure
from benchmarks.run_index import SMALL, make_index

NAVIGATIONS = 9
SORTED = ("Step time", "m0", "m1", "m2", "p1")
"""The heads that are clicked, twice each: upwards and downwards."""
SCROLL_S = 5.0
FAST_PX = 1200
"""Pixels of each turn of the wheel; a strong one."""
WIDTH, HEIGHT = 1920, 1080


def run() -> list[Figure]:
    """Every row of the table that is about the list of runs."""
    with tempfile.TemporaryDirectory() as place:
        logs = Path(place) / "logs"
        make_index(logs, SMALL)
        with serve(logs) as (_, address), launched_browser() as chromium:
            if chromium is None:
                return []
            first_ms = [_first_rows_ms(chromium, address) for _ in range(1 + NAVIGATIONS)]
            page = _opened(chromium, address)
            sorts_ms = list(_sort_times_ms(page))
            frames_ms = _frame_times_ms(page)
            filters_ms = list(_filter_times_ms(page))
    return _figures(first_ms, sorts_ms, frames_ms, filters_ms)


def _opened(chromium: Any, address: str) -> Any:
    context = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("tbody tr[data-index]")
    return page


def _first_rows_ms(chromium: Any, address: str) -> float:
    page = _opened(chromium, address)
    taken_ms = float(page.evaluate(_FIRST_ROWS))
    page.context.close()
    return taken_ms


def _sort_times_ms(page: Any) -> Iterator[float]:
    for label in SORTED:
        for _ in range(2):
            yield float(page.evaluate(_SORT, label))


def _filter_times_ms(page: Any) -> Iterator[float]:
    for text in ("m3 > 0.2 and m7 < 0.9", 'params.p0 in ("adam", "adamw")', "run-0012", ""):
        yield float(page.evaluate(_FILTER, text))


def _frame_times_ms(page: Any) -> list[float]:
    """Turns the wheel until the time is over; how long each frame took."""
    page.evaluate(_COUNT_FRAMES)
    page.mouse.move(WIDTH / 2, HEIGHT / 2)
    for _ in range(int(SCROLL_S / 0.05)):
        page.mouse.wheel(0, FAST_PX)
        page.wait_for_timeout(50)
    return [float(each) for each in page.evaluate("window.frames_ms")]


def _figures(
    first_ms: list[float], sorts_ms: list[float], frames_ms: list[float], filters_ms: list[float]
) -> list[Figure]:
    cold_ms, *warm_ms = first_ms
    rate = 1000 * len(frames_ms) / sum(frames_ms)
    slow = sorted(frames_ms)[int(0.99 * len(frames_ms))]
    return [
        _figure(
            f"{SMALL.words}: first rows after navigation",
            "≤ 1 s",
            warm_ms,
            f"the first after the server's start: {cold_ms:.0f} ms",
        ),
        _figure("the same: sort by a column", "≤ 200 ms", sorts_ms),
        _figure("the same: filter, after the pause in typing", "–", filters_ms),
        Figure(
            "the same: frames while scrolling",
            "≥ 30 /s",
            rate,
            "/s",
            note=f"{len(frames_ms)} frames; 99 % within {slow:.0f} ms",
        ),
    ]


def _figure(what: str, target: str, found_ms: list[float], note: str = "") -> Figure:
    spread = f"range of {len(found_ms)}"
    return Figure(what, target, median(found_ms), "ms", min(found_ms), max(found_ms), spread, note)


_FIRST_ROWS = """() => {
  const row = document.querySelector("tbody tr[data-index]");
  return row === null ? NaN : performance.now();
}"""

_PAINTED = """
  const painted = () => new Promise((seen) =>
    requestAnimationFrame(() => requestAnimationFrame(() => seen(performance.now()))));
  const first = () => document.querySelector("tbody tr[data-index]")?.dataset.name ?? "";
  const changed = async (before, isDone) => {
    while (!isDone()) await new Promise((next) => setTimeout(next, 1));
    return (await painted()) - before;
  };
"""

_SORT = f"""async (label) => {{
  {_PAINTED}
  const heads = [...document.querySelectorAll("thead th")];
  const head = heads.find((one) => one.querySelector(".title-words")?.textContent === label);
  const [was, began] = [first(), performance.now()];
  head.querySelector("button").click();
  return changed(began, () => first() !== was);
}}"""

_FILTER = f"""async (text) => {{
  {_PAINTED}
  const box = document.querySelector("[data-filter]");
  const count = document.querySelector(".filter-line .note");
  const was = count.textContent;
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(box, text);
  box.dispatchEvent(new Event("input", {{ bubbles: true }}));
  const began = performance.now();
  box.dispatchEvent(new KeyboardEvent("keydown", {{ key: "Enter", bubbles: true }}));
  return changed(began, () => count.textContent !== was);
}}"""

_COUNT_FRAMES = """() => {
  window.frames_ms = [];
  let before = performance.now();
  const next = (now) => { window.frames_ms.push(now - before); before = now;
    requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""
