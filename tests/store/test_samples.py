"""The agent's samples on disk."""

from __future__ import annotations

import pytest

from traceml.model.sample import GpuSample, HostSample, ProcessSample, Sample
from traceml.store import samples
from traceml.store.samples import FILE_NAME, SampleFile, read


def sample(second: int) -> Sample:
    return Sample(unix_s=float(second), host=HostSample(cpu_share=0.5))


def test_a_sample_comes_back_as_it_was_read(tmp_path):
    full = Sample(
        unix_s=1.5,
        host=HostSample(cpu_share=0.25, ram_used_bytes=3),
        processes=(ProcessSample(rank=1, pid=2, cpu_cores=1.5),),
        gpus=(GpuSample(0, "GPU-0", "H200", throttle_reasons=("sw_power_cap",)),),
    )
    SampleFile(tmp_path).append(full)
    assert read(tmp_path) == (full,)


def test_the_file_halves_itself_and_samples_become_rarer(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "MOST_SAMPLES", 16)
    file = SampleFile(tmp_path)
    for second in range(16):
        file.append(sample(second))
    assert [each.unix_s for each in read(tmp_path)] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert file.stride == 2
    for second in range(16, 32, 2):
        file.append(sample(second))
    assert [each.unix_s for each in read(tmp_path)] == [0, 4, 8, 12, 16, 20, 24, 28]
    assert file.stride == 4


def test_a_new_agent_goes_on_after_a_line_cut_short(tmp_path):
    SampleFile(tmp_path).append(sample(1))
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"unix_s": 2.0, "ho')
    SampleFile(tmp_path).append(sample(3))
    assert [each.unix_s for each in read(tmp_path)] == [1, 3]


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"not json\n"])
def test_lines_that_are_no_samples_are_passed_over(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    assert read(tmp_path) == ()


def test_a_run_that_was_never_sampled_has_no_samples(tmp_path):
    assert read(tmp_path) == ()
