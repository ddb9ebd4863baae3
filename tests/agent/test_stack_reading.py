"""A stack tells the phase that it is in, and the user's line that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceml
from traceml.agent.stack_folding import LEFT_OUT, MAX_DEPTH, FoldedStacks
from traceml.agent.stack_reading import (
    TimedStack,
    busiest_thread,
    read_chrome_trace,
    read_looks,
    read_other_looks,
    without_torn,
    worker_thread,
)
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
CLOSURE = Frame(f"{OURS}/closures.py", 35, "timing.<locals>.timed.<locals>.timed_closure")
LOADER = Frame(f"{TORCH}/utils/data/dataloader.py", 700, "_BaseDataLoaderIter.__next__")
MAIN_LINE = CodeLine("main", "train.py", 20)


def user(name: str, line: int = 7) -> Frame:
    return Frame("/job/data.py", line, name)


def read(*inner: Frame, also: tuple[Frame, ...] = ()) -> Any:
    """What a look at this stack says, innermost frame first, in a burst that saw `also` too."""
    looks = [TimedStack(0.5, 2, (*inner, ROOT))]
    if also:
        looks.append(TimedStack(0.6, 1, (*also, ROOT)))
    return read_looks(looks, 100.0, "/job", FoldedStacks("/job"))[0]


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
            (user("closure"), CLOSURE, WRAPPER, MAIN),
            "residual",
            "closure",
            None,
            id="what a closure does besides is the script's own",
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
    ("place", "phase"),
    [
        ("serialization.py", "checkpoint"),
        ("_inductor/compile_fx.py", "compile"),
        ("_dynamo/convert_frame.py", "compile"),
    ],
)
def test_saving_and_compiling_have_accounts_of_their_own(place: str, phase: str) -> None:
    sample = read(Frame(f"{TORCH}/{place}", 5, "save"), TIMED, MAIN)
    assert (sample.phase, sample.user, sample.caller) == (phase, None, None)


def test_what_we_do_ourselves_after_a_step_is_nobodys_time() -> None:
    """It runs below the optimizer's `step`, and would be taken for it."""
    package = Path(traceml.__file__).parent
    written = Frame("/usr/lib/python3.11/gzip.py", 3, "GzipFile.write")
    for ours in ("trace/step_recording.py", "trace/deep/bursts.py", "steps/event_reader.py"):
        stack = (written, Frame(f"{package}/{ours}", 3, "write"), WRAPPER, MAIN, ROOT)
        looks = [TimedStack(0.0, 1, stack)]
        assert read_looks(looks, 100.0, "/job", FoldedStacks("/job")) == []


@pytest.mark.parametrize(
    "ours", ["trace/models.py", "trace/deep/compiled_calls.py", "trace/deep/operations.py"]
)
def test_what_we_are_around_is_the_scripts_time(ours: str) -> None:
    around = Frame(f"{Path(traceml.__file__).parent}/{ours}", 3, "call")
    assert read(user("collate"), around, MAIN).user == CodeLine("collate", "data.py", 7)
    assert read(BACKWARD, around, MAIN).phase == "backward"


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
    first, second = read_chrome_trace(events, rate=20.0)[1]
    assert (first.at_s, first.looks) == (0.0, 2)
    assert [frame.function for frame in first.stack] == ["work", "root"]
    assert (round(second.at_s, 6), second.looks) == (0.1, 6)
    assert [frame.function for frame in second.stack] == ["wait", "root"]


def test_a_thread_that_is_not_known_is_the_one_seen_most() -> None:
    events = [event("B", "a", 0, 7), event("B", "b", 0, 7), event("B", "c", 0, 8)]
    events += [event("E", "b", 50_000, 7), event("E", "a", 50_000, 7)]
    by_thread = read_chrome_trace(events, rate=20.0)
    assert busiest_thread(by_thread) == 7
    (look,) = by_thread[7]
    assert [frame.function for frame in look.stack] == ["b", "a"]
    assert read_chrome_trace([], 20.0) == {}
    assert busiest_thread({}) is None


def test_a_stack_that_begins_elsewhere_is_torn() -> None:
    whole = [TimedStack(0.0, 5, (MAIN, ROOT)), TimedStack(0.2, 1, (BACKWARD, MAIN, ROOT))]
    assert without_torn([*whole, TimedStack(0.3, 2, (BACKWARD, MAIN))]) == (whole, 2)
    assert without_torn([]) == ([], 0)


