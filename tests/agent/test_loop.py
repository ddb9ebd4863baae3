"""The agent's loop: what fails in one place holds up no other, and the end is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from fake_nvml import FakeCounters
from processes import PATIENCE_S, wait_until
from ring_steps import write_steps
from traceml.agent import loop, notify_targets, tracker_processes
from traceml.agent.close import summarise
from traceml.agent.loop import Agent
from traceml.agent.node_duties import NodeDuties
from traceml.api.run import RunOptions, new_run
from traceml.model.environment import MESSAGES_MARK, NOTIFY, SUMMARY_MARK
from traceml.model.node import HEAD_MARK, HEAD_WANTED_MARK, JOIN_MARK
from traceml.model.run import Ending
from traceml.model.tracker import LOG_TO_MARK, SAID_MARK
from traceml.store import folder as folders
from traceml.store import samples
from traceml.store.node_folders import closing_words
from traceml.trace.session import Session

pytestmark = pytest.mark.slow  # an agent asks git about the code


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = new_run("train.py", ["train.py"], RunOptions(logs_dir=tmp_path))
    manifest = folders.read_manifest(made)
    yield made
    folders.remove_rings(manifest)


def _train(folder: Path, steps: int) -> Session:
    """A rank of this very process."""
    ring_folder = folders.read_manifest(folder).ring_folder
    session = Session(folder, Path(ring_folder) if ring_folder else None, None)
    write_steps(session, steps)
    return session


class _Following:
    """An agent at work in a thread, and the end of the pipe that its launcher holds."""

    def __init__(self, folder: Path, owner: int | None = None) -> None:
        reading, self.control = os.pipe()
        self.agent = Agent(folder, reading, owner)
        self.result: list[bool] = []
        self._thread = Thread(target=lambda: self.result.append(self.agent.run()))
        self._thread.start()

    def tell(self, message: object) -> None:
        os.write(self.control, json.dumps(message).encode() + b"\n")

    def hang_up(self) -> None:
        os.close(self.control)

    def finish(self) -> bool:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.result[0]


def _steps(folder: Path) -> int:
    summary = json.loads((folder / "final_summary.json").read_bytes())
    steps: int = summary["step_time"]["metadata"]["training_total_steps"]
    return steps


def test_a_run_is_followed_to_its_end(folder: Path) -> None:
    following = _Following(folder)
    _train(folder, 7)
    following.tell({"training_pid": os.getpid()})
    following.tell({"ended": {"exit_status": 3}})
    assert following.finish()
    assert _steps(folder) == 7
    ending = folders.read_ending(folder)
    assert ending is not None
    assert ending.exit_status == 3
    assert not Path(folders.read_manifest(folder).ring_folder).exists()
    following.hang_up()


TRACKER_STAND_IN = """\
import sys
from pathlib import Path
said = sys.stdin.buffer.read()
Path(sys.argv[3], "marks", "tracker-said-" + sys.argv[2]).write_text("logged")
"""


def test_the_end_is_delivered_to_everyone_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that is notified ends only when the tracker was told of the end."""
    said = folder / "marks" / "tracker-said-wandb"
    monkeypatch.setattr(tracker_processes, "TRACKER", TRACKER_STAND_IN)
    for timeout in ("END_TIMEOUT_S", "COMMAND_TIMEOUT_S"):
        monkeypatch.setattr(notify_targets, timeout, PATIENCE_S)
    monkeypatch.setattr(loop, "MIN_DELIVERY_S", PATIENCE_S)
    look = f"test -e {said} && exit; sleep 0.1"
    monkeypatch.setenv(NOTIFY, f"for i in $(seq 600); do {look}; done; exit 9")
    folders.write_mark(folder, LOG_TO_MARK, "wandb")
    _train(folder, 7)
    following = _Following(folder)
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    following.hang_up()
    assert folders.read_mark(folder, MESSAGES_MARK) is None, "the command was delivered"
    assert folders.read_mark(folder, SUMMARY_MARK) == ""


