"""A run followed on disk: bit by bit or at once, the same; and true to what a load finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from factories import make_run, make_samples
from node_runs import bring_to_head, write_nodes
from run_folders import write_run
from traceml.facts.step_table import complete_steps
from traceml.model.errors import RunNotFound
from traceml.model.record_layout import STEP_BYTES, StepFlag
from traceml.model.run import Manifest
from traceml.store import folder as folders
from traceml.store import logged, record_file, run_follower, samples
from traceml.store.buckets import PEAKS, SUMMED, RankBuckets
from traceml.store.load import load_run
from traceml.store.node_folders import NODES
from traceml.store.records import RankRecords
from traceml.store.run_follower import RunFollower
from traceml.store.run_so_far import run_so_far
from traceml.store.samples import SampleFile
from traceml.store.step_records import count_complete

STARTED_S = 1_800_000_000.0
Tracers = Callable[..., Any]


def followed(folder: Path) -> RunFollower:
    """Everything at once."""
    follower = RunFollower(folder)
    follower.refresh()
    return follower


def same(one: RankBuckets, other: RankBuckets) -> None:
    assert (one.rank, one.grid) == (other.rank, other.grid)
    for name in ("steps", "sums", "counts", "peaks", "longest_ns", "began_unix_s", "loss"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)


def sums(rank: RankRecords, name: str) -> tuple[int, int]:
    """Sum and count of a field over the complete steps of a loaded rank."""
    complete = rank.steps[(rank.steps["flags"] & int(StepFlag.ABORTED | StepFlag.TAIL)) == 0]
    measured = complete[name][complete[name] >= 0]
    folded, counted = rank.blocks[f"{name}_sum"].sum(), rank.blocks[f"{name}_count"].sum()
    return int(measured.sum() + folded), len(measured) + int(counted)


def check_totals(folder: Path, ranks: tuple[RankBuckets, ...]) -> None:
    """What is in the buckets is what a load finds, field by field."""
    loaded = [rank for rank in load_run(folder).ranks if len(rank.steps)]
    assert [rank.rank.rank for rank in ranks] == [rank.rank.rank for rank in loaded]
    for found, expected in zip(ranks, loaded, strict=True):
        for column, name in enumerate(SUMMED):
            total, count = sums(expected, name)
            assert found.sums[:, column].sum() == pytest.approx(total, rel=1e-9)
            assert found.counts[:, column].sum() == pytest.approx(count, rel=1e-9)
        for column, name in enumerate(PEAKS):
            assert found.peaks[:, column].max() == max(-1, expected.steps[name].max(initial=-1))


# Steps


def play(tracer: Tracers, folder: Path, seed: int) -> RunFollower:
    """Follow two ranks of different pace: steps are aborted and lost, one rank starts again."""
    random = Random(seed)
    ranks = [tracer(rank=0, pid=100), tracer(rank=1, pid=101)]
    follower = RunFollower(folder)
    for moment in range(40):
        for rank in ranks:
            for _ in range(random.choice((0, 1, 5, 20, 90))):
                kinds = [StepFlag(0)] * 6 + [StepFlag.LOSS_SEEN] * 3 + [StepFlag.ABORTED]
                flags, loss = int(random.choice(kinds)), random.randrange(100)
                rank.step(flags=flags, gpu_body_ns=random.choice((-1, 700)), loss=loss)
            if moment == 25 or random.random() < 0.9:
                rank.drain(folder, everything=True)
        if moment == 25:
            ranks[1] = tracer(rank=1, pid=102, unix_s=STARTED_S + 1000)
        if random.random() < 0.5:
            follower.refresh()
    for rank in ranks:
        rank.drain(folder, everything=True)
    follower.refresh()
    return follower


@pytest.mark.parametrize("seed", range(4))
def test_bit_by_bit_or_at_once_it_is_the_same(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 40)
    monkeypatch.setattr(record_file, "KEEP_SEGMENTS", 1000)
    monkeypatch.setattr(run_follower, "MAX_BUCKETS", 64)
    early, late = play(tracer, run_folder, seed), followed(run_folder)
    for one, other in zip(early.ranks(), late.ranks(), strict=True):
        same(one, other)
    check_totals(run_folder, late.ranks())


@pytest.mark.parametrize("seed", range(4))
def test_totals_stay_exact_while_old_steps_are_folded(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 40)
    monkeypatch.setattr(record_file, "KEEP_SEGMENTS", 2)
    monkeypatch.setattr(record_file, "MAX_BLOCKS", 6)
    monkeypatch.setattr(record_file.folding, "BLOCK_STEPS", 8)
    monkeypatch.setattr(run_follower, "MAX_BUCKETS", 64)
    early, late = play(tracer, run_folder, seed), followed(run_folder)
    check_totals(run_folder, early.ranks())
    check_totals(run_folder, late.ranks())
    for follower in (early, late):
        check_so_far(run_folder, follower)


def check_so_far(folder: Path, follower: RunFollower) -> None:
    """The few records of each process hold the time of all of them."""
    found, loaded = run_so_far(follower.nodes()).ranks, load_run(folder).ranks
    assert [rank.rank.rank for rank in found] == [rank.rank.rank for rank in loaded]
    for short, whole in zip(found, loaded, strict=True):
        for name in ("wall_ns", "input_ns", "body_ns", "compile_ns"):
            assert sums(short, name)[0] == pytest.approx(sums(whole, name)[0], rel=1e-9)
        assert count_complete(short.steps, short.blocks) == count_complete(
            whole.steps, whole.blocks
        )


def followed_while_folded(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> RunFollower:
    """Two hundred steps, followed from the first on, of which segments are folded meanwhile."""
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 16)
    monkeypatch.setattr(record_file, "KEEP_SEGMENTS", 1)
    rank, follower = tracer(), RunFollower(run_folder)
    for _ in range(20):
        rank.step(10)
        rank.drain(run_folder)
        follower.refresh()
    return follower


def test_what_was_read_stays_when_its_segment_is_folded(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = followed_while_folded(tracer, run_folder, monkeypatch)
    (found,) = follower.ranks()
    assert found.grid.length == 1
    assert found.steps[:200].tolist() == [1.0] * 200  # no step has become part of a block
    assert found.sums[:200, SUMMED.index("wall_ns")].tolist() == [1_000 + n for n in range(200)]


def test_steps_that_were_folded_unseen_come_from_blocks(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 16)
    monkeypatch.setattr(record_file, "KEEP_SEGMENTS", 1)
    rank, follower = tracer(), RunFollower(run_folder)
    for count in (10, 60, 60, 60):
        rank.step(count)
        rank.drain(run_folder)
        if count == 10:
            follower.refresh()
    follower.refresh()
    (found,) = follower.ranks()
    assert found.steps.sum() == 190
    check_totals(run_folder, follower.ranks())


def test_a_long_run_is_kept_in_few_buckets(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_follower, "MAX_BUCKETS", 16)
    rank, follower = tracer(), RunFollower(run_folder)
    for _ in range(10):
        rank.step(30)
        rank.drain(run_folder)
        follower.refresh()
    (found,) = follower.ranks()
    assert (found.grid.length, found.grid.buckets) == (32, 16)
    assert found.steps.tolist() == [32.0] * 9 + [12.0] + [0.0] * 6
    same(found, followed(run_folder).ranks()[0])


def test_many_ranks_have_fewer_buckets_each(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_follower, "MAX_CELLS", 192)
    follower = RunFollower(run_folder)
    for rank in range(3):
        made = tracer(rank=rank, pid=100 + rank)
        made.step(60)
        made.drain(run_folder)
        follower.refresh()
    assert {rank.grid.buckets for rank in follower.ranks()} == {64}
    check_totals(run_folder, follower.ranks())


def test_a_rank_that_started_again_goes_on_where_it_was(tracer: Tracers, run_folder: Path) -> None:
    first, follower = tracer(rank=3, pid=200), RunFollower(run_folder)
    first.step(10)
    first.drain(run_folder)
    follower.refresh()
    second = tracer(rank=3, pid=190, unix_s=STARTED_S + 60)
    second.step(5)
    second.drain(run_folder)
    follower.refresh()
    first.step(2)  # its last steps come to disk when the second has begun
    first.drain(run_folder, everything=True)
    second.step(5)
    second.drain(run_folder)
    follower.refresh()
    (found,) = follower.ranks()
    assert found.steps[:23].tolist() == [1.0] * 22 + [0.0]
    began = found.began_unix_s[[0, 11, 12]]
    assert began == pytest.approx([STARTED_S, STARTED_S + 11e-6, STARTED_S + 60], abs=1e-6)
    same(found, followed(run_folder).ranks()[0])
    check_totals(run_folder, follower.ranks())


def test_a_new_attempt_begins_with_the_same_number_on_every_rank(
    tracer: Tracers, run_folder: Path
) -> None:
    follower = RunFollower(run_folder)
    for attempt, counts in enumerate([(10,), (7, 6, 5), (8, 8, 8)]):
        for rank, count in enumerate(counts):
            made = tracer(rank=rank, pid=100 * attempt + rank, unix_s=STARTED_S + 60 * attempt)
            made.step(count)
            made.drain(run_folder, everything=True)
            follower.refresh()
    found = [np.flatnonzero(rank.steps).tolist() for rank in follower.ranks()]
    assert found[1] == [*range(10, 16), *range(17, 25)]
    loaded = [complete_steps(rank).index.tolist() for rank in load_run(run_folder).ranks]
    assert found == loaded
    for one, other in zip(follower.ranks(), followed(run_folder).ranks(), strict=True):
        same(one, other)


def test_processes_side_by_side_are_numbered_as_a_load_numbers_them(
    tracer: Tracers, run_folder: Path
) -> None:
    for rank, pid in ((0, 300), (0, 301), (0, 302), (2, 303)):
        made = tracer(rank=rank, pid=pid)
        made.step(3)
        made.drain(run_folder)
    found = followed(run_folder)
    assert found.rank_numbers() == {300: 0, 301: 1, 303: 2, 302: 3}
    check_totals(run_folder, found.ranks())


def test_a_record_that_is_half_written_is_left_for_the_next_look(
    tracer: Tracers, run_folder: Path
) -> None:
    rank = tracer()
    rank.step(3)
    rank.drain(run_folder)
    (segment,) = run_folder.glob("*.steps")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100])
    follower = followed(run_folder)
    assert follower.ranks()[0].steps.sum() == 2
    segment.write_bytes(whole)
    follower.refresh()
    assert follower.ranks()[0].steps.sum() == 3


def test_records_that_are_cut_off_and_written_again_count_once(
    tracer: Tracers, run_folder: Path
) -> None:
    """A full disk makes the agent take back its last write."""
    rank = tracer()
    rank.step(5)
    rank.drain(run_folder)
    (segment,) = run_folder.glob("*.steps")
    whole = segment.read_bytes()
    follower = followed(run_folder)
    segment.write_bytes(whole[: len(whole) - 2 * STEP_BYTES])
    follower.refresh()
    segment.write_bytes(whole)
    follower.refresh()
    assert follower.ranks()[0].steps.sum() == 5


def test_records_that_took_the_place_of_others_count_too(tracer: Tracers, run_folder: Path) -> None:
    """What the agent took back was overwritten in the ring before there was room again."""
    rank = tracer()
    rank.step(7)
    rank.drain(run_folder)
    (segment,) = run_folder.glob("*.steps")
    whole = segment.read_bytes()
    two = 2 * STEP_BYTES
    kept, lost, later = whole[: -2 * two], whole[-2 * two : -two], whole[-two:]
    segment.write_bytes(kept + lost)
    follower = followed(run_folder)
    segment.write_bytes(kept)
    follower.refresh()
    segment.write_bytes(kept + later)
    follower.refresh()
    assert follower.ranks()[0].steps[:8].tolist() == [1.0] * 7 + [0.0]


def test_folded_steps_lie_where_they_were(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aborted ones among them are no steps, and shift those after them."""
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 16)
    monkeypatch.setattr(record_file, "KEEP_SEGMENTS", 1)
    monkeypatch.setattr(record_file.folding, "BLOCK_STEPS", 8)
    rank = tracer()
    for number in range(200):
        rank.step(flags=int(StepFlag.ABORTED) if number % 5 == 0 else 0)
        rank.drain(run_folder)
    (found,) = followed(run_folder).ranks()
    np.testing.assert_allclose(found.steps[:160], 1.0)
    assert not found.steps[160:].any()


