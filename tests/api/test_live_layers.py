"""Layers of a run in progress: on its page once they are written, and read only where they grew."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_run
from processes import wait_until
from run_folders import write_rank
from traceml.api import live_layers
from traceml.api.live_layers import LiveLayers
from traceml.api.watch import RunWatch
from traceml.figures.layer_record import LayerTree
from traceml.figures.page import RunPage
from traceml.store import folder as folders
from traceml.store.layer_records import LayerFileReader, LayerRecords
from traceml.store.load import load_run
from traceml.store.node_folders import NODES
from traceml.store.run_follower import RunFollower

NAMES = {"set": 1, "names": ["", "block"], "kinds": ["Net", "Block"]}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A run that goes on."""
    run = make_run(steps=60)
    found = tmp_path / "run"
    found.mkdir()
    folders.write_manifest(found, run.manifest)
    held = folders.hold(found)
    assert held is not None
    write_rank(found, run.ranks[0], 0, 60)
    yield found
    os.close(held)


def write(folder: Path, pid: int, *steps: int) -> None:
    lines = [
        {"set": 1, "step": n, "calls": [1, 1], "host_forward_ns": [0, n * 10**6]} for n in steps
    ]
    with (folder / f"layers-{pid}.jsonl").open("a") as file:
        for line in [NAMES, *lines] if steps[0] == 1 else lines:
            file.write(json.dumps(line) + "\n")


def looked_at(page: RunPage) -> str | None:
    found = [part for part in page.parts if part.id == "layers"]
    return found[0].note if found else None


def test_layers_come_onto_the_page_while_the_run_goes_on(folder: Path) -> None:
    watch = RunWatch(folder)
    assert looked_at(watch.page()) is None
    write(folder, 1, 1, 2)
    wait_until(lambda: looked_at(watch.page()) == "2 steps looked at · CPU clock", "two steps")
    write(folder, 1, 3)
    wait_until(lambda: looked_at(watch.page()) == "3 steps looked at · CPU clock", "three steps")
    (part,) = [each for each in watch.page().parts if each.id == "layers"]
    assert isinstance(part.figures[0], LayerTree)


def test_a_file_is_read_again_only_when_it_has_grown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(reader: LayerFileReader, files: int) -> LayerRecords:
        read.append(reader._path.name)
        return read_file(reader, files)

    read_file = LayerFileReader.read
    monkeypatch.setattr(LayerFileReader, "read", counted)
    monkeypatch.setattr(live_layers, "MAX_CORE_SHARE", 1e9)  # every look is one
    for pid in (1, 2):
        write(folder, pid, 1, 2)
    watch = RunWatch(folder)
    for _ in range(3):
        watch.page()
    assert read == ["layers-1.jsonl", "layers-2.jsonl"]
    write(folder, 2, 3)
    watch.page()
    assert read[2:] == ["layers-2.jsonl"]


def test_a_look_that_took_long_leaves_the_other_files_for_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_layers, "MAX_LOOK_S", 0.0)
    monkeypatch.setattr(live_layers, "MAX_CORE_SHARE", 1e9)
    for pid in (1, 2):
        write(folder, pid, *range(1, pid + 2))
    watch = RunWatch(folder)
    assert looked_at(watch.page()) == "2 steps looked at · CPU clock"
    watch.page()
    (part,) = [each for each in watch.page().parts if each.id == "layers"]
    (tree,) = [each for each in part.figures if isinstance(each, LayerTree)]
    assert any(column.id == "over-median" for column in tree.single.columns), "both processes"


def test_the_layers_of_another_node_are_those_of_its_ranks(folder: Path) -> None:
    """Its process has the number that the head's has."""
    node = folder / NODES / "host-b"
    node.mkdir(parents=True)
    run = make_run(ranks=2, steps=60)
    folders.write_manifest(node, run.manifest)
    head = load_run(folder).ranks[0].rank
    other = replace(run.ranks[1].rank, pid=head.pid)
    write_rank(node, replace(run.ranks[1], rank=other), 0, 60)
    write(node, head.pid, 1, 2)
    watch = RunWatch(folder)
    wait_until(lambda: looked_at(watch.page()) == "2 steps looked at · CPU clock", "two steps")
    follower = RunFollower(folder)
    follower.refresh()
    layers = LiveLayers()
    layers.part(follower, None)
    (records,) = layers._records.values()
    assert follower.rank_numbers()[records.pid] == 1