def test_trackers_wait_for_the_first_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script logs before it trains is no step: which runs it has open is not known yet."""
    monkeypatch.setattr(tracker_processes, "TRACKER", TRACKER_STAND_IN)
    folders.write_mark(folder, LOG_TO_MARK, "wandb")
    following = _Following(folder)
    trackers = following.agent._trackers
    rank = _train(folder, 0)
    rank.messages.params({"lr": 0.1})
    wait_until(lambda: list(folder.glob("rank-*.messages")), "the parameters are on disk")
    following.agent._log_to_trackers()
    assert trackers._started == {}
    write_steps(rank, 1)
    wait_until(lambda: trackers._started, "a tracker's process is there")
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    following.hang_up()


def test_a_run_without_a_step_is_logged_to_no_tracker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_processes, "TRACKER", TRACKER_STAND_IN)
    folders.write_mark(folder, LOG_TO_MARK, "wandb")
    _train(folder, 0).messages.params({"lr": 0.1})
    following = _Following(folder)
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    following.hang_up()
    assert folders.read_mark(folder, f"{SAID_MARK}wandb") is None


def test_the_counters_of_the_gpu_that_a_rank_has_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeCounters(percents={2: 88.0}).module())
    monkeypatch.setattr("traceml.trace.session._describe", lambda _: ("NVIDIA H200", 7, "GPU-1"))
    ring_folder = folders.read_manifest(folder).ring_folder
    session = Session(folder, Path(ring_folder), None)
    session.device = "cuda:0"  # by torch's count, the machine's is another
    write_steps(session, 3)
    following = _Following(folder)

    def counted() -> list[tuple[str, float | None]]:
        return [
            (gpu.uuid, interval.sm_share)
            for sample in samples.read(folder)
            for gpu in sample.gpus
            for interval in gpu.intervals
        ]

    found = wait_until(counted, "the counters are kept")
    assert set(found) == {("GPU-1", 0.88)}
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    following.hang_up()


def test_messages_in_pieces_and_nonsense_are_survived(folder: Path) -> None:
    following = _Following(folder)
    os.write(following.control, b'not json\n{"ended": {"exit')
    os.write(following.control, b'_status": 0}}\n')
    assert following.finish()
    following.hang_up()


def test_one_damaged_ring_holds_up_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring_folder = Path(folders.read_manifest(folder).ring_folder or folder)
    (ring_folder / "rank-0-1.ring").write_bytes(b"")
    (ring_folder / "rank-0-2.ring").write_bytes(b"x" * 10_000)
    session = _train(folder, 7)
    following = _Following(folder)
    wait_until(lambda: list(folder.glob("rank-*.steps")), "the whole ring is drained")
    write_steps(session, 2)
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    assert _steps(folder) == 9
    following.hang_up()


def test_a_ring_that_fills_up_is_drained_in_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times what a ring holds, and not a step is lost."""
    monkeypatch.setattr("traceml.trace.ring.SIZES", ((1024, 64),))
    session = _train(folder, 1)
    following = _Following(folder)
    wait_until(lambda: list(folder.glob("rank-*.steps")), "the agent has found the ring")
    for _ in range(20):
        write_steps(session, 256)
        wait_until(
            lambda: session.recorder.ends - _read(following) < 128,
            "the agent keeps up",
        )
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    assert _steps(folder) == 1 + 20 * 256
    following.hang_up()