def test_a_closer_look_has_every_step(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 40)
    monkeypatch.setattr(run_follower, "MAX_BUCKETS", 16)
    rank = tracer()
    for number in range(6):
        rank.step(24)
        rank.step(1, flags=int(StepFlag.ABORTED) if number == 1 else 0)
        rank.drain(run_folder)
    follower = followed(run_folder)
    (found,) = follower.ranks_between(71, 86)
    assert (found.grid.first, found.grid.length) == (70, 1)
    assert found.steps.tolist() == [1.0] * 16
    walls = found.sums[:, SUMMED.index("wall_ns")].tolist()
    numbers = [n for n in range(150) if n != 49][70:86]  # the aborted one is none of them
    assert walls == [1_000 + n for n in numbers]


def test_a_closer_look_at_folded_steps_shares_out_their_blocks(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 64)
    monkeypatch.setattr(record_file, "KEEP_SEGMENTS", 1)
    rank = tracer()
    for _ in range(5):
        rank.step(60)
        rank.drain(run_folder)
    (found,) = followed(run_folder).ranks_between(33, 96)
    assert found.steps[:64].tolist() == [1.0] * 64
    wall = found.sums[:64, SUMMED.index("wall_ns")]
    assert wall[:32] == pytest.approx([1_031.5] * 32)  # the mean of the first block


