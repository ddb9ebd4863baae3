"""A whole run read back: ranks joined, numbered, and what came beside them."""

from __future__ import annotations

import numpy as np
import pytest

from traceml.model.errors import RunNotFound
from traceml.model.run import Ending, Manifest
from traceml.store import folder as folders
from traceml.store import record_file
from traceml.store.load import drain_rings, load_run
from traceml.store.records import SeenLoss

STARTED_S = 1_800_000_000.0


def walls(rank) -> int:
    return int(rank.blocks["wall_ns_sum"].sum() + rank.steps["wall_ns"].sum())


def test_restarts_of_a_rank_are_joined_on_one_clock(tracer, run_folder):
    for life, unix_s in enumerate((STARTED_S, STARTED_S + 60, STARTED_S + 120)):
        made = tracer(rank=3, pid=200 - life, unix_s=unix_s)
        made.step(10)
        made.ring.write_region(made.ring.open_region(), b"augment", 2, 100, 60, -1)
        made.ring.count_failure(f"ValueError: in life {life}")
        made.drain(run_folder, everything=True)
    (rank,) = load_run(run_folder).ranks
    assert rank.rank.rank == 3
    starts = [rank.rank.unix_s(int(start)) for start in rank.steps["start_ns"][::10]]
    assert starts == pytest.approx([STARTED_S, STARTED_S + 60, STARTED_S + 120])
    assert np.all(np.diff(rank.steps["start_ns"]) > 0)
    assert len(rank.steps) == 30 and rank.health.failures == 3
    assert rank.health.last_failure == "ValueError: in life 2"
    assert sum(region.calls for region in rank.regions) == 6


@pytest.mark.parametrize(
    ("seen", "known"),
    [
        pytest.param([(4, True)], (4, True), id="workers that pin"),
        pytest.param([(0, False)], (0, False), id="neither"),
        pytest.param([None], (None, None), id="no fetch was seen"),
        pytest.param([(2, True), None], (2, True), id="before a restart"),
        pytest.param([(2, True), (3, False)], (3, False), id="after a restart"),
    ],
)
def test_what_is_known_of_the_loader_outlives_the_process(tracer, run_folder, seen, known):
    for life, loader in enumerate(seen):
        made = tracer(pid=200 + life, unix_s=STARTED_S + 60 * life)
        made.step(2)
        if loader is not None:
            made.ring.note_loader(*loader)
        made.drain(run_folder, everything=True)
    (rank,) = load_run(run_folder).ranks
    assert (rank.loader_workers, rank.loader_pinned) == known


def test_the_first_loss_and_the_first_that_was_lost_outlive_the_process(tracer, run_folder):
    said = [
        [{"kind": "loss", "step": 1, "value": 3.5}],
        [
            {"kind": "loss", "step": 1, "value": 2.5},
            {"kind": "loss", "step": 4, "value": "nan", "finite_step": 3, "finite_value": 2.0},
        ],
    ]
    for life, messages in enumerate(said):
        made = tracer(pid=200 + life, unix_s=STARTED_S + 60 * life)
        made.step(10)
        for message in messages:
            made.say(message)
        made.drain(run_folder, everything=True)
    (rank,) = load_run(run_folder).ranks
    assert rank.losses.first == SeenLoss(1, 3.5)
    assert rank.losses.first_lost is not None
    assert rank.losses.first_lost.step == 14  # the fourth step after the restart
    assert rank.losses.before_lost == SeenLoss(13, 2.0)


def test_a_restart_that_has_blocks_keeps_what_came_before(tracer, run_folder, monkeypatch):
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 8)
    monkeypatch.setattr(record_file, "KEEP_SEGMENTS", 1)
    for life, steps in enumerate((20, 50)):
        made = tracer(pid=200 + life, unix_s=STARTED_S + 60 * life)
        made.step(steps)
        made.ring.write_region(made.ring.open_region(), b"augment", 2, 100, 60, -1)
        made.ring.count_failure("ValueError: ours")
        made.drain(run_folder, everything=True)
    (rank,) = load_run(run_folder).ranks
    assert int(rank.blocks["steps"].sum()) + len(rank.steps) == 70
    assert walls(rank) == sum(1_000 + n for n in range(20)) + sum(1_000 + n for n in range(50))
    assert rank.health.failures == 2 and len(rank.regions) == 2
    assert np.all(np.diff(rank.blocks["start_ns"]) > 0)