def _read(following: _Following) -> int:
    return sum(followed.ring.written() for followed in following.agent._rings.followed())


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("traceml.agent.sampler.Sampler.sample", id="a sensor"),
        pytest.param("traceml.agent.sampler.Sampling.begin", id="the beginning of a sample"),
        pytest.param("traceml.store.recent_steps.RecentSteps.follow", id="the live findings"),
    ],
)
def test_what_fails_is_written_down_and_the_rest_goes_on(
    place: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(place, fail)
    _train(folder, 7)
    following = _Following(folder)
    wait_until(lambda: list(folder.glob("rank-*.steps")), "the agent drains")
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    assert _steps(folder) == 7
    assert "RuntimeError: out of order" in capsys.readouterr().err
    following.hang_up()


def test_a_rank_that_no_longer_records_steps_is_not_taken_for_standing_still(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[int] = []
    monkeypatch.setattr(
        "traceml.agent.failures.FailureWatch.look_for_stalls",
        lambda self, ranks, now_s, unix_s: watched.append(len(ranks)),
    )
    monkeypatch.setattr(loop, "SECOND_S", 0.05)
    session = _train(folder, 7)
    following = _Following(folder)
    wait_until(lambda: 1 in watched, "the rank is watched")
    session.take_hooks_out()
    wait_until(lambda: watched[-1] == 0, "it is watched no longer")
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    following.hang_up()


def test_what_cannot_be_drained_stays_in_its_ring(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    session = _train(folder, 7)
    monkeypatch.setattr("traceml.store.record_file.RankFiles.drain", full)
    following = _Following(folder)
    following.tell({"ended": {"exit_status": 0}})
    assert not following.finish()
    assert session.ring is not None
    assert session.ring.path.exists()
    following.hang_up()
    summary = json.loads((folder / "final_summary.json").read_bytes())
    assert summary["primary_diagnosis"]["kind"] == "NO_DATA"
    said = summary["primary_diagnosis"]["summary"]
    assert said.startswith("The disk was full: only 0 of the 7 steps of rank 0 are on disk")
    assert "traceml recover" in summary["primary_diagnosis"]["action"]


def test_what_a_joined_node_could_not_bring_to_disk_is_in_the_heads_summary(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = new_run("train.py", ["train.py"], RunOptions(logs_dir=tmp_path / "head"))
    folders.write_mark(head, HEAD_WANTED_MARK, json.dumps({"master": "127.0.0.1"}))
    duties = NodeDuties(head, print)
    duties.look()
    address = json.loads(folders.read_mark(head, HEAD_MARK) or "")
    folders.write_mark(folder, JOIN_MARK, json.dumps({**address, "folder": ""}))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    _train(folder, 7)
    with monkeypatch.context() as full_disk:
        full_disk.setattr("traceml.store.record_file.RankFiles.drain", full)
        following = _Following(folder)
        following.tell({"ended": {"exit_status": 0}})
        assert not following.finish()
        following.hang_up()
    duties.close()
    folders.write_ending(head, Ending(time.time(), 0))
    summarise(head)
    summary = (head / folders.SUMMARY).read_text()
    folders.remove_rings(folders.read_manifest(head))
    assert "The disk was full: only 0 of the 7 steps of rank 0 are on disk" in summary
    assert "was cut off before its end" in summary
    assert "has not got all records" in str(closing_words(folder))


def test_requests_are_answered_together(folder: Path) -> None:
    _train(folder, 7)
    following = _Following(folder)
    for number in range(3):
        (folder / f"summary-request-{number}").touch()
    wait_until(lambda: not list(folder.glob("summary-request-*")), "the requests are answered")
    assert json.loads((folder / "summary-answer.json").read_bytes())["traceml/steps"] == 7
    following.tell({"ended": {"exit_status": 0}})
    assert following.finish()
    assert not (folder / "summary-answer.json").exists()
    following.hang_up()


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])


def test_left_alone_it_ends_the_training_and_then_itself(folder: Path) -> None:
    with _sleeper() as training:
        following = _Following(folder)
        following.tell({"training_pid": training.pid})
        following.hang_up()
        assert following.finish()
        assert training.wait(PATIENCE_S) == -15
    ending = folders.read_ending(folder)
    assert ending is not None
    assert ending.exit_status is None


def test_owned_by_the_trainer_it_waits_for_its_end_and_sends_it_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SECOND_S", 0.05)
    with _sleeper() as training:
        following = _Following(folder, owner=training.pid)
        following.hang_up()  # the script closed its descriptors; it still trains
        following._thread.join(0.5)
        assert following._thread.is_alive()
        assert training.poll() is None
        training.kill()
        assert following.finish()


def test_an_owner_that_is_gone_ends_the_run_though_its_pipe_is_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SECOND_S", 0.05)
    with _sleeper() as training:
        following = _Following(folder, owner=training.pid)
        training.kill()
        assert following.finish()
    following.hang_up()