def test_a_closer_look_at_what_was_folded_while_it_was_followed_has_all_of_it(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = followed_while_folded(tracer, run_folder, monkeypatch)
    (found,), (late,) = (each.ranks_between(1, 200) for each in (follower, followed(run_folder)))
    assert found.steps.sum() == 200
    same(found, late)


def test_records_of_the_first_format_are_followed(run_folder: Path) -> None:
    """Kept from the version that wrote it: half of the steps are folded."""
    kept = Path(__file__).parents[1] / "data" / "records" / "v1"
    for path in kept.iterdir():
        if path.is_file():
            shutil.copy(path, run_folder)
    follower = followed(run_folder)
    assert follower.ranks()
    check_totals(run_folder, follower.ranks())


def test_a_file_that_is_no_record_file_is_a_note(tracer: Tracers, run_folder: Path) -> None:
    rank = tracer()
    rank.step(3)
    rank.drain(run_folder)
    (run_folder / "rank-7-700.0000.steps").write_bytes(b"no record file" * 1000)
    follower = followed(run_folder)
    assert [found.rank.rank for found in follower.ranks()] == [0]
    (note,) = follower.notes
    assert "rank-7-700.0000.steps is not a TraceML record file" in note


def test_a_segment_that_is_damaged_ends_its_rank_alone(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 16)
    for rank in range(2):
        made = tracer(rank=rank, pid=100 + rank)
        made.step(40)
        made.drain(run_folder)
    (run_folder / "rank-0-100.0001.steps").write_bytes(b"x" * 20_000)
    follower = followed(run_folder)
    assert [rank.steps.sum() for rank in follower.ranks()] == [16.0, 40.0]
    (note,) = follower.notes
    assert "rank-0-100.0001.steps is not a TraceML record file" in note


def test_a_segment_that_is_damaged_leaves_the_next_life_of_its_rank(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 16)
    for life in range(2):
        made = tracer(rank=0, pid=100 + life, unix_s=STARTED_S + 1000 * life)
        made.step(40)
        made.drain(run_folder, everything=True)
    (run_folder / "rank-0-100.0001.steps").write_bytes(b"x" * 20_000)
    follower = followed(run_folder)
    (found,) = follower.ranks()
    assert found.steps[:56].tolist() == [1.0] * 56  # sixteen of the first life, all of the second
    (note,) = follower.notes
    assert "rank-0-100.0001.steps is not a TraceML record file" in note
    (closer,) = follower.ranks_between(1, 56)
    assert closer.steps.sum() == 56


def test_a_segment_that_a_full_disk_left_empty_is_none(
    tracer: Tracers, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 16)
    rank, follower = tracer(), RunFollower(run_folder)
    rank.step(32)
    rank.drain(run_folder)
    empty = run_folder / f"{rank.stem}.0002.steps"
    empty.touch()
    for each in (follower, RunFollower(run_folder)):
        each.refresh()
        check_totals(run_folder, each.ranks())
    empty.unlink()
    rank.step(8)
    rank.drain(run_folder)  # there is room again
    follower.refresh()
    (found,) = follower.ranks()
    assert found.steps.sum() == 40


def test_a_run_that_is_deleted_while_it_is_followed_says_so(
    tracer: Tracers, run_folder: Path
) -> None:
    rank = tracer()
    rank.step(3)
    rank.drain(run_folder)
    follower = followed(run_folder)
    shutil.rmtree(run_folder)
    with pytest.raises(RunNotFound, match="was deleted or moved while it was looked at"):
        follower.refresh()


def test_another_run_of_the_same_name_is_followed_from_its_beginning(
    tracer: Tracers, run_folder: Path
) -> None:
    rank = tracer()
    rank.step(30)
    rank.drain(run_folder)
    follower = followed(run_folder)
    shutil.rmtree(run_folder)
    run_folder.mkdir()
    folders.write_manifest(run_folder, Manifest("run", STARTED_S + 3600))
    follower.refresh()
    assert follower.ranks() == ()
    assert follower.manifest.started_unix_s == STARTED_S + 3600


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"has no run\.json"):
        RunFollower(tmp_path)


