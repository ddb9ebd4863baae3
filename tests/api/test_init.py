"""`traceml.init()`: a run under plain python or in a notebook, closed however the process ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from factories import make_run
from processes import (
    PYTHON,
    STEPS,
    TORCH_STEPS,
    TRACEML,
    Finished,
    fill,
    kill,
    run,
    small_disk,
    started,
    wait_until,
)
from run_folders import write_run
from traceml.agent.node_duties import NodeDuties
from traceml.model.environment import (
    DEEP,
    ESSENTIAL,
    HEAD,
    MARKS,
    PROFILE,
    RUN_FOLDER,
    SUMMARY_MARK,
)
from traceml.model.errors import UsageError
from traceml.model.node import HEAD_MARK, HEAD_WANTED_MARK, JOIN_MARK
from traceml.store import folder as folders
from traceml.trace import init

INIT = STEPS + "import os, sys, time, traceml\ntraceml.init()\n"
WAITS = "open('ready', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


def _run(cwd: Path, script: str, *arguments: str) -> Finished:
    (cwd / "train.py").write_text(script)
    return run([PYTHON, "train.py", *arguments], cwd)


def test_a_script_that_trains_has_a_run(tmp_path: Path) -> None:
    script = "import traceml\ntraceml.init(run_name='a')\n" + TORCH_STEPS + "take_steps(6)\n"
    done = _run(tmp_path, script)
    assert (done.status, done.stdout, done.stderr) == (0, "", "")
    assert done.folder.name == "a"
    assert done.steps == 6
    done.assert_nothing_is_left()


def test_torch_may_be_there_before_and_init_may_come_twice(tmp_path: Path) -> None:
    script = TORCH_STEPS + (
        "import traceml\ntake_steps(3)\ntraceml.init(trace_max_steps=4)\ntake_steps(3)\n"
        "traceml.init(run_name='another')\ntake_steps(3)\n"
    )
    done = _run(tmp_path, script)
    assert (done.status, done.stderr) == (0, "")
    assert done.steps == 4
    assert done.folder.name.startswith("train-")
    done.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param("take_steps(5)", 0, id="falls off its end"),
        pytest.param("take_steps(5); sys.exit(7)", 7, id="sys.exit"),
        pytest.param("take_steps(5); 1 / 0", 1, id="uncaught exception"),
        pytest.param("take_steps(5); os._exit(9)", 9, id="os._exit"),
        pytest.param("take_steps(5); os.kill(os.getpid(), 9)", -9, id="killed"),
        pytest.param("os.closerange(3, 256); take_steps(5)", 0, id="closes descriptors"),
        pytest.param("os.chdir('/'); take_steps(5)", 0, id="changes directory"),
        pytest.param(
            "if not os.fork(): sys.exit()\nos.wait(); take_steps(5)", 0, id="a child exits first"
        ),
    ],
)
def test_the_run_is_closed_however_the_process_ends(tmp_path: Path, body: str, status: int) -> None:
    (tmp_path / "train.py").write_text(INIT + body)
    with started([PYTHON, "train.py"], tmp_path) as running:
        done = running.finish()
        done.wait_until_none_is_left()
    assert done.status == status
    said = (
        ["traceml: rank 0 failed at step 6: ZeroDivisionError: division by zero"]
        if "1 / 0" in body
        else []
    )
    assert done.lines_of_ours()[:1] == said
    assert done.steps == 5
    done.assert_nothing_is_left()


def test_a_worker_that_outlives_its_parent_does_not_keep_the_run_open(tmp_path: Path) -> None:
    """A forked worker has our pipe open still; the agent looks for the trainer itself."""
    body = (
        "if not os.fork():\n    time.sleep(300)\n"
        "take_steps(5)\nopen('ready', 'w').close()\ntime.sleep(300)\n"
    )
    (tmp_path / "train.py").write_text(INIT + body)
    with started([PYTHON, "train.py"], tmp_path) as running:
        running.wait_for("ready")
        running.send(signal.SIGKILL)
        done = running.finish()
        wait_until((done.folder / "final_summary.json").exists, "the agent closes the run")
    assert done.steps == 5


def test_descriptors_that_changed_hands_are_not_written_to(tmp_path: Path) -> None:
    body = (
        "take_steps(5)\nos.closerange(3, 256)\n"
        "files = [open(f'mine-{n}', 'w') for n in range(20)]\n"
    )
    done = _run(tmp_path, INIT + body)
    assert (done.status, done.stderr) == (0, "")
    done.wait_until_none_is_left()
    assert done.steps == 5
    assert [path.read_text() for path in tmp_path.glob("mine-*")] == [""] * 20


@pytest.mark.parametrize(
    ("command", "name"),
    [
        pytest.param(["-c"], "python-", id="python -c"),
        pytest.param(["-"], "python-", id="from stdin"),
        pytest.param(["-m", "train", "--epochs", "3"], "train-", id="python -m"),
        pytest.param(["train.py", "--epochs", "3"], "train-", id="a script with arguments"),
    ],
)
def test_a_run_is_named_after_what_runs(tmp_path: Path, command: list[str], name: str) -> None:
    (tmp_path / "train.py").write_text("import traceml; traceml.init()")
    words = [*command, "import traceml; traceml.init()"] if command == ["-c"] else command
    done = run([PYTHON, *words], tmp_path, stdin=b"import traceml; traceml.init()")
    assert (done.status, done.stderr) == (0, "")
    assert done.folder.name.startswith(name)
    assert done.why == "No training step was seen before the process ended."
    done.assert_nothing_is_left()


def test_a_notebook_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "ipykernel.py").touch()
    script = "import ipykernel, sys, traceml; sys.argv = ['x.py', '-f', 'k.json']; traceml.init()"
    done = run([PYTHON, "-c", script], tmp_path)
    assert done.folder.name.startswith("notebook-")


def test_modules_beside_the_script_do_not_stand_in_for_the_agents(tmp_path: Path) -> None:
    for name in ("psutil", "msgspec", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the user')")
    done = _run(tmp_path, INIT + "take_steps(5)")
    assert (done.status, done.stderr) == (0, "")
    assert done.steps == 5


def test_under_traceml_run_it_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INIT + "traceml.init(run_name='../x')\ntake_steps(5)")
    done = run([TRACEML, "run", "--run-name", "outer", "train.py"], tmp_path)
    assert done.status == 0, done.stderr
    assert (done.folder.name, done.steps) == ("outer", 5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("../x", "cannot be a run name", id="leaves the folder"),
        pytest.param("", "cannot be a run name", id="empty"),
        pytest.param("taken", "exists already", id="taken"),
    ],
)
def test_a_bad_name_is_an_error_that_says_so(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "logs" / "taken").mkdir(parents=True)
    script = (
        "import traceml\nfrom traceml.model.errors import UsageError\n"
        f"try:\n    traceml.init(run_name={name!r})\n"
        "except UsageError as error:\n    print(error)\n"
        "traceml.log_params({'lr': 0.1})\nprint(traceml.summary())\n"
    )
    done = _run(tmp_path, script)
    said, summary = done.stdout.splitlines()
    assert words in said
    assert "run_name" in said and "--" not in said  # there is no command line here
    assert ("overwrite=True" in said) == (name == "taken")
    assert summary == "{}"
    assert done.stderr == ""
    assert done.left() == []


def test_a_workers_callback_is_never_refused_because_of_a_name(tmp_path: Path) -> None:
    """Ray starts its workers again, with the name that they had before."""
    script = (
        "import sys\nfrom traceml.trace.init import init_in_callback\n"
        "init_in_callback(sys.argv[1], 'logs')\n" + TORCH_STEPS + "take_steps(3)\n"
    )
    first = _run(tmp_path, script, "a")
    assert first.folder.name == "a"
    first.folder.rename(tmp_path / "first")
    for taken in ("a", "a-restart-1"):
        (tmp_path / "logs" / taken).mkdir()
    again = run([PYTHON, "train.py", "a"], tmp_path)
    for taken in ("a", "a-restart-1"):
        (tmp_path / "logs" / taken).rmdir()
    assert (again.status, again.folder.name) == (0, "a-restart-2")
    assert again.stderr == (
        "traceml: the run is called a-restart-2: there is one named a, or none can be\n"
    )
    again.folder.rename(tmp_path / "second")
    bad = run([PYTHON, "train.py", "a/b"], tmp_path)
    assert bad.status == 0
    assert bad.folder.name.startswith("train-")


@pytest.mark.parametrize(
    ("before", "argument", "is_deep"),
    [
        ("", "profile='deep'", True),
        (f"import os\nos.environ['{PROFILE}'] = 'deep'\n", "", True),
        ("", "profile='essential'", False),
    ],
    ids=["argument", "variable", "essential"],
)
def test_the_profile_is_chosen_by_name(
    tmp_path: Path, before: str, argument: str, is_deep: bool
) -> None:
    script = f"{before}import traceml\ntraceml.init({argument})\n" + TORCH_STEPS
    done = _run(tmp_path, script + "take_steps(20)\n")
    assert (done.status, done.stderr) == (0, "")
    assert (done.summary["layers"] is not None) == is_deep
    assert folders.read_manifest(done.folder).profile == (DEEP if is_deep else ESSENTIAL)


@pytest.mark.parametrize("profile", ["Deep", "", None, 1])
def test_a_profile_that_there_is_not_is_refused(profile: object) -> None:
    with pytest.raises(UsageError, match="expected 'essential' or 'deep'"):
        init.init(profile=profile)  # type: ignore[arg-type]


def test_the_runs_token_is_on_no_command_line(tmp_path: Path) -> None:
    """Of a worker of Ray's on a further machine: everybody on it can read command lines."""
    head = {"run_id": "r", "host": "127.0.0.1", "port": 9, "token": "S3CRET"}
    environment = {RUN_FOLDER: str(tmp_path / "logs" / "begun"), HEAD: json.dumps(head)}
    script = (
        "import os, psutil, sys\nfrom pathlib import Path\n"
        f"os.environ.update({environment!r})\n"
        "from traceml.trace.init import join_run_of_other_machine\n"
        "join_run_of_other_machine()\n"
        "folder = Path(os.environ['TRACEML_RUN_FOLDER'])\n"
        "mark = folder / 'marks' / 'agent'\n"
        "while not mark.exists(): pass\n"
        "print(psutil.Process(int(mark.read_text().split()[0])).cmdline())\n"
        "print((folder / 'run.json').read_text())\n"
        "print((folder / 'marks' / 'join.json').read_text())\n"
    )
    (tmp_path / "train.py").write_text(script)
    done = run([PYTHON, "train.py"], tmp_path)
    assert done.status == 0, done.stderr
    assert done.stdout.count("S3CRET") == 1  # in the mark alone, which is its owner's
    assert "--new" in done.stdout


