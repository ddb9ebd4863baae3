"""A cell for every rank by node: painted for a few nodes and for many, told when pointed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from browsing import Look, Window, expect
from drawn_runs import page_of
from factories import make_late, make_run, make_waiting, on_nodes
from traceml.web.report import write_report

MANY_NODES = 600
SLOW_NODE = 250
PAINTED = """canvas => {
  const { width, height } = canvas;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const colours = new Set();
  for (let at = 0; at < pixels.length; at += 4) {
    if (pixels[at + 3] === 255) colours.add(pixels.slice(at, at + 3).join());
  }
  return colours.size;
}"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of runs on two nodes and on many, one of which is slow."""
    folder = tmp_path_factory.mktemp("nodes")
    for name, nodes, slow in (("few", 2, 1), ("many", MANY_NODES, SLOW_NODE)):
        run = make_run(ranks=2 * nodes, steps=8, communication_ms=4.0)
        late = make_late(run, 2 * slow, 2 * slow + 1, by_ms=25.0)
        page = page_of(on_nodes(make_waiting(late), nodes))
        write_report([page], folder / f"{name}.html")
    return folder


def cells(seen: Window):
    return seen.part("Nodes").locator(".figure-rank_grid canvas").first


@pytest.mark.parametrize("name", ["few", "many"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_cells_are_painted_and_fit_the_window(look: Look, place: Path, name: str, width: int):
    seen = look((place / f"{name}.html").as_uri(), width=width, height=844)
    cells(seen).scroll_into_view_if_needed()
    assert cells(seen).evaluate(PAINTED) > 1
    assert not seen.scrolls_sideways()
    box = seen.part("Nodes").locator(".figure-rank_grid").bounding_box()
    assert box is not None
    assert box["height"] < 2500


def test_a_cell_tells_its_node_and_rank_when_pointed_at(look: Look, place: Path):
    seen = look((place / "few.html").as_uri(), width=1280, height=844)
    cells(seen).scroll_into_view_if_needed()
    box = cells(seen).bounding_box()
    assert box is not None
    seen.page.mouse.move(box["x"] + 5, box["y"] + 25)
    expect(seen.part("Nodes").locator(".tip-title")).to_have_text("node-a · rank 0")


def test_of_many_nodes_the_slow_one_leads_the_table(look: Look, place: Path):
    seen = look((place / "many.html").as_uri())
    first = seen.part("Nodes").get_by_role("table").last.get_by_role("row").nth(1)
    expect(first).to_contain_text(f"node-{SLOW_NODE:04}")
