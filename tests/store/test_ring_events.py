"""Steps made of a ring's events on their way to disk, whoever is killed on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ring_steps import note_steps
from traceml.model import record_layout
from traceml.model.rank import Rank
from traceml.steps import events
from traceml.steps.events import optimizer_ended
from traceml.store import record_file
from traceml.store.load import rank_records
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader
from traceml.trace import ring as rings
from traceml.trace.recorder import Recorder

RANK = Rank(
    rank=0,
    local_rank=0,
    world_size=1,
    local_world_size=1,
    node_rank=0,
    pid=100,
    hostname="host-a",
    device="cpu",
    device_name="",
    device_total_bytes=None,
    monotonic_ns=0,
    unix_ns=0,
)


class Trainer:
    """A training process without the training: its events and its ring."""

    def __init__(self, folder: Path, capacity: int = 1024, limit: int = 0) -> None:
        self.folder = folder
        self.ring = rings._create_sized(folder / "rank-0-100.ring", capacity, 64)
        self.ring.identify(RANK)
        self.recorder = Recorder()
        place = self.ring.mapping, self.ring.event_base, self.ring.event_capacity
        self.ring.begin_events(self.recorder.move_to(*place), limit)

    def steps(self, count: int) -> None:
        note_steps(self.recorder, count)

    def log(self, **values: float) -> None:
        at = self.recorder.written
        message = {"kind": "metrics", "at": at, "unix_ns": 1, "values": values}
        self.ring.write_message(json.dumps(message, separators=(",", ":")).encode())

    def drain(self, everything: bool = False) -> RankFiles:
        """Bring everything to disk, with a new agent's eyes."""
        files = RankFiles.of(self.folder, self.ring.path.stem)
        with RingReader(self.ring.path) as reader:
            files.drain(reader, everything)
        return files

    def numbers(self) -> list[int]:
        return [int(n) for n in RankFiles.of(self.folder, "rank-0-100").read_steps()["sequence"]]


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


def killed_before_saving(monkeypatch: pytest.MonkeyPatch, trainer: Trainer) -> None:
    """An agent that brings everything to disk and dies before it can say where it was."""
    with monkeypatch.context() as context:
        context.setattr(RingReader, "commit", lambda *_: None)
        trainer.drain()


