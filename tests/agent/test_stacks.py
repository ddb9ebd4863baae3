"""What a rank is at is read from its stack; nobody is signalled who would die of it."""

import sys
from pathlib import Path

import psutil
import pytest

from traceml.agent.stacks import (
    Frame,
    TrainingThread,
    ask,
    reading,
    training_stack,
    training_thread,
    users_line,
)
from traceml.model.failure import Doing

PACKAGES = "/env/lib/python3.11/site-packages"
TORCH = f"{PACKAGES}/torch"
USER = Frame("/job/train.py", 12, "main")
QUEUE = Frame("/usr/lib/python3.11/queue.py", 180, "get")


@pytest.mark.parametrize(
    ("stack", "doing", "call"),
    [
        pytest.param(
            (
                Frame(f"{TORCH}/distributed/distributed_c10d.py", 1, "barrier"),
                Frame(f"{TORCH}/distributed/c10d_logger.py", 2, "wrapper"),
                USER,
            ),
            Doing.COLLECTIVE,
            "barrier",
            id="a collective",
        ),
        pytest.param(
            (
                Frame("/site-packages/traceml/trace/collectives.py", 2, "timed"),
                Frame(f"{TORCH}/distributed/distributed_c10d.py", 1, "all_gather"),
                USER,
            ),
            Doing.COLLECTIVE,
            "all_gather",
            id="a collective behind a hook of ours",
        ),
        pytest.param(
            (
                Frame(f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 1, "unshard"),
                USER,
            ),
            Doing.COLLECTIVE,
            "unshard",
            id="FSDP waits for its parameters",
        ),
        pytest.param(
            (
                Frame(f"{TORCH}/distributed/checkpoint/filesystem.py", 1, "_write_item"),
                Frame(f"{TORCH}/distributed/checkpoint/state_dict_saver.py", 2, "save"),
                USER,
            ),
            Doing.CODE,
            None,
            id="a checkpoint that waits for a disk",
        ),
        pytest.param(
            (
                Frame(f"{TORCH}/distributed/distributed_c10d.py", 1, "gather_object"),
                Frame(f"{TORCH}/distributed/checkpoint/utils.py", 2, "reduce_scatter"),
                USER,
            ),
            Doing.COLLECTIVE,
            "gather_object",
            id="a checkpoint that waits for other ranks",
        ),
        pytest.param(
            (
                Frame(f"{TORCH}/autograd/graph.py", 1, "_engine_run_backward"),
                Frame(f"{TORCH}/_tensor.py", 2, "backward"),
                USER,
            ),
            Doing.BACKWARD,
            None,
            id="backward",
        ),
        pytest.param(
            (
                QUEUE,
                Frame(f"{TORCH}/utils/data/dataloader.py", 1, "_try_get_data"),
                USER,
            ),
            Doing.INPUT,
            None,
            id="a data loader's queue",
        ),
        pytest.param((QUEUE, USER), Doing.CODE, None, id="a queue of the user's own"),
        pytest.param(
            (USER, Frame(f"{TORCH}/autograd/graph.py", 1, "_engine_run_backward")),
            Doing.CODE,
            None,
            id="the user's own code inside backward",
        ),
        pytest.param(
            (
                Frame("/usr/lib/python3.11/selectors.py", 468, "select"),
                Frame(f"{PACKAGES}/ipykernel/kernelapp.py", 1, "start"),
            ),
            Doing.IDLE,
            None,
            id="a notebook",
        ),
        pytest.param((), Doing.UNKNOWN, None, id="no stack"),
    ],
)
def test_what_a_rank_is_at(stack: tuple[Frame, ...], doing: Doing, call: str | None) -> None:
    assert reading(stack) == (doing, call)


DUMP = """\
Thread 0x0000000000000002 (most recent call first):
  File "/job/worker.py", line 1 in run

Current thread 0x0000000000000001 (most recent call first):
  File "/job/train.py", line 12 in main
  File "/job/train.py", line 20 in <module>
"""


def test_the_thread_that_trains_is_the_one_that_counts() -> None:
    main = (Frame("/job/train.py", 12, "main"), Frame("/job/train.py", 20, "<module>"))
    assert training_stack("training thread 0x0000000000000001\n", DUMP) == main
    other = (Frame("/job/worker.py", 1, "run"),)
    assert training_stack("training thread 0x0000000000000002\n", DUMP) == other
    assert training_stack("", DUMP) == main
    assert training_stack("", "") == ()


def test_the_users_line_is_told_from_where_the_script_was_started() -> None:
    stack = (Frame(f"{TORCH}/nn/modules/linear.py", 1, "forward"), USER)
    assert users_line(stack, "/job") == "train.py:12 in main"
    assert users_line(stack, "/elsewhere") == "/job/train.py:12 in main"
    assert users_line(stack[:1], "/job") is None


@pytest.mark.slow
def test_nobody_is_signalled_who_would_die_of_it() -> None:
    with psutil.Popen([sys.executable, "-c", "input()"], stdin=-1) as bystander:
        assert not ask(bystander.pid)
        bystander.communicate(b"\n")
        assert bystander.returncode == 0
    assert not ask(2**22 + 1)  # more than any system has


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(b"training thread 0x0000000000000abc native 77\n", (0xABC, 77), id="both"),
        pytest.param(b"training thread 0x0000000000000abc\n", (0xABC, None), id="Python's alone"),
        pytest.param(b"", None, id="not said yet"),
    ],
)
def test_which_thread_trains(
    header: bytes, expected: tuple[int, int | None] | None, tmp_path: Path
) -> None:
    file = tmp_path / "rank.stacks"
    file.write_bytes(header)
    assert training_thread(file) == (None if expected is None else TrainingThread(*expected))
    assert training_thread(tmp_path / "none.stacks") is None