def test_processes_that_trained_side_by_side_are_numbered_on(tracer, run_folder):
    for pid in (300, 301, 302):
        made = tracer(rank=0, pid=pid)
        made.step(10)
        made.drain(run_folder)
    made = tracer(rank=2, pid=303)
    made.step(10)
    made.drain(run_folder)
    ranks = load_run(run_folder).ranks
    assert [(rank.rank.rank, rank.rank.pid) for rank in ranks] == [
        (0, 300),
        (1, 301),
        (2, 303),
        (3, 302),
    ]


def test_a_process_that_only_logged_is_no_rank(tracer, run_folder):
    trainer, logger = tracer(pid=400), tracer(rank=1, pid=401)
    trainer.step(3)
    trainer.drain(run_folder, everything=True)
    logger.say({"kind": "params", "values": {"lr": 0.1}})
    logger.drain(run_folder, everything=True)
    loaded = load_run(run_folder)
    assert [rank.rank.pid for rank in loaded.ranks] == [400]
    assert loaded.params == {"lr": 0.1}


@pytest.fixture
def shared_memory(tmp_path, monkeypatch):
    """A folder that is taken for the system's shared memory."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(folders, "SHARED_MEMORY", folder)
    return folder


@pytest.mark.parametrize(
    ("name", "steps"), [("traceml-17-0123abcd", 4), ("traceml-project", 0)], ids=["ours", "another"]
)
def test_rings_are_found_in_our_folder_on_tmpfs_alone(
    tracer, run_folder, shared_memory, name, steps
):
    made = tracer()
    made.step(4)
    made.path.parent.rename(shared_memory / name)
    manifest = Manifest("run", STARTED_S, ring_folder=str(shared_memory / name))
    folders.write_manifest(run_folder, manifest)
    assert drain_rings(run_folder, everything=True) == []
    assert sum(len(rank.steps) for rank in load_run(run_folder).ranks) == steps


@pytest.mark.parametrize(
    ("parent", "name", "is_removed"),
    [
        ("shm", "traceml-17-0123abcd", True),
        ("shm", "traceml-project", False),
        ("home", "traceml-17-0123abcd", False),
        ("shm", "link", False),
    ],
    ids=["ours", "another name", "another place", "a link"],
)
def test_a_manifest_from_anywhere_has_no_folder_removed_but_a_ring_folder(
    tmp_path, shared_memory, parent, name, is_removed
):
    folder = tmp_path / parent / name
    target = tmp_path / "precious" if name == "link" else folder
    target.mkdir(parents=True)
    (target / "work.txt").write_text("mine")
    if name == "link":
        folder = shared_memory / "traceml-17-0123abcd"
        folder.symlink_to(target)
    folders.remove_rings(Manifest("run", STARTED_S, ring_folder=str(folder)))
    assert target.exists() is not is_removed


def test_manifest_ending_and_trouble_come_with_the_run(run_folder):
    folders.write_ending(run_folder, Ending(STARTED_S + 5, exit_status=7))
    (run_folder / "marks").mkdir()
    (run_folder / "marks" / "trouble").write_text("torch 1.13 is too old")
    loaded = load_run(run_folder)
    assert loaded.manifest.run_name == "run"
    assert loaded.ending is not None and loaded.ending.exit_status == 7
    assert loaded.notes == ("torch 1.13 is too old",)
    assert loaded.ranks == ()


def test_a_folder_that_is_no_run_says_so(tmp_path):
    with pytest.raises(RunNotFound, match=r"has no run\.json; pass a folder"):
        load_run(tmp_path)
