"""No steps for long: stacks are taken three times, who stands elsewhere shows, pauses end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from traceml.agent import stalls
from traceml.agent.stalls import StallWatch, Training
from traceml.model.failure import Doing, Stall, StuckCollective
from traceml.store.ring_events import NO_PROGRESS, StepProgress

TORCH = "/env/lib/python3.11/site-packages/torch"
REDUCING = [(f"{TORCH}/distributed/distributed_c10d.py", 3052, "all_reduce"), ("/job/a.py", 9, "f")]
ASLEEP = [("/job/a.py", 30, "load"), ("/job/a.py", 12, "main")]
EVALUATING = [("/job/a.py", 40, "evaluate")]


def dump(frames: Sequence[tuple[str, int, str]]) -> str:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join(["Current thread 0x0000000000000abc (most recent call first):", *lines, ""])


@dataclass
class Job:
    """Ranks whose steps, stacks and clock a test moves by hand."""

    folder: Path
    steps: list[int]
    frames: list[list[tuple[str, int, str]]]
    walls_s: list[float] = field(default_factory=lambda: [0.1] * 50)
    gpu_share: float | None = None
    """Of every rank; not known on the CPU."""
    progress: StepProgress = NO_PROGRESS
    asked: int = 0
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        for rank in range(len(self.steps)):
            self.file(rank).write_text("training thread 0x0000000000000abc\n")
        self.watch = StallWatch(lambda rank, pid, content: f"stacks/{rank}", ask=self.answer)

    def file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.stacks"

    def answer(self, pid: int) -> bool:
        self.asked += 1
        with self.file(pid).open("a") as file:
            file.write(dump(self.frames[pid]))
        return True

    def pass_s(self, seconds: int) -> int:
        """Look once a second; how often there was news."""
        news = 0
        for _ in range(seconds):
            self.now_s += 1
            ranks = [
                Training(
                    rank,
                    rank,
                    steps,
                    self.file(rank),
                    lambda: self.walls_s,
                    on_gpu=self.gpu_share is not None,
                    gpu_share=self.gpu_share,
                    progress=self.progress,
                )
                for rank, steps in enumerate(self.steps)
            ]
            news += self.watch.update(ranks, self.now_s, 1e9 + self.now_s)
        return news

    @property
    def stall(self) -> Stall:
        (found,) = self.watch.stalls
        return found


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(stalls, "_cpu_s", lambda pid: 1.0)
    return Job(tmp_path, steps=[10, 10], frames=[REDUCING, ASLEEP])


def test_a_job_that_goes_on_is_asked_nothing(job: Job) -> None:
    for _ in range(100):
        job.steps = [count + 1 for count in job.steps]
        job.pass_s(5)
    assert (job.asked, job.watch.stalls) == (0, [])


def test_the_rank_that_stands_elsewhere_shows(job: Job) -> None:
    assert job.pass_s(20) == 0
    assert job.asked == 0
    assert job.pass_s(15) == 1
    assert job.asked == 6
    waiting, missing = job.stall.ranks
    assert (waiting.doing, waiting.call, waiting.waits_for_others) == (
        Doing.COLLECTIVE,
        "all_reduce",
        True,
    )
    assert (missing.doing, missing.where, missing.moved) == (
        Doing.CODE,
        "/job/a.py:30 in load",
        False,
    )
    assert job.stall.stacks == ("stacks/0", "stacks/1")
    assert job.stall.since_unix_s == 1e9 + 1001
    assert job.stall.usual_s == 0.1


@pytest.mark.parametrize(
    ("walls_s", "first_s"),
    [
        pytest.param([0.1] * 50, 21, id="short steps: the floor"),
        pytest.param([2.0] * 50, 61, id="long steps: many of them"),
        pytest.param([0.1] * 49 + [50.0], 101, id="twice the longest pause so far"),
        pytest.param([300.0] + [0.1] * 49, 21, id="the first step does not count"),
    ],
)
def test_how_long_is_long_follows_from_the_run(
    job: Job, walls_s: list[float], first_s: int
) -> None:
    job.walls_s = walls_s
    job.pass_s(first_s - 1)
    assert job.asked == 0
    job.pass_s(1)
    assert job.asked == 2


@pytest.mark.parametrize(
    ("later", "after_s"),
    [
        pytest.param([("/job/a.py", 44, "evaluate")], 23, id="another line"),
        pytest.param([("/job/a.py", 44, "evaluate")], 28, id="only by the third look"),
        pytest.param(
            [*EVALUATING, ("/job/a.py", 70, "main")], 23, id="the same line, called from another"
        ),
    ],
)
def test_a_rank_whose_stack_has_changed_by_the_last_look_is_busy(
    job: Job, later: list[tuple[str, int, str]], after_s: int
) -> None:
    job.frames[1] = [*EVALUATING, ("/job/a.py", 60, "main")]
    job.pass_s(after_s)
    job.frames[1] = later
    job.pass_s(35 - after_s)
    assert job.stall.ranks[1].moved


@pytest.mark.parametrize(
    ("first", "gpu_share", "moved"),
    [
        pytest.param(EVALUATING, 0.95, [True, True], id="an evaluation that waits for its GPU"),
        pytest.param(EVALUATING, 0.05, [False, False], id="an idle GPU"),
        pytest.param(REDUCING, 1.0, [False, False], id="a collective keeps a GPU busy too"),
    ],
)
def test_a_rank_whose_gpu_works_is_busy_unless_somebody_waits_for_others(
    job: Job, first: list[tuple[str, int, str]], gpu_share: float, moved: list[bool]
) -> None:
    job.frames, job.gpu_share = [first, ASLEEP], gpu_share
    job.pass_s(35)
    assert [each.moved for each in job.stall.ranks] == moved


def test_a_gpu_that_rested_at_one_look_clears_nobody(job: Job) -> None:
    job.frames, job.gpu_share = [EVALUATING, ASLEEP], 0.9
    job.pass_s(23)
    job.gpu_share = 0.0
    job.pass_s(12)
    assert [each.moved for each in job.stall.ranks] == [False, False]


def test_a_rank_that_computes_at_one_line_is_busy(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "_cpu_s", lambda pid: job.now_s if pid == 1 else 1.0)
    job.pass_s(35)
    assert [each.moved for each in job.stall.ranks] == [False, True]


def test_when_steps_come_again_it_was_a_pause(job: Job) -> None:
    job.pass_s(35)
    job.steps = [11, 11]
    assert job.pass_s(1) == 1
    assert job.stall.resumed_unix_s == 1e9 + 1036
    job.pass_s(19)
    assert len(job.watch.stalls) == 1


def test_a_rank_that_stands_still_alone_does_not_have_the_others_asked_again_and_again(
    job: Job,
) -> None:
    """Ranks that do not wait for each other, one of which has trained and goes on to other work."""
    for _ in range(600):
        job.steps[0] += 1
        job.pass_s(1)
    assert job.watch.stalls == []
    assert job.asked <= 2 * 6  # two ranks, each time that the pause has doubled
    assert job.pass_s(20) == 0  # now the other one stands still, too
    assert job.pass_s(15) == 1
    assert {each.rank for each in job.stall.ranks} == {0, 1}


def test_a_hang_is_looked_at_again_when_it_has_doubled(job: Job) -> None:
    job.frames[1] = EVALUATING
    job.pass_s(35)
    job.frames[1] = ASLEEP
    job.pass_s(25)
    assert job.asked == 12
    assert job.stall.ranks[1].where == "/job/a.py:30 in load"
    assert job.stall.since_unix_s == 1e9 + 1001
    job.pass_s(3600)
    assert job.asked < 60


def test_ranks_that_have_gone_leave_their_hang_and_the_next_start_is_watched_anew(
    job: Job,
) -> None:
    job.pass_s(35)
    job.steps = []
    job.pass_s(5)
    job.steps = [3, 3]
    job.pass_s(1)
    assert job.stall.resumed_unix_s is None
    job.pass_s(40)
    assert [each.steps for stall in job.watch.stalls for each in stall.ranks] == [10, 10, 3, 3]


def test_a_rank_that_took_no_step_yet_is_not_watched(job: Job) -> None:
    job.steps = [0, 0]
    job.pass_s(300)
    assert job.asked == 0


def test_a_rank_whose_stacks_cannot_be_had_is_unknown(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job.watch, "_ask", lambda pid: False)
    job.pass_s(35)
    assert {each.doing for each in job.stall.ranks} == {Doing.UNKNOWN}


def test_what_an_agent_before_us_saw_is_kept(tmp_path: Path) -> None:
    earlier = Stall(since_unix_s=1.0, seen_unix_s=2.0, usual_s=0.1)
    watch = StallWatch(lambda *_: "", seen=[earlier])
    training = Training(0, 0, 5, tmp_path / "none", lambda: [0.1])
    assert not watch.update([training], 0.0, 0.0)
    assert not watch.update([replace(training, steps=6)], 1.0, 1.0)
    assert watch.stalls == [earlier]


class Recorded:
    """A flight recorder that knows of these collectives, and who was asked."""

    def __init__(self, *stuck: StuckCollective) -> None:
        self.found = stuck
        self.asked: list[dict[int, int]] = []

    def ask(self, ranks: dict[int, int]) -> None:
        self.asked.append(dict(ranks))

    def stuck(self) -> tuple[StuckCollective, ...]:
        return self.found


def in_all_reduce(since_s: float) -> StuckCollective:
    return StuckCollective("default_pg", 7, "all_reduce", 1e9 + since_s, (0,), (1,))


def with_recorder(job: Job, *stuck: StuckCollective) -> Recorded:
    recorder = Recorded(*stuck)
    job.watch = StallWatch(lambda *_: "stacks", ask=job.answer, recorder=recorder)  # type: ignore[arg-type]
    return recorder


def test_a_gpu_that_waits_in_a_collective_is_not_busy(job: Job) -> None:
    """Both hosts stand in a plain line, and NCCL keeps both GPUs at work."""
    job.frames, job.gpu_share = [EVALUATING, ASLEEP], 1.0
    recorder = with_recorder(job, in_all_reduce(since_s=1000))
    job.pass_s(40)
    assert recorder.asked == [{0: 0, 1: 1}]
    waits, missing = job.stall.ranks
    assert (waits.doing, waits.call, waits.moved) == (Doing.COLLECTIVE, "all_reduce", False)
    assert missing.doing is Doing.CODE
    assert job.stall.collectives[0].missing == (1,)


def test_a_collective_that_was_just_begun_is_under_way(job: Job) -> None:
    with_recorder(job, in_all_reduce(since_s=1030))
    job.pass_s(40)
    assert job.stall.collectives == ()


def test_what_is_written_at_a_timeout_is_added_to_the_stall(job: Job) -> None:
    recorder = with_recorder(job)
    job.pass_s(40)
    assert not job.watch.read_recorder()
    recorder.found = (in_all_reduce(since_s=1000),)
    assert job.watch.read_recorder()
    assert job.stall.collectives == recorder.found
    assert not job.watch.read_recorder()


def test_how_far_a_rank_is_in_its_step_is_kept(job: Job) -> None:
    job.progress = StepProgress("forward", 3)
    job.pass_s(40)
    assert [(each.phase, each.collectives) for each in job.stall.ranks] == [("forward", 3)] * 2


def test_looking_again_keeps_when_the_stall_was_first_seen(job: Job) -> None:
    job.pass_s(40)
    first_s = job.stall.seen_unix_s
    job.pass_s(60)
    assert job.stall.seen_unix_s > first_s
    assert job.stall.noticed_unix_s == first_s
