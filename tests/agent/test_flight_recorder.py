"""The flight recorder is found where the job has it, asked by its pipe, and never waited for."""

import os
import time
from pathlib import Path

import pytest

from flight_dumps import dump_bytes, entry
from traceml.agent.flight_recorder import FlightRecorder

RANKS = {0: 100, 1: 101}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Two ranks whose environment names where their files go."""
    monkeypatch.setattr("traceml.agent.flight_recorder.OLD_FILE", str(tmp_path / "old_"))
    monkeypatch.setattr("traceml.agent.flight_recorder.folder_of", lambda pid: "/home/me/job")

    def start(**environment: str) -> FlightRecorder:
        for pid in RANKS.values():
            (tmp_path / "proc" / str(pid)).mkdir(parents=True)
            text = "\0".join(f"{name}={value}" for name, value in environment.items())
            (tmp_path / "proc" / str(pid) / "environ").write_bytes(text.encode() + b"\0")
        return FlightRecorder(tmp_path / "proc", lambda pid: time.time() + (pid >= 200) * 60)

    return start


def write(path: Path, *entries: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dump_bytes(*entries))
    os.utime(path, (time.time() + 5, time.time() + 5))


def hang(stem: str) -> None:
    write(Path(f"{stem}0"), entry(1, state="completed"), entry(2))
    write(Path(f"{stem}1"), entry(1, state="completed"))


@pytest.mark.parametrize("name", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_files_are_read_where_the_environment_says(job, tmp_path, name):
    recorder = job(**{name: f"{tmp_path}/mine_"})
    recorder.ask(RANKS)
    assert recorder.stuck() == ()
    hang(f"{tmp_path}/mine_")
    (stuck,) = recorder.stuck()
    assert (stuck.missing, stuck.waiting) == ((1,), (0,))
    assert stuck.where == "train.py:88 in load_batch"


@pytest.mark.parametrize("name", ["torch/comm_lib_trace_rank_", "torch/nccl_trace_rank_"])
def test_files_are_read_where_torch_writes_by_default(job, tmp_path, name):
    recorder = job(HOME=str(tmp_path))
    recorder.ask(RANKS)
    hang(f"{tmp_path}/.cache/{name}")
    assert len(recorder.stuck()) == 1


def test_files_of_an_earlier_run_say_nothing(job, tmp_path):
    hang(f"{tmp_path}/mine_")
    for rank in RANKS:
        os.utime(f"{tmp_path}/mine_{rank}", (1e9, 1e9))
    recorder = job(TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/mine_")
    recorder.ask(RANKS)
    assert recorder.stuck() == ()


def test_a_file_of_the_attempt_before_says_nothing(job, tmp_path):
    recorder = job(TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/mine_")
    recorder.ask(RANKS)
    hang(f"{tmp_path}/mine_")
    assert len(recorder.stuck()) == 1
    for pid in (200, 201):
        (tmp_path / "proc" / str(pid)).mkdir()
        (tmp_path / "proc" / str(pid) / "environ").write_bytes(
            (tmp_path / "proc" / "100" / "environ").read_bytes()
        )
    recorder.ask({0: 200, 1: 201})
    assert recorder.stuck() == ()


def test_a_file_that_is_half_written_is_read_again(job, tmp_path):
    recorder = job(TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/mine_")
    recorder.ask(RANKS)
    hang(f"{tmp_path}/mine_")
    whole = Path(f"{tmp_path}/mine_0").read_bytes()
    Path(f"{tmp_path}/mine_0").write_bytes(whole[:100])
    os.utime(f"{tmp_path}/mine_0", (time.time() + 5, time.time() + 5))
    assert recorder.stuck() == ()
    Path(f"{tmp_path}/mine_0").write_bytes(whole)
    os.utime(f"{tmp_path}/mine_0", (time.time() + 6, time.time() + 6))
    assert len(recorder.stuck()) == 1


def test_the_pipe_is_written_to_where_somebody_reads_it(job, tmp_path):
    os.mkfifo(tmp_path / "pipe_0.pipe")
    reader = os.open(tmp_path / "pipe_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        job(TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/pipe_").ask(RANKS)
        assert os.read(reader, 10)
    finally:
        os.close(reader)


def test_a_pipe_without_a_reader_and_a_plain_file_are_left_alone(job, tmp_path):
    os.mkfifo(tmp_path / "pipe_0.pipe")
    (tmp_path / "pipe_1.pipe").write_text("somebody's")
    job(TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/pipe_").ask(RANKS)
    assert (tmp_path / "pipe_1.pipe").read_text() == "somebody's"


def test_a_process_that_is_gone_has_no_environment(tmp_path):
    recorder = FlightRecorder(tmp_path)
    recorder.ask({0: 4})
    assert recorder.stuck() == ()
