"""A rank's files on disk: drained from a real ring, read back whole."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceml.model import record_layout
from traceml.model.errors import UnreadableRecords
from traceml.model.record_layout import StepFlag
from traceml.store import record_file
from traceml.store.load import drain_rings, load_run
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader
from traceml.trace.ring import REGION_CAPACITY

LIMIT_BYTES = 64_000_000


def numbers(files: RankFiles) -> list[int]:
    return [int(sequence) - 1 for sequence in files.read_steps()["sequence"]]


def size_of(folder: Path, pattern: str = "rank-*") -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


@pytest.fixture
def small_files(monkeypatch):
    """Segments of 32 steps, two of them kept, blocks of 4 steps, 16 of those."""
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 32)
    monkeypatch.setattr(record_file, "KEEP_SEGMENTS", 2)
    monkeypatch.setattr(record_file, "MAX_BLOCKS", 16)
    monkeypatch.setattr(record_file.folding, "BLOCK_STEPS", 4)
    monkeypatch.setattr(record_file, "MAX_MESSAGE_BYTES", 4096)


def test_a_run_is_read_back_at_full_resolution(tracer, run_folder):
    made = tracer()
    made.step(50)
    made.drain(run_folder, everything=True)
    with RingReader(made.path) as ring:
        expected = ring.steps_from(0, everything=True)
    (rank,) = load_run(run_folder).ranks
    assert np.array_equal(rank.steps, expected)
    assert rank.health.steps_lost == 0
    assert rank.rank.pid == 100 and rank.rank.world_size == 4


@given(bites=st.lists(st.integers(0, 9), max_size=20), restarts=st.sets(st.integers(0, 19)))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_many_small_bites_equal_one(tracer, tmp_path_factory, small_files, bites, restarts):
    """However the drains fall, and whenever a new agent takes over, the files end up the same."""
    at_once, in_bites = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("bites")
    made = tracer(steps=256, messages=256, pid=int(tmp_path_factory.getbasetemp().stat().st_ino))
    try:
        files = RankFiles.of(in_bites, made.stem)
        with RingReader(made.path) as ring:
            for place, bite in enumerate(bites):
                if place in restarts:
                    files = RankFiles.of(in_bites, made.stem)
                made.step(bite)
                made.metrics(place, loss=place)
                files.drain(ring)
            files.drain(ring, everything=True)
            RankFiles.of(at_once, made.stem).drain(ring, everything=True)
        one, many = RankFiles.of(at_once, made.stem), RankFiles.of(in_bites, made.stem)
        assert np.array_equal(one.read_steps(), many.read_steps())
        assert np.array_equal(one.read_blocks(), many.read_blocks())
        assert one.read_messages() == many.read_messages()
    finally:
        made.path.unlink()


def test_what_the_ring_overwrote_is_counted_as_lost(tracer, run_folder):
    made = tracer(steps=16)
    made.step(10)
    made.drain(run_folder)
    made.step(50)
    made.drain(run_folder, everything=True)
    (rank,) = load_run(run_folder).ranks
    found = [int(sequence) - 1 for sequence in rank.steps["sequence"]]
    assert found == [*range(10), *range(45, 60)]
    assert rank.health.steps_lost == 35
    assert rank.steps["wall_ns"].tolist() == [1_000 + number for number in found]


def test_a_new_agent_goes_on_without_duplicates_or_gaps(tracer, run_folder):
    made = tracer()
    for _ in range(5):
        made.step(7)
        made.metrics(made.ring.steps_written, loss=1.0)
        files = made.drain(run_folder)
    assert numbers(files) == list(range(35))
    assert [message["step"] for message in files.read_messages()] == [7, 14, 21, 28, 35]


def test_steps_whose_gpu_times_are_open_come_with_a_later_drain(tracer, run_folder):
    made = tracer()
    made.step(2)
    made.step(3, flags=int(StepFlag.GPU_TIMED))
    assert numbers(made.drain(run_folder)) == [0, 1]
    made.ring.fill_gpu_times(2, [5] * len(record_layout.GPU_FIELDS))
    made.ring.mark_final(3)
    files = made.drain(run_folder)
    assert numbers(files) == [0, 1, 2]
    assert files.read_steps()["gpu_body_ns"].tolist() == [-1, -1, 5]
    assert numbers(made.drain(run_folder, everything=True)) == [0, 1, 2, 3, 4]


def test_a_killed_writers_half_record_and_half_line_are_written_over(tracer, run_folder):
    made = tracer()
    made.step(5)
    made.metrics(5, loss=0.5)
    made.drain(run_folder)
    for path, rest in ((".0000.steps", b"\1" * 100), (".messages", b'{"number":2,"kind":"met')):
        with (run_folder / (made.stem + path)).open("ab") as file:
            file.write(rest)
    made.step(5)
    made.metrics(10, loss=0.25)
    files = made.drain(run_folder)
    assert numbers(files) == list(range(10))
    assert [message["step"] for message in files.read_messages()] == [5, 10]


def test_a_segment_that_was_made_and_never_written_is_none(tracer, run_folder, small_files):
    made = tracer()
    made.step(32)
    made.drain(run_folder)
    (run_folder / f"{made.stem}.0001.steps").touch()
    assert len(load_run(run_folder).ranks[0].steps) == 32
    made.step(8)
    assert numbers(made.drain(run_folder)) == list(range(40))


# Size


def test_files_stay_bounded_and_totals_exact_however_long_the_run(tracer, run_folder, small_files):
    made = tracer(steps=64)
    files = RankFiles.of(run_folder, made.stem)
    sizes = []
    with RingReader(made.path) as ring:
        for _ in range(200):
            made.step(25)
            files.drain(ring)
            sizes.append(size_of(run_folder))
    head, step, block = (
        record_layout.step_slots_offset(64),
        record_layout.STEP_BYTES,
        record_layout.BLOCK_BYTES,
    )
    assert max(sizes) <= 3 * (head + 32 * step) + 16 * block
    (rank,) = load_run(run_folder).ranks
    total = 5_000
    assert int(rank.blocks["steps"].sum()) + len(rank.steps) == total
    assert rank.health.steps_lost == 0
    walls = int(rank.blocks["wall_ns_sum"].sum() + rank.steps["wall_ns"].sum())
    assert walls == sum(1_000 + number for number in range(total))
    assert len(rank.steps) >= 2 * 32


def test_the_real_limits_keep_a_rank_under_64_mb():
    segments = record_file.KEEP_SEGMENTS + 1
    steps = segments * (
        record_layout.step_slots_offset(64) + record_file.SEGMENT_STEPS * record_layout.STEP_BYTES
    )
    blocks = record_file.MAX_BLOCKS * record_layout.BLOCK_BYTES
    messages = (
        record_file.MAX_MESSAGE_BYTES + 4096 * record_layout.MESSAGE_BYTES
    )  # one ring's worth more
    assert steps + blocks + messages <= LIMIT_BYTES
    folded = record_file.SEGMENT_STEPS // record_file.folding.BLOCK_STEPS
    assert record_file.MAX_BLOCKS // 2 + folded <= record_file.MAX_BLOCKS


def test_an_agent_killed_between_folding_and_removing_counts_no_step_twice(
    tracer, run_folder, small_files, monkeypatch
):
    monkeypatch.setattr(record_file, "SEGMENT_STEPS", 36)  # nine blocks: pairs do not come out even
    made = tracer(steps=256)
    files = RankFiles.of(run_folder, made.stem)

    def killed(path, missing_ok=False):
        if path.suffix == ".steps":
            raise KeyboardInterrupt

    with RingReader(made.path) as ring:
        for _ in range(60):
            made.step(16)
            with monkeypatch.context() as patched:
                patched.setattr(Path, "unlink", killed)
                try:
                    files.drain(ring)
                except KeyboardInterrupt:
                    files = RankFiles.of(run_folder, made.stem)
            (rank,) = load_run(run_folder).ranks
            walls = int(rank.blocks["wall_ns_sum"].sum() + rank.steps["wall_ns"].sum())
            assert walls == sum(1_000 + number for number in range(made.ring.steps_written))
            made.step()
            files.drain(ring)  # the next agent lives
    assert rank.blocks["steps"].max() > 4, "no blocks were merged: this showed nothing"


# A full disk

HEAD = record_layout.step_slots_offset(REGION_CAPACITY)
_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader

ring, folder, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    with RingReader(ring) as reader:
        RankFiles.of(folder, ring.stem).drain(reader)
except OSError as error:
    print("full")
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
@pytest.mark.parametrize(
    ("room", "before", "kept"),
    [
        pytest.param(100, 0, 0, id="not even a head"),
        pytest.param(HEAD + 50, 0, 0, id="not one step"),
        pytest.param(HEAD + 3 * record_layout.STEP_BYTES + 50, 0, 3, id="three steps and a bit"),
        pytest.param(HEAD + 25 * record_layout.STEP_BYTES, 20, 25, id="within the second bite"),
    ],
)
def test_of_a_disk_that_fills_up_every_whole_step_that_fits_is_kept_and_the_next_drain_goes_on(
    tracer, run_folder, room: int, before: int, kept: int
):
    made = tracer()
    if before:
        made.step(before)
        made.drain(run_folder)
    made.step(20)
    made.metrics(1, note="x" * 200)
    script = [sys.executable, "-c", textwrap.dedent(_FULL_DISK)]
    done = subprocess.run(
        [*script, str(made.path), str(run_folder), str(room)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "full", done.stderr
    loaded = load_run(run_folder)
    assert loaded.notes == ()
    assert sum(len(rank.steps) for rank in loaded.ranks) == kept
    files = made.drain(run_folder)
    assert numbers(files) == list(range(made.ring.steps_written))
    assert len(files.read_messages()) == 1


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 64 kB."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a small file system needs root on Linux")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_really_full_disk(tracer, tiny_disk):
    made = tracer(steps=1024)
    made.step(50)
    made.drain(tiny_disk)
    made.step(500)
    with pytest.raises(OSError):
        made.drain(tiny_disk)
    kept = numbers(RankFiles.of(tiny_disk, made.stem))
    assert kept == list(range(len(kept)))
    assert 150 < len(kept) < 550
    remount = ["mount", "-o", "remount,size=1m", str(tiny_disk)]
    subprocess.run(remount, check=True)
    assert numbers(made.drain(tiny_disk)) == list(range(550))


# Damage


def test_a_damaged_file_is_told_and_the_other_ranks_are_read(tracer, run_folder):
    for rank in (0, 1):
        made = tracer(rank=rank, pid=100 + rank)
        made.step(5)
        made.drain(run_folder)
    (path,) = run_folder.glob("rank-1-*.steps")
    path.write_bytes(path.read_bytes()[:300])
    loaded = load_run(run_folder)
    assert [rank.rank.rank for rank in loaded.ranks] == [0]
    (note,) = loaded.notes
    assert str(path) in note and "300 bytes long, expected" in note and "restore it" in note


def test_a_file_of_a_newer_version_is_told(tracer, run_folder):
    made = tracer()
    made.step(5)
    made.drain(run_folder)
    (path,) = run_folder.glob("rank-0-*.steps")
    content = bytearray(path.read_bytes())
    content[record_layout.offset_of(record_layout.IDENTITY, "version")] = record_layout.VERSION + 1
    path.write_bytes(content)
    with pytest.raises(
        UnreadableRecords, match=f"record format {record_layout.VERSION + 1}.*newer one"
    ):
        RankFiles.of(run_folder, made.stem).read_steps()


def test_rings_that_cannot_be_read_are_told_by_recovery(tracer, run_folder):
    made = tracer()
    made.step(5)
    (run_folder / made.path.name).write_bytes(made.path.read_bytes())
    (run_folder / "rank-1-101.ring").touch()
    (note,) = drain_rings(run_folder, everything=True)
    assert "rank-1-101.ring" in note
    assert len(load_run(run_folder).ranks[0].steps) == 5


class Killed(BaseException):
    """Ends a writer as SIGKILL does: nothing of it catches this."""


def test_a_writer_that_is_killed_in_its_first_write_costs_no_step(tracer, run_folder, monkeypatch):
    made = tracer()
    made.step(5)

    def write_half(descriptor, content, offset):
        os.pwrite(descriptor, content[: len(content) // 2], offset)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(record_file, "write_whole", write_half)
        made.drain(run_folder)
    made.step(5)
    assert len(made.drain(run_folder).read_steps()) == 10
