"""The layers of a run with a deep profile as tree, list and flame view, by mouse and by keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from browser.runs import BAD, FAST
from browsing import Look, Window, expect
from factories import make_run
from layer_runs import kernel_step, layer_records, with_layers, with_norms
from processes import run_traceml, wait_until
from served import Served, serving
from traceml.summaries.build import build

DEEP, LARGE, BADLY_NAMED = "deep", "large", "badly-named"
BLOCKS, PARTS = 250, ("", ".attn", ".attn.q", ".attn.k", ".mlp", ".mlp.up", ".mlp.down", ".norm")
GROWING = [1e-3] * 13 + [10.0] * 13 + [1e5] * 14
PHONE = {"width": 390, "height": 844, "device_scale_factor": 2, "is_mobile": True}


@pytest.fixture(scope="module")
def deep_logs(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of a real run with layers in their summaries."""
    blocks = {f"blocks.{block}{part}": 0.5 for block in range(4) for part in PARTS}
    large = {f"part{block}{part}": 0.1 for block in range(BLOCKS) for part in PARTS}
    kernel = kernel_step(9.0, [(BAD, 12, 8_000_000, 0)], (1.0, 1.0))
    deep = layer_records(forward_ms={"": 0.0, **blocks}, backward_ms={"": 0.0, **blocks})
    norms = {name: [np.nan] * 40 for name in deep.names}
    norms |= {"blocks.0.attn.q": GROWING, "blocks.1.mlp.up": [1e-6] * 37 + [np.inf] * 3}
    records = {
        DEEP: with_norms(deep, norms),
        LARGE: layer_records(forward_ms={"": 0.0, **large}),
        BADLY_NAMED: layer_records(
            forward_ms={BAD: 1.0, f"{BAD}.0": 2.0}, kernels=(kernel,), notes=(BAD,)
        ),
    }
    folder = tmp_path_factory.mktemp("deep")
    for name, record in records.items():
        shutil.copytree(logs / FAST, folder / name)
        path = folder / name / "final_summary.json"
        summary = json.loads(path.read_text())
        built = build(with_layers(make_run(steps=40), record), 0.0, "0")
        summary["layers"] = msgspec.to_builtins(built.layers)
        path.write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="module")
def deep_server(deep_logs: Path) -> Iterator[Served]:
    with serving(deep_logs) as served:
        yield served


def rows(seen: Window):
    return seen.part("Layers").locator("tr[data-layer]")


def test_a_tree_is_opened_and_closed_by_mouse_and_keys(look: Look, deep_server: Served):
    seen = look(f"{deep_server.address}runs/{DEEP}")
    part = seen.part("Layers")
    expect(part.get_by_role("treegrid")).to_be_visible()
    expect(rows(seen)).to_have_count(9)
    part.get_by_role("button", name="Close blocks.*.attn", exact=True).click()
    expect(rows(seen)).to_have_count(7)
    part.get_by_role("button", name="Close all").click()
    expect(rows(seen)).to_have_count(1)
    rows(seen).first.focus()
    seen.page.keyboard.press("ArrowRight")
    expect(rows(seen)).to_have_count(2)
    seen.page.keyboard.press("ArrowDown")
    expect(rows(seen).nth(1)).to_be_focused()
    seen.page.keyboard.press("ArrowLeft")
    expect(rows(seen).first).to_be_focused()
    seen.page.keyboard.press("Enter")
    expect(rows(seen)).to_have_count(1)


def test_columns_sort_and_words_find(look: Look, deep_server: Served):
    seen = look(f"{deep_server.address}runs/{DEEP}?layer-view=list")
    part = seen.part("Layers")
    head = part.get_by_role("columnheader", name="Own (ms)")
    expect(head).to_have_attribute("aria-sort", "descending")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(rows(seen).first).to_contain_text("(the model itself)")
    part.get_by_label("Repeated layers as one").uncheck()
    part.get_by_role("searchbox").fill("mlp up")
    expect(rows(seen)).to_have_count(4)
    part.get_by_role("searchbox").fill("nothing of it")
    expect(part).to_contain_text("No layer matches “nothing of it”.")


