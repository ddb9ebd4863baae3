"""Looks at stacks come back as they were written, however the agent ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from traceml.model.sample import CodeLine, StackBurst, StackFrame, StackSample
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


def numbered(number: int) -> StackBurst:
    return replace(BURST, pid=number)


def test_of_too_many_every_second_is_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stack_samples, "MAX_BURSTS", 4)
    file = StackSampleFile(tmp_path)
    for number in range(6):
        file.append(numbered(number))
    assert [burst.pid for burst in read_stack_samples(tmp_path)] == [0, 2, 4, 5]
    assert file.stride == 2
    file.append(numbered(6))
    assert [burst.pid for burst in read_stack_samples(tmp_path)] == [0, 4, 6]
    assert file.stride == 4


def test_the_file_stays_small_however_long_the_bursts_are(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stack_samples, "MAX_BYTES", 3000)
    long = replace(BURST, samples=BURST.samples * 5)
    file = StackSampleFile(tmp_path)
    for _ in range(20):
        file.append(long)
        assert (tmp_path / FILE_NAME).stat().st_size <= 3000
    assert file.stride > 1


def test_a_stack_that_is_not_there_is_none(tmp_path: Path) -> None:
    frame = StackFrame("main", "train.py", 3, True)
    sample = replace(BURST.samples[0], stack=0)
    odd = replace(BURST, samples=(sample, replace(sample, stack=7)), frames=(frame,))
    StackSampleFile(tmp_path).append(replace(odd, stacks=((0,),)))
    StackSampleFile(tmp_path).append(replace(odd, stacks=((0, 9),)))
    first, second = read_stack_samples(tmp_path)
    assert [each.stack for each in first.samples] == [0, None]
    assert second.stacks == ((),)
