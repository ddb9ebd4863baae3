"""The agent's samples on disk."""

from __future__ import annotations

import math

import msgspec
import pytest

from traceml.model.sample import GpuInterval, GpuSample, HostSample, ProcessSample, Sample
from traceml.store import samples
from traceml.store.sample_follower import GPU, SampleFollower
from traceml.store.samples import FILE_NAME, SampleFile, read


def sample(second: int) -> Sample:
    return Sample(unix_s=float(second), host=HostSample(cpu_share=0.5))


def test_a_sample_comes_back_as_it_was_read(tmp_path):
    full = Sample(
        unix_s=1.5,
        host=HostSample(cpu_share=0.25, ram_used_bytes=3),
        processes=(ProcessSample(rank=1, pid=2, cpu_cores=1.5),),
        gpus=(
            GpuSample(
                0,
                "GPU-0",
                "H200",
                throttle_reasons=("sw_power_cap",),
                intervals=(
                    GpuInterval(1.25, 1.5, 0.997, 0.88, 0.44, 0.32, 0.02, 0.43, 0.0, None),
                    GpuInterval(1.0, 1.25, busy_share=0.5),
                ),
            ),
        ),
    )
    SampleFile(tmp_path).append(full)
    assert read(tmp_path) == (full,)


def test_the_file_halves_itself_and_samples_become_rarer(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "MAX_SAMPLES", 16)
    file = SampleFile(tmp_path)
    for second in range(16):
        file.append(sample(second))
    assert [each.unix_s for each in read(tmp_path)] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert file.stride == 2
    for second in range(16, 32, 2):
        file.append(sample(second))
    assert [each.unix_s for each in read(tmp_path)] == [0, 4, 8, 12, 16, 20, 24, 28]
    assert file.stride == 4


def test_samples_from_before_there_were_counters_are_read(tmp_path):
    gpu = b'{"index":0,"uuid":"GPU-0","name":"H200","utilisation":0.5}'
    (tmp_path / FILE_NAME).write_bytes(b'{"unix_s":1.0,"host":{},"gpus":[%s]}\n' % gpu)
    (old,) = read(tmp_path)
    assert old.gpus == (GpuSample(0, "GPU-0", "H200", utilisation=0.5),)


def test_long_samples_halve_the_file_by_its_size(tmp_path, monkeypatch):
    counted = GpuSample(0, "GPU-0", "H200", intervals=(GpuInterval(1.0, 1.25, 0.5),) * 40)
    full = Sample(unix_s=1.0, host=HostSample(), gpus=(counted,))
    one = len(msgspec.json.encode(full)) + 1
    monkeypatch.setattr(samples, "MAX_BYTES", 10 * one)
    file = SampleFile(tmp_path)
    for _ in range(10):
        file.append(full)
    assert (len(read(tmp_path)), file.stride) == (5, 2)
    again = SampleFile(tmp_path)  # an agent that was started again knows how long the file is
    for _ in range(5):
        again.append(full)
    assert (len(read(tmp_path)), again.stride) == (5, 2)


def test_a_moment_of_the_history_has_the_mean_of_its_intervals(tmp_path):
    intervals = (GpuInterval(1.0, 1.25, 1.0, 0.4), GpuInterval(1.25, 2.0, 0.5, None))
    gpu = GpuSample(0, "GPU-0", "H200", intervals=intervals)
    SampleFile(tmp_path).append(Sample(unix_s=2.0, host=HostSample(), gpus=(gpu,)))
    followed = SampleFollower(tmp_path)
    followed.refresh()
    table = followed.table()
    assert table is not None
    found = dict(zip(GPU, table.gpus[0][1][0], strict=True))
    assert (found["busy_share"], found["sm_share"]) == (0.625, 0.4)
    assert math.isnan(found["tensor_share"])


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


@pytest.mark.parametrize("most", [1, 3, 12, 99])
def test_of_many_samples_some_from_all_of_the_run_are_read(tmp_path, most):
    file = SampleFile(tmp_path)
    for second in range(100):
        file.append(sample(second))
    seconds = [each.unix_s for each in read(tmp_path, most)]
    assert seconds == sorted(set(seconds))
    assert most / 2 < len(seconds) <= most
    assert seconds[0] == 0.0
    assert seconds[-1] >= 98 - 2 * 100 / most


def test_as_many_samples_as_may_be_read_are_all_read(tmp_path):
    file = SampleFile(tmp_path)
    for second in range(100):
        file.append(sample(second))
    assert len(read(tmp_path, 100)) == 100
