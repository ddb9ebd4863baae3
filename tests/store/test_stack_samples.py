"""Looks at stacks come back as they were written, however the agent ended."""

from __future__ import annotations

from pathlib import Path

from traceml.model.sample import CodeLine, StackBurst, StackSample
from traceml.store import stack_samples
from traceml.store.stack_samples import FILE_NAME, StackSampleFile, read_stack_samples

LINE = CodeLine("get_batch", "train.py", 118)
BURST = StackBurst(0, 77, "py-spy", 3, 1, (StackSample(100.5, 2, "residual", LINE, None, LINE),))


def test_bursts_come_back(tmp_path: Path) -> None:
    assert read_stack_samples(tmp_path) == ()
    for _ in range(2):
        StackSampleFile(tmp_path).append(BURST)
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"rank": 0, "pi')  # cut short by a killed agent
    assert read_stack_samples(tmp_path) == (BURST, BURST)


def test_no_more_than_so_many_are_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stack_samples, "MAX_BURSTS", 2)
    file = StackSampleFile(tmp_path)
    for expected in (False, False, True):
        assert file.is_full is expected
        file.append(BURST)
    assert len(read_stack_samples(tmp_path)) == 2
    assert StackSampleFile(tmp_path).is_full
