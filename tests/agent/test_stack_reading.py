"""A stack tells the phase that it is in, and the user's line that runs."""

from __future__ import annotations

from typing import Any

import pytest

from traceml.agent.stack_reading import TimedStack, read_chrome_trace, read_looks, without_torn
from traceml.agent.stacks import Frame
from traceml.model.sample import CodeLine

PACKAGES = "/env/lib/python3.11/site-packages"
TORCH = f"{PACKAGES}/torch"
OURS = f"{PACKAGES}/traceml/trace"
MAIN = Frame("/job/train.py", 20, "main")
ROOT = Frame("/job/train.py", 40, "<module>")
SLEEP = Frame("/usr/lib/python3.11/random.py", 3, "shuffle")
TIMED = Frame(f"{OURS}/models.py", 150, "Models._wrap.<locals>.timed")
MODULE = Frame(f"{TORCH}/nn/modules/module.py", 1778, "Module._wrapped_call_impl")
BACKWARD = Frame(f"{TORCH}/autograd/__init__.py", 395, "backward")
WRAPPER = Frame(f"{TORCH}/optim/optimizer.py", 517, "Optimizer.profile_hook_step.<locals>.wrapper")
LOADER = Frame(f"{TORCH}/utils/data/dataloader.py", 700, "_BaseDataLoaderIter.__next__")
MAIN_LINE = CodeLine("main", "train.py", 20)


def user(name: str, line: int = 7) -> Frame:
    return Frame("/job/data.py", line, name)


def read(*inner: Frame, also: tuple[Frame, ...] = ()) -> Any:
    """What a look at this stack says, innermost frame first, in a burst that saw `also` too."""
    looks = [TimedStack(0.5, 2, (*inner, ROOT))]
    if also:
        looks.append(TimedStack(0.6, 1, (*also, ROOT)))
    return next(iter(read_looks(looks, 100.0, "/job")), None)


@pytest.mark.parametrize(
    ("stack", "phase", "function", "caller"),
    [
        pytest.param((SLEEP, user("get_batch"), MAIN), "residual", "get_batch", None, id="rest"),
        pytest.param((MAIN,), "residual", "main", None, id="the loop itself"),
        pytest.param(
            (user("Set.__getitem__"), LOADER, MAIN),
            "input",
            "Set.__getitem__",
            MAIN_LINE,
            id="input",
        ),
        pytest.param((LOADER, MAIN), "input", None, MAIN_LINE, id="waiting for workers"),
        pytest.param(
            (user("Net.forward"), MODULE, TIMED, MAIN),
            "forward",
            "Net.forward",
            MAIN_LINE,
            id="forward",
        ),
        pytest.param(
            (user("Mine.backward"), BACKWARD, MAIN),
            "backward",
            "Mine.backward",
            MAIN_LINE,
            id="backward",
        ),
        pytest.param((WRAPPER, MAIN), "optimizer", None, MAIN_LINE, id="optimizer"),
        pytest.param(
            (user("Net.forward"), TIMED, user("closure"), WRAPPER, MAIN),
            "forward",
            "Net.forward",
            CodeLine("closure", "data.py", 7),
            id="a closure's forward is forward",
        ),
        pytest.param(
            (Frame(f"{TORCH}/optim/optimizer.py", 1057, "Optimizer.zero_grad"), MAIN),
            "residual",
            "main",
            None,
            id="zero_grad is no step",
        ),
        pytest.param(
            (Frame(f"{TORCH}/distributed/distributed_c10d.py", 9, "all_reduce"), MAIN),
            "communication",
            None,
            MAIN_LINE,
            id="a collective",
        ),
        pytest.param(
            (Frame("/tmp/torchinductor_me/ab/cab.py", 9, "call"), TIMED, MAIN),
            "forward",
            None,
            MAIN_LINE,
            id="generated code is nobody's",
        ),
    ],
)
def test_the_innermost_phase_and_the_users_line(
    stack: tuple[Frame, ...], phase: str, function: str | None, caller: CodeLine | None
) -> None:
    sample = read(*stack, also=(TIMED, MAIN))
    assert (sample.phase, sample.caller) == (phase, caller)
    assert (sample.user and sample.user.function) == function
    assert (sample.unix_s, sample.looks) == (100.5, 2)