def folded(*inner: Frame) -> list[tuple[str, str, bool]]:
    """The stack as it is kept, the outermost call first."""
    stacks = FoldedStacks("/job")
    place = stacks.add(inner)
    if place is None:
        return []
    kept = [stacks.frames[number] for number in stacks.stacks[place]]
    return [(frame.function, frame.file, frame.is_users) for frame in kept]


def test_what_says_nothing_is_left_out_of_a_stack() -> None:
    start = Frame("/usr/lib/python3.11/threading.py", 1002, "Thread._bootstrap")
    run = Frame("<frozen runpy>", 88, "_run_code")
    forward = user("Net.forward")
    seen = folded(SLEEP, forward, MODULE, TIMED, MAIN, ROOT, run, start)
    assert [function for function, _, _ in seen[-2:]] == ["Net.forward", SLEEP.function]
    files = {file for _, file, _ in seen}
    assert not any("threading" in file or "runpy" in file or "module.py" in file for file in files)
    assert ("Net.forward", "data.py", True) in seen
    assert folded(run, start) == []


def test_equal_stacks_and_calls_are_kept_once() -> None:
    stacks = FoldedStacks("/job")
    first = stacks.add((user("get_batch", 3), MAIN))
    assert stacks.add((user("get_batch", 3), MAIN)) == first
    assert stacks.add((user("get_batch", 4), MAIN)) != first
    assert (len(stacks.stacks), len(stacks.frames)) == (2, 3)


def test_recursion_is_one_call_and_a_deep_stack_loses_its_middle() -> None:
    fall = [user("fall", line) for line in range(1000)]
    assert [function for function, _, _ in folded(*fall, MAIN)] == ["main", "fall"]
    chain = [user(f"call_{number}") for number in range(1000)]
    seen = [function for function, _, _ in folded(*chain, MAIN)]
    assert len(seen) == MAX_DEPTH
    assert (seen[0], seen[-1], seen.count(LEFT_OUT.function)) == ("main", "call_0", 1)


def test_generated_code_is_nobodys_and_has_no_number() -> None:
    (seen,) = folded(Frame("<eval_with_key>.17", 5, "forward"))
    assert seen == ("forward", "<eval_with_key>", False)
    assert folded(Frame("<string>", 1, "<module>"))[0][2] is False
    assert folded(user("main.<locals>.get_batch"))[0][0] == "get_batch"


def test_a_worker_is_looked_at_where_it_works_and_not_where_its_batches_are_sent() -> None:
    loop = Frame(f"{TORCH}/utils/data/_utils/worker.py", 300, "_worker_loop")
    feeder = (Frame("/usr/lib/python3.11/multiprocessing/queues.py", 244, "_feed"),)
    feeds = [TimedStack(moment / 10, 1, feeder) for moment in range(9)]
    works = [TimedStack(0.0, 9, (user("collate"), loop, LOADER, MAIN))]
    assert worker_thread({1: feeds, 2: works}) == 2
    assert worker_thread({1: feeds}) is None
    assert worker_thread({}) is None


def test_other_threads_count_while_they_do_not_wait_and_workers_as_such() -> None:
    waits = Frame("/usr/lib/python3.11/queue.py", 171, "get")
    busy = [TimedStack(0.0, 3, (user("prefetch"),)), TimedStack(0.2, 5, (waits, user("consume")))]
    stacks = FoldedStacks("/job")
    (sample,) = read_other_looks(busy, 100.0, stacks, is_of_worker=False)
    assert (sample.phase, sample.looks) == ("threads", 3)
    loop = Frame(f"{TORCH}/utils/data/_utils/worker.py", 300, "_worker_loop")
    forked = TimedStack(0.0, 4, (user("collate"), loop, LOADER, MAIN))
    child = TimedStack(0.1, 1, (user("shell"),))  # of something else that the script has started
    (sample,) = read_other_looks([forked, child], 100.0, stacks, is_of_worker=True)
    assert (sample.phase, sample.looks) == ("workers", 4)
    assert sample.stack is not None
    calls = [stacks.frames[place].function for place in stacks.stacks[sample.stack]]
    assert calls == ["_worker_loop", "collate"]
