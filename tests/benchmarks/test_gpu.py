"""What `make gpu` is made of: turns at the GPU, the time limit, and a table that is never lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from benchmarks.faults.catalog import chosen as chosen_faults
from benchmarks.faults.judge import Judgement
from benchmarks.gpu import (
    ELSEWHERE,
    IN_TURN,
    OUT_OF_TIME,
    PARTS,
    Clock,
    Plan,
    Work,
    fault_line,
    run_beside_each_other,
    run_test_file,
    taking_turns,
)
from benchmarks.gpu_table import Line, Table
from benchmarks.jobs.catalog import JOBS, SCRIPTS, Job
from benchmarks.jobs.run import run_traced
from benchmarks.jobs.scripts import gpu_turn

from benchmarks import commands
from processes import PATIENCE_S, wait_until
from traceml.store.load import load_run

TURN_TAKER = """\
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
from gpu_turn import wait_for_turn
open(f"waits-{os.getpid()}", "w").close()
wait_for_turn()
wait_for_turn()
began = time.monotonic()
if not os.fork():  # a worker that is still there when its program is not
    os.setsid()
    time.sleep(60)
    os._exit(0)
while len([name for name in os.listdir() if name.startswith("waits-")]) < 3:
    time.sleep(0.01)  # whoever is first gives the others time to come, and to wait
