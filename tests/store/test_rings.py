"""The reading end of a ring that holds steps, as earlier builds wrote it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traceml.model import record_layout
from traceml.model.errors import UnreadableRecords
from traceml.model.record_layout import StepFlag
from traceml.store.rings import RingReader

from .conftest import step_values


def numbers(steps: np.ndarray) -> list[int]:
    return [int(sequence) - 1 for sequence in steps["sequence"]]


def test_steps_come_back_as_they_were_written(tracer):
    made = tracer()
    made.step(10, h2d_ns=7, flags=int(StepFlag.EXPLICIT))
    with RingReader(made.path) as ring:
        steps = ring.steps_from(0, everything=False)
    for number, found in enumerate(steps):
        expected = [*step_values(number, h2d_ns=7, flags=int(StepFlag.EXPLICIT)), number + 1]
        assert list(found.tolist()) == expected


def test_who_writes_a_ring_comes_back_with_its_gpu(tracer):
    made = tracer()
    uuid = "GPU-12345678-1234-1234-1234-123456789abc"
    with RingReader(made.path) as ring:
        plain = ring.head().rank
        made.ring.identify(replace(plain, device="cuda:1", device_uuid=uuid))
        named = ring.head().rank
    assert (plain.device_uuid, plain.is_on_gpu) == ("", False)
    assert (named.device_uuid, named.is_on_gpu) == (uuid, True)
    assert named.trains_on(uuid) and not named.trains_on("GPU-1234") and not plain.trains_on(uuid)


def test_only_steps_from_the_number_on_are_read(tracer):
    made = tracer()
    made.step(10)
    with RingReader(made.path) as ring:
        assert numbers(ring.steps_from(7, everything=False)) == [7, 8, 9]
        assert numbers(ring.steps_from(10, everything=False)) == []


def test_a_full_ring_keeps_all_but_the_slot_that_may_be_in_mid_write(tracer):
    made = tracer(steps=16)
    made.step(40)
    with RingReader(made.path) as ring:
        steps = ring.steps_from(0, everything=True)
    assert numbers(steps) == list(range(25, 40))
    assert steps["wall_ns"].tolist() == [1_000 + number for number in range(25, 40)]


def test_a_slot_that_is_being_overwritten_is_never_taken_for_the_old_step(tracer):
    made = tracer(steps=16)
    made.step(16)
    slot = record_layout.step_slots_offset(64)
    made.ring._map[slot : slot + 8] = b"\xff" * 8  # step 16 has begun, its sequence is still 0's
    with RingReader(made.path) as ring:
        assert numbers(ring.steps_from(0, everything=True)) == list(range(1, 16))


def test_a_torn_slot_is_passed_over(tracer):
    made = tracer()
    made.step(10)
    sequence = record_layout.step_slots_offset(64) + 4 * record_layout.STEP_BYTES
    sequence += record_layout.offset_of(record_layout.STEP, "sequence")
    made.ring._map[sequence : sequence + 8] = bytes(8)
    with RingReader(made.path) as ring:
        assert numbers(ring.steps_from(0, everything=True)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_steps_wait_until_their_gpu_times_are_final(tracer):
    made = tracer()
    made.step(3)
    made.step(5, flags=int(StepFlag.GPU_TIMED))
    with RingReader(made.path) as ring:
        assert numbers(ring.steps_from(0, everything=False)) == [0, 1, 2]
        made.ring.fill_gpu_times(3, [11] * len(record_layout.GPU_FIELDS))
        made.ring.mark_final(4)
        steps = ring.steps_from(0, everything=False)
        assert numbers(steps) == [0, 1, 2, 3]
        assert steps["gpu_body_ns"].tolist() == [record_layout.NOT_MEASURED] * 3 + [11]
        assert numbers(ring.steps_from(0, everything=True)) == list(range(8))


def test_a_step_that_becomes_final_while_it_is_read_waits_for_the_next_time(tracer, monkeypatch):
    made = tracer()
    made.step(1, flags=int(StepFlag.GPU_TIMED))
    with RingReader(made.path) as ring:
        read_slots = ring._slots

        def finish_after_the_copy(*arguments):
            slots = read_slots(*arguments)
            made.ring.fill_gpu_times(0, [11] * len(record_layout.GPU_FIELDS))
            made.ring.mark_final(1)
            return slots

        monkeypatch.setattr(ring, "_slots", finish_after_the_copy)
        assert numbers(ring.steps_from(0, everything=False)) == []
        assert ring.steps_from(0, everything=False)["gpu_body_ns"].tolist() == [11]


def test_a_message_of_several_pieces_comes_back_whole(tracer):
    made = tracer()
    long = {"kind": "params", "values": {"note": "x" * 700}}
    made.say(long)
    made.metrics(1, loss=0.5)
    with RingReader(made.path) as ring:
        (first, text), (second, _) = ring.messages_from(0)
    assert (first, second) == (4, 5)
    assert b"x" * 700 in text


def test_a_message_that_ends_in_zero_bytes_keeps_them(tracer):
    made = tracer()
    made.ring.write_message(b"abc\0\0")
    with RingReader(made.path) as ring:
        assert ring.messages_from(0) == [(1, b"abc\0\0")]


@pytest.mark.parametrize("read_before", [0, 1], ids=["nothing read before", "one piece read"])
def test_a_message_whose_first_pieces_are_overwritten_is_passed_over(tracer, read_before):
    made = tracer(messages=8)
    made.metrics(0, loss=0.0)
    made.say({"kind": "params", "values": {"note": "x" * 700}})
    for step in range(6):
        made.metrics(step, loss=float(step))
    with RingReader(made.path) as ring:
        found = ring.messages_from(read_before)
    assert [b"note" in text for _, text in found] == [False] * 6
    assert found[0][0] == 6


def test_a_torn_piece_in_the_middle_spoils_its_own_message_alone(tracer):
    made = tracer(messages=32)
    made.metrics(0, loss=0.0)
    made.say({"kind": "params", "values": {"note": "x" * 700}})
    made.metrics(1, loss=1.0)
    piece = record_layout.message_slots_offset(64, 64) + 2 * record_layout.MESSAGE_BYTES
    sequence = piece + record_layout.offset_of(record_layout.MESSAGE, "sequence")
    made.ring._map[sequence : sequence + 8] = bytes(8)
    with RingReader(made.path) as ring:
        assert [number for number, _ in ring.messages_from(0)] == [1, 6]


def test_regions_and_counters_come_with_the_head(tracer):
    made = tracer()
    line = made.ring.open_region()
    made.ring.write_region(line, b"augment", 3, 2_000_000_000, 1_500_000_000, -1)
    made.ring.count_failure("ValueError: ours")
    made.ring.mark_ended()
    with RingReader(made.path) as ring:
        head = ring.head()
    (region,) = head.regions
    assert (region.name, region.calls, region.host_s, region.longest_s) == ("augment", 3, 2.0, 1.5)
    assert region.gpu_s is None
    assert head.counters["failures"] == 1 and head.counters["ended"] == 1
    assert head.rank.hostname == "host-a" and head.rank.device_total_bytes is None


def test_regions_beyond_the_table_are_counted(tracer):
    made = tracer()
    lines = [made.ring.open_region() for _ in range(70)]
    assert lines[64:] == [None] * 6
    with RingReader(made.path) as ring:
        assert ring.head().counters["regions_dropped"] == 6


def _patch(field: str, content: bytes) -> tuple[int, bytes]:
    return record_layout.offset_of(record_layout.IDENTITY, field), content


@pytest.mark.parametrize(
    ("offset", "content", "words"),
    [
        (*_patch("magic", b"SQLite f"), ("not a TraceML record file", "expected", "move it out")),
        (*_patch("byte_order", b"\1\2\3\4"), ("damaged", "expected", "restore it")),
        (*_patch("version", b"\x63\0\0\0"), ("format 99", "reads formats 1 to", "newer one")),
        (*_patch("step_capacity", b"\xff" * 4), ("damaged", "expected", "restore it")),
        (*_patch("region_capacity", b"\xff" * 4), ("damaged", "expected", "restore it")),
    ],
    ids=["another program's", "another byte order", "a newer version", "too short", "no table"],
)
def test_a_file_that_cannot_be_read_says_what_was_expected_and_what_to_do(
    tracer, offset: int, content: bytes, words: tuple[str, ...]
):
    made = tracer()
    made.step(3)
    made.ring._map[offset : offset + len(content)] = content
    with pytest.raises(UnreadableRecords) as caught:
        RingReader(made.path)
    for word in (str(made.path), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("size", [0, 100, 5000], ids=["empty", "no head", "half a table"])
def test_a_ring_that_was_never_finished_is_unreadable_not_a_crash(tracer, size: int):
    made = tracer()
    content = made.path.read_bytes()[:size]
    short = Path(made.path.parent) / "short.ring"
    short.write_bytes(content)
    with pytest.raises(UnreadableRecords, match="expected"):
        RingReader(short)


def test_a_count_of_regions_that_cannot_be_is_not_believed(tracer):
    made = tracer()
    offset = record_layout.COUNTERS_OFFSET + record_layout.offset_of(
        record_layout.COUNTERS, "regions_used"
    )
    made.ring._map[offset : offset + 8] = b"\xff" * 8
    with RingReader(made.path) as ring:
        assert ring.head().regions == ()