def test_overwrite_replaces_the_run_of_before(tmp_path: Path) -> None:
    script = STEPS + "import traceml\ntraceml.init('a', overwrite=True)\ntake_steps(2)\n"
    for _ in range(2):
        done = _run(tmp_path, script)
        assert (done.status, done.stderr) == (0, "")
    assert (done.folder.name, done.steps) == ("a", 2)


def test_logs_that_cannot_be_written_leave_the_script_alone(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    done = _run(tmp_path, INIT + "take_steps(5); print('trained'); sys.exit(7)")
    assert (done.status, done.stdout) == (7, "trained\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("traceml: the run cannot be recorded: [Errno 20] Not a directory")
    assert done.left() == []


def test_a_full_disk_leaves_the_script_alone(tmp_path: Path) -> None:
    with small_disk(tmp_path / "logs", 64) as logs:
        fill(logs)
        done = _run(tmp_path, INIT + "take_steps(5); print('trained'); sys.exit(7)")
        assert (done.status, done.stdout) == (7, "trained\n")
        (line,) = done.stderr.splitlines()
        assert "No space left on device" in line


def test_a_killed_agent_has_a_successor_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INIT + "take_steps(5)\n" + WAITS + "take_steps(5)\n")
    with started([PYTHON, "train.py"], tmp_path) as running:
        running.wait_for("ready")
        kill(running.agent())
        (tmp_path / "go").touch()
        done = running.finish()
    assert (done.status, done.lines_of_ours()) == (0, [])
    assert done.steps == 10
    done.assert_nothing_is_left()


def test_the_successor_of_a_nodes_agent_says_where_the_run_is(tmp_path: Path) -> None:
    """The folder has moved into the head's, and its old path was a link meanwhile."""
    head = write_run(tmp_path / "head", make_run(ranks=2), is_over=False)
    folders.write_mark(head, HEAD_WANTED_MARK, json.dumps({"master": "127.0.0.1"}))
    duties = NodeDuties(head, print)
    duties.look()
    address = folders.read_mark(head, HEAD_MARK)
    assert address is not None
    (tmp_path / "train.py").write_text(INIT + "take_steps(5)\n" + WAITS + "take_steps(5)\n")
    with started([PYTHON, "train.py"], tmp_path) as running:
        running.wait_for("ready")
        folder = running.folder
        kill(running.agent())
        folders.write_mark(folder, JOIN_MARK, address)
        (tmp_path / "go").touch()
        done = running.finish()
    duties.close()
    assert done.status == 0
    (line,) = done.lines_of_ours()
    assert line.endswith(f"{head / folders.SUMMARY}")
    assert not os.path.lexists(folder)


def test_ctrl_c_in_the_script_is_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INIT + "take_steps(5)\n" + WAITS)
    with started([PYTHON, "train.py"], tmp_path, start_new_session=True) as running:
        running.wait_for("ready")
        os.killpg(running.pid, signal.SIGINT)
        done = running.finish()
        done.wait_until_none_is_left()
    assert done.status == -signal.SIGINT
    assert done.stderr.count("KeyboardInterrupt") == 1
    assert done.steps == 5
    done.assert_nothing_is_left()