def test_without_our_frame_torchs_call_is_the_forward_pass_but_for_losses() -> None:
    loss = Frame(f"{TORCH}/nn/modules/loss.py", 1, "CrossEntropyLoss.forward")
    assert read(user("Net.forward"), MODULE, MAIN).phase == "forward"
    assert read(loss, MODULE, MAIN).phase == "residual"
    # Where our frame is there, a module without it is the loop's own: a loss of the user's, say.
    assert read(user("Loss.forward"), MODULE, MAIN, also=(TIMED, MAIN)).phase == "residual"


@pytest.mark.parametrize(
    "place", ["serialization.py", "_inductor/compile_fx.py", "_dynamo/convert_frame.py"]
)
def test_saving_and_compiling_have_accounts_of_their_own(place: str) -> None:
    assert read(Frame(f"{TORCH}/{place}", 5, "save"), MAIN) is None


def test_running_compiled_code_is_not_compiling() -> None:
    around = Frame(f"{TORCH}/_dynamo/eval_frame.py", 700, "_fn")
    compiled = Frame(f"{TORCH}/_inductor/output_code.py", 600, "CompiledFxGraph.__call__")
    assert read(compiled, around, TIMED, MAIN).phase == "forward"
    assert read(compiled, BACKWARD, MAIN).phase == "backward"


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        pytest.param("get_batch.<locals>.<genexpr>", "get_batch", id="with its qualified name"),
        pytest.param("<listcomp>", "get_batch", id="without"),
        pytest.param("main.<locals>.get_batch", "get_batch", id="a nested function"),
        pytest.param("Set.get_batch", "Set.get_batch", id="a method"),
    ],
)
def test_a_comprehension_is_told_by_its_function(inner: str, expected: str) -> None:
    sample = read(user(inner, line=9), user("get_batch", line=12), MAIN)
    assert sample.user == CodeLine(expected, "data.py", 9)


def test_a_package_that_the_users_line_called_is_kept() -> None:
    log = Frame(f"{PACKAGES}/trainer/loop.py", 3, "Trainer._log")
    assert read(SLEEP, log, MAIN).library == CodeLine("Trainer._log", "trainer/loop.py", 3)
    assert read(SLEEP, MAIN).library is None


def event(kind: str, name: str, at_us: int, thread: int = 1) -> dict[str, Any]:
    place = {"filename": f"/job/{name}.py", "line": 3}
    return {"ph": kind, "name": name, "ts": at_us, "tid": thread, "args": place}


def test_a_trace_of_begins_and_ends_is_read_as_stacks() -> None:
    events = [
        event("B", "root", 0),
        event("B", "work", 0),
        event("B", "other", 0, thread=2),
        event("E", "work", 100_000),
        event("B", "wait", 100_000),
        event("E", "wait", 400_000),
        event("E", "root", 400_000),
    ]
    first, second = read_chrome_trace(events, thread=1, rate=20.0)
    assert (first.at_s, first.looks) == (0.0, 2)
    assert [frame.function for frame in first.stack] == ["work", "root"]
    assert (round(second.at_s, 6), second.looks) == (0.1, 6)
    assert [frame.function for frame in second.stack] == ["wait", "root"]


def test_a_thread_that_is_not_known_is_the_one_seen_most() -> None:
    events = [event("B", "a", 0, 7), event("B", "b", 0, 7), event("B", "c", 0, 8)]
    events += [event("E", "b", 50_000, 7), event("E", "a", 50_000, 7)]
    (look,) = read_chrome_trace(events, thread=None, rate=20.0)
    assert [frame.function for frame in look.stack] == ["b", "a"]
    assert read_chrome_trace([], None, 20.0) == []


def test_a_stack_that_begins_elsewhere_is_torn() -> None:
    whole = [TimedStack(0.0, 5, (MAIN, ROOT)), TimedStack(0.2, 1, (BACKWARD, MAIN, ROOT))]
    assert without_torn([*whole, TimedStack(0.3, 2, (BACKWARD, MAIN))]) == (whole, 2)
    assert without_torn([]) == ([], 0)