time.sleep(1)
print(json.dumps([began, time.monotonic()]))
"""

# Turns


@pytest.fixture
def turn_file(tmp_path, monkeypatch):
    path = tmp_path / "turn"
    monkeypatch.setenv(gpu_turn.TURN_FILE, str(path))
    return path


@pytest.fixture
def taker(tmp_path):
    """Starts a program that takes a turn; its children are ended when the test is over."""
    script = tmp_path / "taker.py"
    script.write_text(TURN_TAKER)
    yield [sys.executable, str(script), str(SCRIPTS)]
    for process in psutil.process_iter(["cmdline"]):
        if str(script) in (process.info["cmdline"] or ()):
            process.kill()


def test_one_program_at_a_time_has_its_turn_and_its_children_hold_up_nobody(
    taker, turn_file, tmp_path
) -> None:
    outputs = [tmp_path / f"output{number}" for number in range(3)]
    for number, output in enumerate(outputs):
        with output.open("wb") as stream:
            outputs[number] = (output, subprocess.Popen(taker, stdout=stream, cwd=tmp_path))
    texts = []
    for output, process in outputs:
        assert process.wait(PATIENCE_S) == 0
        texts.append(output.read_text())
    turns = sorted(json.loads(text.splitlines()[-1]) for text in texts)
    for (_, ended), (began, _) in pairwise(turns):
        assert began >= ended
    assert all(text.count("waited") == 1 for text in texts)
    assert sorted(gpu_turn.waited_s(text) > 0.1 for text in texts) == [False, True, True]


def test_nobody_waits_where_no_turns_are_taken(monkeypatch, capsys) -> None:
    monkeypatch.delenv(gpu_turn.TURN_FILE, raising=False)
    gpu_turn.wait_for_turn()
    with gpu_turn.turn():
        pass
    assert capsys.readouterr().out == ""
    assert gpu_turn.waited_s("steps 3\n") == 0


def test_every_job_and_every_fault_waits_for_its_turn() -> None:
    scripts = {SCRIPTS / f"{job.script}.py" for job in JOBS}
    scripts.add(SCRIPTS.parents[1] / "faults" / "training" / "train.py")
    for script in scripts:
        assert script.read_text().count("wait_for_turn()\n") == 1, script


def test_the_wait_is_part_of_no_step(turn_file, tmp_path) -> None:
    job = Job("held up", "resnet_few_workers", ("--tiny",), ())

    def holds_it_open(process: psutil.Process) -> bool:
        try:  # not a copy of this process that is about to become the job
            is_job = any(job.script in word for word in process.cmdline())
            return is_job and any(Path(each.path) == turn_file for each in process.open_files())
        except psutil.Error:
            return False

    def is_waiting() -> bool:
        return any(map(holds_it_open, psutil.Process().children(recursive=True)))

    with ThreadPoolExecutor(1) as pool:
        with gpu_turn.turn():
            running = pool.submit(run_traced, job, tmp_path)
            wait_until(is_waiting, "the job waits for its turn")
            held_s = 4.0
            time.sleep(held_s)  # what a step would last if the wait were part of it
        run = running.result()
    assert run.status == 0, run.output
    assert run.waited_s >= held_s
    (rank,) = load_run(tmp_path / "run").ranks
    assert rank.steps["wall_ns"].max() < held_s * 1e9


# The table


def test_the_table_says_which_prediction_was_not_made_and_why() -> None:
    lines = [
        Line("jobs", "slow input", "INPUT_BOUND", 20.0, 0.04),
        Line("jobs", "small kernels", "HOST_BOUND", 50.0, not_predicted="gaps look like work"),
        Line("jobs", "healthy", "COMPUTE_BOUND", 30.0),
    ]
    text = Table("a machine", lines).text()
    cells = [line.split("|")[5].strip() for line in text.splitlines() if line.startswith("| jobs")]
    assert cells == ["4.0%", "none made", "–"]
    assert "4.0% worst of 1" in text
    assert "No step time was predicted for small kernels: gaps look like work." in text


# Time


def planned(*names: str) -> list[Line]:
    return [Line("tests", name, complaint="not finished") for name in names]


def test_what_has_not_begun_in_time_is_not_run_and_the_table_says_so(tmp_path, capsys) -> None:
    file = tmp_path / "new" / "table.md"
    table = Table("a machine", planned("first", "second", "third"), file)
    clock = Clock(60.0)
    written = []

    def first(left_s: float) -> Line:
        assert 0 < left_s <= 60
        return Line("tests", "first", "1 passed")

    def second(left_s: float) -> Line:
        written.append(file.read_text())
        clock._end_s = time.monotonic()
        return Line("tests", "second", "1 failed", complaint="exit status None")

    works = [Work("tests", "first", first), Work("tests", "second", second)]
    works.append(Work("tests", "third", lambda left_s: pytest.fail("it is too late")))
    run_beside_each_other(works, 1, table, clock)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in written[0].splitlines()[4:7]]
    assert [(row[1], row[-1]) for row in rows] == [
        ("first", "yes"),
        ("second", "not finished"),
        ("third", "not finished"),
    ]
    assert [line.complaint for line in table.lines] == [
        "",
        "ended: out of time; exit status None",
        OUT_OF_TIME,
    ]
    assert file.read_text() == table.text() + "\n"
    assert "1 of 3 lines right" in table.text()
    assert table.lines[0].seconds is not None and table.lines[2].seconds is None
    assert "third" in capsys.readouterr().out


def test_works_run_beside_each_other(tmp_path) -> None:
    """Each waits for the other, so that they could not end one after the other."""
    places = [tmp_path / "a", tmp_path / "b"]

    def meet(own: Path, other: Path) -> Line:
        own.touch()
        wait_until(other.exists, "the other is there")
        return Line("tests", own.name)

    works = [
        Work("tests", "a", lambda left_s: meet(*places)),
        Work("tests", "b", lambda left_s: meet(*reversed(places))),
    ]
    table = Table("a machine", planned("a", "b"))
    run_beside_each_other(works, 2, table, Clock(60.0))
    assert [line.complaint for line in table.lines] == ["", ""]


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    python = [sys.executable, "-S"]  # which starts in a moment, so that the time is up long after
    ended = commands.run_to_end([*python, "-c", code], timeout_s=3.0)
    assert ended.status is None
    child = int(ended.output)
    wait_until(lambda: not psutil.pid_exists(child) or _is_zombie(child), "the child has ended")


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# Plan


def test_everything_has_one_line(tmp_path) -> None:
    plan = Plan(PARTS, [], tmp_path)
    names = [work.what for work in plan.works]
    files = {path.name for path in (SCRIPTS.parents[2] / "tests" / "gpu").glob("test_*.py")}
    assert {*IN_TURN, *ELSEWHERE} <= files
    expected = files - {*ELSEWHERE}
    expected |= {each.name for each in chosen_faults([], gpu=True)}
    expected |= {job.name for job in JOBS}
    assert set(names) == expected
    assert len(names) == len(expected)


@pytest.mark.parametrize(
    ("parts", "words", "expected"),
    [
        (PARTS, ["FP16"], ["fp16, GradScaler"]),
        (PARTS, ["test_forks", "host_sync"], ["test_forks.py", "gpu_host_sync"]),
        (["faults"], ["counters"], []),
    ],
)
def test_lines_can_be_chosen_by_a_word(parts, words, expected, tmp_path) -> None:
    assert [work.what for work in Plan(parts, words, tmp_path).works] == expected


def test_turns_are_taken_only_while_it_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(gpu_turn.TURN_FILE, raising=False)
    with taking_turns(tmp_path / "runs"):
        place = Path(commands.environment()[gpu_turn.TURN_FILE])
        assert place.parent.is_dir()
    assert gpu_turn.TURN_FILE not in commands.environment()


# Lines


@pytest.mark.parametrize(
    ("body", "said", "complaint"),
    [
        ("assert True", "1 passed", ""),
        ("assert False", "1 failed", "exit status 1"),
        ("__import__('pytest').skip('no reason')", "1 skipped", "nothing passed"),
    ],
)
def test_a_file_of_tests_is_right_when_something_passes_and_nothing_fails(
    body, said, complaint, tmp_path
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(f"def test_it():\n    {body}\n")
    line = run_test_file(file, 60.0)
    assert (line.said, line.complaint) == (said, complaint)
    assert ("test_it.py" in line.details) == bool(complaint)


def test_a_fault_in_the_wrong_place_is_not_right() -> None:
    scenario = next(each for each in chosen_faults([], gpu=True) if each.truth.phase == "h2d")
    right = fault_line(Judgement(scenario, "H2D_BOUND", right=True, place_right=True))
    wrong = fault_line(Judgement(scenario, "H2D_BOUND", right=True, place_right=False))
    other = fault_line(Judgement(scenario, "BALANCED", problem="exit status 1"))
    assert right.complaint == ""
    assert wrong.complaint == "another phase, module or step"
    assert other.complaint == "exit status 1; said BALANCED, not H2D_BOUND"


def test_a_line_tells_its_seconds_and_how_many_of_them_it_waited() -> None:
    line = Line("jobs", "a", "BALANCED", 12.34, 0.031, seconds=21.2, waited_s=6.4)
    assert line.cells() == [
        "jobs",
        "a",
        "BALANCED",
        "12.3 ms",
        "3.1%",
        "21 (6 of them waiting)",
        "yes",
    ]