def test_spawned_ranks_of_a_script_with_init_are_traced(tmp_path: Path) -> None:
    script = "import traceml\ntraceml.init()\n" + TORCH_STEPS
    script += """\
if __name__ == "__main__":
    import multiprocessing
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=take_steps, args=(4,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""
    done = _run(tmp_path, script)
    assert (done.status, done.stderr) == (0, "")
    assert len(done.summary["step_time"]["groups"]["rows"]) == 2
    assert done.steps == 4
    done.assert_nothing_is_left()


TWO_RANKS = """
import os, subprocess, sys, time

def rank(number):
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    said = {name: str(value) for name, value in place.items()}
    return subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, **said})

maker = rank(1)
while not os.path.exists("made"): time.sleep(0.01)
first = rank(0)
status = maker.wait()
open("over", "w").close()
sys.exit(status or first.wait())
"""
ONE_RANK = """
from traceml.trace import init
traceml.init()
open("made", "w").close()
take_steps(5)
if os.environ["RANK"] == "1":
    init.OTHER_RANKS_S = 0.0  # its end waits for no other rank
    while not os.path.exists("trained"): time.sleep(0.01)
else:
    open("trained", "w").close()
    while not os.path.exists("over"): time.sleep(0.01)
    take_steps(5)
    traceml.log_metrics({"accuracy": 0.9})
"""


def test_a_rank_that_goes_on_after_the_one_that_made_the_run_is_recorded_to_its_end(
    tmp_path: Path,
) -> None:
    """As rank 0 does that evaluates the trained model while the others end."""
    (tmp_path / "rank.py").write_text(STEPS + "import os, time, traceml\n" + ONE_RANK)
    done = _run(tmp_path, TWO_RANKS)
    assert (done.status, done.lines_of_ours()) == (0, [])
    assert done.steps == 10  # the first rank has waited for the summary
    assert done.summary["metrics"]["accuracy"]["last"] == 0.9
    done.assert_nothing_is_left()


def test_only_a_summary_that_is_not_written_is_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init._say_how_it_ended(str(tmp_path), written=False)
    assert "the summary is not on disk yet" in capsys.readouterr().err
    (tmp_path / MARKS).mkdir()
    (tmp_path / MARKS / SUMMARY_MARK).touch()
    init._say_how_it_ended(str(tmp_path), written=False)
    assert capsys.readouterr().err == ""