# Samples


def test_samples_are_the_same_bit_by_bit_or_at_once(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent halves its file meanwhile."""
    monkeypatch.setattr(samples, "MAX_SAMPLES", 1800)
    follower, file = RunFollower(run_folder), SampleFile(run_folder)
    for number, sample in enumerate(make_samples(2, 2500, gpu=True)):
        file.append(sample)
        if number % 137 == 0:
            follower.refresh()
    follower.refresh()
    ((_, early),), ((_, late),) = follower.samples(), followed(run_folder).samples()
    np.testing.assert_array_equal(early.unix_s, late.unix_s)
    np.testing.assert_array_equal(early.host, late.host)
    assert 300 <= len(early.unix_s) <= 600
    assert early.gpus[1][0] == "NVIDIA H200"
    rank, table = early.processes[1001]
    assert rank == 1 and len(table) == len(early.unix_s)


def test_a_sample_that_is_cut_short_is_passed_over(run_folder: Path) -> None:
    file = SampleFile(run_folder)
    for sample in make_samples(1, 3):
        file.append(sample)
    path = run_folder / samples.FILE_NAME
    path.write_bytes(path.read_bytes()[:-20])
    follower = followed(run_folder)
    ((_, table),) = follower.samples()
    assert len(table.unix_s) == 2
    file.append(make_samples(1, 4)[3])  # the agent cuts the rest of it off
    follower.refresh()
    ((_, table),) = follower.samples()
    assert (table.unix_s - table.unix_s[0]).tolist() == [0.0, 1.0, 3.0]


# Metrics


def test_metrics_are_those_of_the_lowest_rank(tracer: Tracers, run_folder: Path) -> None:
    for rank, pid in ((1, 301), (0, 300)):
        made = tracer(rank=rank, pid=pid)
        made.step(1)
        made.metrics(1, loss=float(rank), own=1.0) if rank else made.metrics(1, loss=0.0)
        made.drain(run_folder)
    found = followed(run_folder).metrics()
    assert {name: [list(life.values) for life in lives] for name, lives in found.items()} == {
        "loss": [[0.0]],
        "own": [[1.0]],
    }


def test_metrics_of_a_rank_that_started_again_follow_each_other(
    tracer: Tracers, run_folder: Path
) -> None:
    for life in range(2):
        made = tracer(pid=300 - life, unix_s=STARTED_S + 60 * life)
        made.step(2)
        made.metrics(life, loss=float(life))
        made.drain(run_folder, everything=True)
    (lives,) = followed(run_folder).metrics().values()
    assert [list(life.values) for life in lives] == [[0.0], [1.0]]


def test_a_message_file_that_was_thinned_is_read_again(tracer: Tracers, run_folder: Path) -> None:
    made, follower = tracer(messages=512), RunFollower(run_folder)
    made.step(1)
    for step in range(100):
        made.metrics(step, loss=float(step))
    made.say({"kind": "params", "values": {"lr": 0.1}})
    made.drain(run_folder)
    follower.refresh()
    (path,) = run_folder.glob("*.messages")
    folders.write_atomically(path, logged.thin(path.read_bytes()))
    made.metrics(100, loss="nan")
    made.drain(run_folder)
    follower.refresh()
    (kept,) = follower.metrics()["loss"]
    assert list(kept.steps) == [*range(1, 100, 2), 100]
    assert np.isnan(kept.values[-1])


def test_a_line_that_is_no_message_is_passed_over(run_folder: Path) -> None:
    lines = [b'{"kind":"metrics","step":1,"values":{"loss":1.0}}', b'"metrics" but no object']
    lines.append(json.dumps({"kind": "metrics", "step": 2, "values": [1]}).encode())
    (run_folder / "rank-0-1.messages").write_bytes(b"\n".join(lines) + b"\n")
    (logged_loss,) = followed(run_folder).metrics()["loss"]
    assert list(logged_loss.steps) == [1]


# Several machines


def test_the_ranks_of_all_nodes_are_followed_on_the_heads_clock(tmp_path: Path) -> None:
    run = make_run(ranks=4, steps=60)
    one = followed(write_run(tmp_path / "one", run))
    head, other = write_nodes(tmp_path, 2, ahead_s=300.0, run=run)
    follower = followed(head)
    assert [rank.rank.rank for rank in follower.ranks()] == [0, 1]
    bring_to_head(head, other)  # it joins while the run is followed
    follower.refresh()
    for alone, found in zip(one.ranks(), follower.ranks(), strict=True):
        assert alone.rank.rank == found.rank.rank
        np.testing.assert_array_equal(alone.sums, found.sums)
        np.testing.assert_allclose(alone.began_unix_s, found.began_unix_s)
    numbers = follower.rank_numbers()
    assert sorted(numbers.values()) == [0, 1, 2, 3]
    samples = dict(follower.samples())
    assert list(samples) == ["host-a", "host-b"]
    assert sorted(numbers[pid] for each in samples.values() for pid in each.processes) == [
        *range(4)
    ]
    np.testing.assert_allclose(samples["host-b"].unix_s, samples["host-a"].unix_s)
    shutil.rmtree(head / NODES)  # as if its disk had gone: the run stays
    follower.refresh()
    assert [rank.rank.rank for rank in follower.ranks()] == [0, 1]


def test_metrics_that_every_node_logs_are_kept_once(tracer: Tracers, run_folder: Path) -> None:
    node = run_folder / NODES / "host-b"
    node.mkdir(parents=True)
    folders.write_manifest(node, folders.read_manifest(run_folder))
    for rank, place in ((0, run_folder), (1, node)):
        (place / f"rank-{rank}-7.messages").write_text(
            "".join(
                json.dumps(
                    {"kind": "metrics", "step": step, "values": {"loss": rank, f"x{rank}": 1}}
                )
                + "\n"
                for step in range(3)
            )
        )
    found = followed(run_folder).metrics()
    assert {name: list(life.values) for name, (life,) in found.items()} == {
        "loss": [0.0] * 3,
        "x0": [1.0] * 3,
        "x1": [1.0] * 3,
    }