def test_the_flame_view_shows_one_layer_alone_and_all_again(look: Look, deep_server: Served):
    seen = look(f"{deep_server.address}runs/{DEEP}?layer-view=flame")
    part = seen.part("Layers")
    boxes = part.locator(".flame-box")
    before = boxes.count()
    part.get_by_role("button", name="blocks.*.mlp ×4, Module").click()
    expect(part.get_by_role("button", name="Show all")).to_be_visible()
    assert boxes.count() < before
    part.get_by_role("button", name="Forward", exact=True).click()
    boxes.first.focus()
    seen.page.keyboard.press("ArrowDown")
    expect(boxes.nth(1)).to_be_focused()
    seen.page.keyboard.press("Escape")
    expect(boxes).to_have_count(before)


def test_gradient_norms_are_drawn_over_steps_on_a_log_axis_and_in_the_report(
    look: Look, deep_server: Served, deep_logs: Path, tmp_path: Path
):
    """On a linear axis the first two levels of the line would be one."""
    report = tmp_path / "report.html"
    done = run_traceml(["report", str(deep_logs / DEEP), "-o", str(report)], tmp_path)
    assert done.status == 0, done.stderr
    for address in (f"{deep_server.address}runs/{DEEP}", report.as_uri()):
        seen = look(address)
        chart = seen.part("Layers").get_by_role("figure", name="Gradient norm by layer")
        for name in ("whole model", "blocks.0.attn.q", "blocks.1.mlp.up"):
            expect(chart.get_by_role("button", name=name)).to_be_visible()
        expect(chart).to_contain_text("Marked on top: 3 × not finite, first at step 38.")
        chart.scroll_into_view_if_needed()  # until then it is not drawn
        canvas = chart.locator("canvas").first
        wait_until(lambda canvas=canvas: levels(canvas) == 3, "the line has three levels")
        columns = seen.part("Layers").get_by_role("columnheader", name="Gradient norm")
        expect(columns).to_have_count(1)


def levels(canvas: Any) -> int:
    """How many levels the line of the layer that grows has: rows, or neighbouring ones, in which it
    lies for a tenth of the width."""
    found: int = canvas.evaluate(
        """canvas => {
      const { width, height } = canvas;
      const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
      const isOf = (at) =>
        [0x36, 0x9b, 0xd9].every((part, place) => Math.abs(data[at + place] - part) < 40);
      let [levels, wasOne] = [0, false];
      for (let row = 0; row < height; row++) {
        let count = 0;
        for (let column = 0; column < width; column++) count += isOf(4 * (row * width + column));
        const isOne = count > width / 10;
        levels += isOne && !wasOne;
        wasOne = isOne;
      }
      return levels;
    }"""
    )
    return found


def test_of_two_thousand_layers_only_those_in_sight_are_drawn(look: Look, deep_server: Served):
    seen = look(f"{deep_server.address}runs/{LARGE}")
    part = seen.part("Layers")
    part.get_by_role("button", name="Open all").click()
    expect(part.get_by_role("treegrid")).to_have_attribute(
        "aria-rowcount", str(2 + BLOCKS * len(PARTS))
    )
    assert rows(seen).count() < 100
    rows(seen).first.focus()
    seen.page.keyboard.press("End")
    last = part.locator(f'tr[data-layer="{BLOCKS * len(PARTS)}"]')
    expect(last).to_be_focused()
    expect(last).to_be_in_viewport()


def test_layers_on_a_phone_do_not_widen_the_page(look: Look, deep_server: Served):
    seen = look(f"{deep_server.address}runs/{DEEP}", **PHONE)
    expect(seen.part("Layers")).to_be_visible()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_layer_s_name_is_text_in_every_view_and_in_the_report(
    look: Look, deep_server: Served, deep_logs: Path, tmp_path: Path
):
    for view in ("tree", "list", "flame"):
        seen = look(f"{deep_server.address}runs/{BADLY_NAMED}?layer-view={view}")
        expect(seen.part("Layers")).to_contain_text(BAD[:20])
        assert not seen.was_hurt()
    report = tmp_path / "report.html"
    done = run_traceml(["report", str(deep_logs / BADLY_NAMED), "-o", str(report)], tmp_path)
    assert done.status == 0, done.stderr
    seen = look(report.as_uri())
    expect(seen.part("Layers").get_by_role("treegrid")).to_be_visible()
    assert not seen.was_hurt()