def test_what_a_killed_agent_wrote_and_did_not_vouch_for_is_made_again(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.steps(3)
    trainer.drain()
    trainer.steps(4)
    killed_before_saving(monkeypatch, trainer)
    before = RankFiles.of(trainer.folder, "rank-0-100").read_steps()
    assert len(before) == 7
    files = trainer.drain()
    assert np.array_equal(files.read_steps(), before)
    trainer.steps(2)
    trainer.drain(everything=True)
    assert trainer.numbers() == list(range(1, 10))


def test_of_a_killed_agents_segments_none_is_left_behind(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceml.store.record_file.SEGMENT_STEPS", 4)
    trainer.steps(3)
    trainer.drain()
    trainer.steps(12)
    killed_before_saving(monkeypatch, trainer)
    trainer.drain()
    assert trainer.numbers() == list(range(1, 16))


def test_a_step_is_continued_by_the_next_reader_where_the_last_one_left_it(
    trainer: Trainer,
) -> None:
    note = trainer.recorder.note
    trainer.steps(1)
    note(events.ENTER_STEP)
    note(events.BEGIN, events.H2D)
    trainer.drain()
    note(events.END, events.H2D)
    note(events.EXIT_STEP, events.step_ended(2, False))
    steps = trainer.drain(everything=True).read_steps()
    assert len(steps) == 2
    assert steps["h2d_ns"][1] > 0


def test_steps_that_nobody_read_in_time_are_counted_as_lost(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, capacity=256)
    trainer.steps(10)
    trainer.drain()
    trainer.steps(1000)
    files = trainer.drain(everything=True)
    head = files.head()
    assert head is not None
    steps, blocks = files.read_steps(), files.read_blocks()
    found = rank_records(head, steps, blocks)
    assert 850 < found.health.steps_lost < 1000
    assert found.health.steps_lost + len(steps) == 1010


def logged(files: RankFiles) -> list[tuple[Any, Any]]:
    return [(each["step"], each["values"]) for each in files.read_messages()]


def test_a_value_belongs_to_the_step_that_was_running_when_it_was_logged(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.log(loss=0)
    trainer.steps(2)
    trainer.log(loss=2)
    trainer.steps(3)
    trainer.log(loss=5)
    trainer.steps(1)
    files = trainer.drain()
    assert logged(files) == [(0, {"loss": 0}), (2, {"loss": 2}), (5, {"loss": 5})]
    trainer.log(loss=6)
    trainer.steps(1)
    assert logged(trainer.drain())[-1] == (6, {"loss": 6})


def test_no_more_steps_than_asked_for_are_made(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, limit=5)
    trainer.steps(3)
    trainer.drain()
    trainer.steps(20)
    files = trainer.drain(everything=True)
    head = files.head()
    assert trainer.numbers() == [1, 2, 3, 4, 5]
    assert head is not None and head.counters["recording_ended"] == record_layout.LIMIT_REACHED


def train_with_losses(trainer: Trainer, *losses: float) -> None:
    recorder = trainer.recorder
    for loss in losses:
        recorder.begin_fetch(1)
        recorder.note(events.END_FETCH, 8)
        recorder.note_backward(loss)
        recorder.note(events.END_BACKWARD)
        recorder.note(events.BEGIN_OPTIMIZER, 1)
        recorder.ends += 1
        recorder.end_step(events.END_OPTIMIZER, optimizer_ended(recorder.ends, 1))
    recorder.begin_fetch(1)  # only now is it known that the last one has ended
    recorder.note(events.END_FETCH, 8)


def test_the_first_loss_is_written_down_once(trainer: Trainer) -> None:
    for step in range(6):
        train_with_losses(trainer, 1.0 + step if step != 4 else float("nan"))
        trainer.drain()
    trainer.recorder.note_boundary(events.FINISH)
    said = trainer.drain(everything=True).read_messages()
    found = [(each["step"], each["value"], each.get("finite_step")) for each in said]
    assert found == [(1, 1.0, None), (5, "nan", 4)]


def test_a_killed_agents_first_losses_are_not_written_down_again(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_with_losses(trainer, 2.0, 1.0, float("nan"))
    killed_before_saving(monkeypatch, trainer)
    train_with_losses(trainer, 0.5)
    killed_before_saving(monkeypatch, trainer)
    said = trainer.drain().read_messages()
    assert [(each["step"], each["value"]) for each in said] == [(1, 2.0), (3, "nan")]


def test_a_loss_that_a_full_disk_refused_is_written_down_later(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_with_losses(trainer, 2.0)
    files = RankFiles.of(trainer.folder, trainer.ring.path.stem)
    with RingReader(trainer.ring.path) as reader:
        with monkeypatch.context() as context, pytest.raises(OSError, match="full"):
            context.setattr(record_file, "append_lines", full_disk)
            files.drain(reader)
        files.drain(reader)
    assert [(each["step"], each["value"]) for each in files.read_messages()] == [(1, 2.0)]


def full_disk(*_: object) -> int:
    raise OSError(28, "the disk is full")


def test_a_damaged_state_costs_what_it_stood_for_and_nothing_else(trainer: Trainer) -> None:
    trainer.steps(5)
    trainer.drain()
    base, size = trainer.ring.state_base, 2 * rings.STATE_BYTES
    trainer.ring.mapping[base : base + size] = b"\x7f" * size
    trainer.steps(5)
    trainer.drain(everything=True)
    assert trainer.numbers() == list(range(1, 11))


def test_rows_that_cannot_be_made_again_are_kept(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent wrote them and never saved where it was; since then the ring has come round."""
    for _ in range(30):
        trainer.steps(100)
        killed_before_saving(monkeypatch, trainer)
    written = trainer.numbers()
    assert len(written) > 2000
    trainer.steps(100)
    trainer.drain(everything=True)
    numbers = trainer.numbers()
    assert numbers[: len(written)] == written
    assert numbers[-1] > written[-1]
    assert len(set(numbers)) == len(numbers)


def test_a_step_number_in_a_message_does_not_look_like_a_lost_message(trainer: Trainer) -> None:
    """In the ring a message names its event, on disk its step: it may then need a piece less."""
    trainer.steps(150)
    for length in range(120, 260):
        trainer.log(**{"x" * length: 1.0})
        trainer.drain()
    lines = (trainer.folder / "rank-0-100.messages").read_text()
    assert lines.count("metrics") == 140
    assert "lost" not in lines
