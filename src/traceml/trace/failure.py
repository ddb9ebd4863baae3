"""Says where an exception happened: rank, step, phase, module and the user's own line.

Exceptions that pass a hook are noted at once, in a few words and without keeping hold of anything;
the one that ends the process is looked at when Python has already shown it. No hook of Python's own
is replaced, and the exception goes its way as if nobody had looked.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from traceback import TracebackException
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from traceml.model.environment import (
    FAILURE_MARK,
    MEMORY_SNAPSHOT,
    OOM_SNAPSHOT,
    RUN_FOLDER,
)
from traceml.model.failure import (
    FailureReport,
    MemoryAtFailure,
    amounts_in,
    is_consequence,
    is_host_memory,
    is_out_of_memory,
    is_users,
    line_name,
)
from traceml.model.launcher_place import has_rank, place_in_environment, restart_count
from traceml.model.secrets import masked_message
from traceml.trace.footprint import footprint
from traceml.trace.host_memory import host_memory
from traceml.trace.interruptions import PACKAGE, is_interruption, variables_of
from traceml.trace.marks import write_mark
from traceml.trace.module_names import own_name, unwrapped
from traceml.trace.place import is_helper
from traceml.trace.traceback_text import MAX_LETTERS, traceback_text

if TYPE_CHECKING:
    from traceml.trace.failed_batch import BatchReader
    from traceml.trace.session import Session

MAX_NOTED = 16
"""Handled exceptions that one process writes down; a script may raise one in every step."""
RARELY_S = 1.0
"""After that many, one exception in this time is described; the last one is written at the end."""
MAX_MESSAGE = 1000
MAX_LINE = 200
"""Of an exception's text on the terminal: the whole of it stands in the traceback above."""
MAX_CAUSES = 8
MAX_HANDLED = 4000
"""Letters of the traceback of a handled exception: many of them have to fit into the ring."""

NO_FAILURES = (KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration)

_PHASE_OF_TORCH = (
    ("/torch/utils/data/", "input"),
    ("/torch/autograd/", "backward"),
    ("/torch/_tensor.py", "backward"),
    ("/torch/optim/", "optimizer"),
    ("/torch/distributed/distributed_c10d.py", "communication"),
    ("/torch/serialization.py", "checkpoint"),
)
_BEFORE_TRAINING = ("checkpoint", "communication")
"""What a script also does before its first step: it loads a checkpoint, it joins the others."""
_ONLY_IN = {
    "/torch/_tensor.py": ("backward",),
    "/torch/serialization.py": ("save", "_save", "_legacy_save"),  # to load is not to save
}
"""The functions of a file of torch's that belong to its phase, where not all do."""
_WITH_BATCH = ("forward", "backward", "evaluation")
"""The phases that work on a batch."""
_PARAMETER_AT = ("p", "param")
"""What torch's optimizers call the parameter that they are at."""
_CALLS = ("__call__", "_wrapped_call_impl", "_call_impl", "forward", "training_step")
"""The methods of a module that are a forward pass. Others need not be one: frameworks have modules
that make their own optimizers and loaders, and even whole trainers that are modules."""
_FUNCTION_OF_TORCH = "/torch/autograd/function.py"
"""Where torch calls the backward pass of a script's own function."""
_WORKER = re.compile(r"Caught (\w+) in DataLoader worker process (\d+)")
_DEVICE_ERROR = re.compile(r"CUDA error|CUDNN_STATUS|CUBLAS_STATUS|NCCL error|HIP error")
_LINE_IN_TEXT = re.compile(r'^ *File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)


class Failures:
    """The exceptions of this process that its hooks have seen pass."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.note = session.guard(self._note)
        """Called where an exception leaves a phase, with its name, while it is being handled; of a
        backward pass also with what it began with."""
        # What is told besides must not keep the failure itself from being told.
        self._find_layer = session.guard(self._layer_in_backward, any_thread=True)
        self._keep_memory = session.guard(self._note_memory, any_thread=True)
        self.layer_of_node: Callable[[Any, list[Any]], str | None] | None = None
        """Says to which layer a node of a graph belongs, where the deep profile knows."""
        self.note_held: Callable[[int], None] | None = None
        """Writes what each layer holds in a step, where the deep profile is on."""
        self._models: Callable[[], list[Any]] = list
        self._optimizers: Callable[[], list[Any]] = list
        self._batch: BatchReader | None = None
        self.forget()

    def follow(self, models: Callable[[], list[Any]], optimizers: Callable[[], list[Any]]) -> None:
        """Where to ask for the models and optimizers of this process; none is kept alive."""
        from traceml.trace.failed_batch import BatchReader  # by now torch is there

        self._models, self._optimizers = models, optimizers
        self._batch = BatchReader(self._session.recorder)

    def forget(self) -> None:
        """Begin anew: in a forked child the parent's failures are not ours."""
        self._last: FailureReport | None = None
        self._noted = 0
        self._is_written = False
        self._snapshot: str | None = None

    def _note(self, phase: str | None = None, roots: Any = None) -> None:
        error, last = sys.exc_info()[1], self._last
        if error is None or isinstance(error, NO_FAILURES):
            return
        is_one_of_many = self._noted >= MAX_NOTED
        if is_one_of_many and last is not None and time.time() - last.unix_s < RARELY_S:
            return
        report = self._describe(error, self._session.count_steps() + 1, True, phase)
        is_layer_unknown = report.phase == "backward" and report.module is None
        if is_layer_unknown and roots is not None and not is_one_of_many:
            has_begun = report.memory is not None  # other errors may come before any node has run
            report = replace(report, module=self._find_layer(roots, has_begun))
        if last is not None and last.step == report.step and _same(last, report):
            return  # the innermost hook has seen it already
        if report.memory is not None:
            report = replace(report, snapshot=self._keep_memory(report))
        self._last = report
        self._noted += 1
        self._is_written = self._session.ring is not None and not is_one_of_many
        if self._is_written:
            self._write(report)

    def conclude(self, events_before: int) -> None:
        """The process ends, and its last step is closed: write down what ended it, if anything.

        So many events had been noted before the step was closed.
        """
        error = unhandled()
        session, last = self._session, self._last
        if error is None:
            if last is None or self._is_written:
                return
            if (last.step or 0) > session.count_steps():  # it is the last word
                self._write(last)
            return
        report = self._describe(error, None, is_handled=False)
        if last is not None and _same(last, report):  # the hook that it passed knows its phase
            module = report.module or last.module
            report = replace(report, phase=last.phase or report.phase, module=module)
        if session.ring is None and (is_helper() or not _is_of_training(report)):
            return
        steps = session.count_steps()
        after_step = steps > session.count_steps(events_before) and report.phase is None
        step = steps if after_step else steps + 1
        is_training = steps > 0 or report.phase not in (None, *_BEFORE_TRAINING)
        is_counted = session.tracing and is_training
        self._finish(report, step if is_counted else None)

    def _finish(self, report: FailureReport, step: int | None) -> None:
        last = self._last
        if last is not None and _same(last, report):
            # What was measured while it passed is nearer to the moment than what is left now.
            report = replace(report, memory=last.memory, snapshot=last.snapshot)
        report = replace(report, step=step)
        self._write(report)
        self._say(report)

    def _write(self, report: FailureReport) -> None:
        rank = self._session.rank()
        message = {"kind": "failure", **asdict(report), "rank": rank, "pid": os.getpid()}
        self._session.messages.write(message)

    def _say(self, report: FailureReport) -> None:
        parts = [f"rank {self._session.rank()} failed"]
        if report.step is not None:
            parts.append(f" at step {report.step}")
            if restart_count():
                parts.append(" since it was started again")  # the summary counts on
        if report.phase is not None:
            parts.append(f" in {report.phase}")
        if report.module is not None:
            parts.append(f", module {report.module}")
        if report.worker is not None:
            parts.append(f", DataLoader worker {report.worker}")
        if is_consequence(report.error, report.message):
            self._session.say(f"{''.join(parts)} because another process has gone or failed")
            return
        text = " ".join(report.message.split())
        shown = text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"
        self._session.say(f"{''.join(parts)}: {report.error}{': ' if shown else ''}{shown}")
        if report.where is not None:
            self._session.say(f"your line: {report.where}")

    def _describe(
        self, error: BaseException, step: int | None, is_handled: bool, phase: str | None = None
    ) -> FailureReport:
        walk = _walk(error, phase)
        report = describe(error, walk, is_handled)
        if report.memory is not None:
            report = replace(report, memory=self._memory(report, walk))
        module = None if walk.module is None else self._name(walk.module, walk.root)
        if module is None and report.phase == "optimizer" and walk.parameter is not None:
            module = self._owner(walk.parameter)
        return replace(report, step=step, module=module)

    def _note_memory(self, report: FailureReport) -> str | None:
        """Memory ran out: write what each layer holds, and the snapshot that was asked for."""
        if self.note_held is not None and report.step is not None:
            self.note_held(report.step)
        is_on_gpu = report.memory is not None and not report.memory.is_host
        if is_on_gpu and self._snapshot is None and os.environ.get(OOM_SNAPSHOT) == "1":
            from traceml.trace.gpu import save_memory_snapshot

            name = MEMORY_SNAPSHOT.format(pid=os.getpid())
            save_memory_snapshot(self._session.run_folder / name)
            self._snapshot = name
        return self._snapshot

    def _layer_in_backward(self, roots: Any, has_begun: bool) -> str | None:
        """The layer whose backward pass failed: that of the script's own function in which it was
        raised, else from how far the graph has been released."""
        from traceml.trace import autograd_graph

        nodes = autograd_graph.nodes_of(roots)
        running = _running_functions(sys.exc_info()[1])
        node = next((each for each in nodes if any(each is one for one in running)), None)
        if node is None:
            node = autograd_graph.reached_node(nodes, has_begun)
        if node is None:
            return None
        if self.layer_of_node is not None:
            return self.layer_of_node(node, nodes) or None
        modules = [
            (own_name(name), module)
            for model in self._models()
            for name, module in unwrapped(model).named_modules()
        ]
        return autograd_graph.layer_of(node, nodes, autograd_graph.parameter_names(modules))

    def _name(self, module: Any, root: Any) -> str:
        for outer in (*self._models(), root):
            found = _path(unwrapped(outer), module)
            if found:
                return found
        return type(module).__name__

    def _owner(self, parameter: Any) -> str | None:
        """The name of the layer that holds a parameter; `None` where no model of ours does."""
        for model in self._models():
            for name, module in unwrapped(model).named_modules():
                if any(each is parameter for each in module._parameters.values()):
                    return own_name(name)
        return None

    def _memory(self, report: FailureReport, walk: _Walk) -> MemoryAtFailure:
        """What the exception says, what the models of this process hold, and the batch."""
        roots = self._models() or ([] if walk.root is None else [walk.root])
        found = footprint(roots, self._optimizers())
        is_host = is_host_memory(report.error, report.message)
        known: dict[str, Any] = found.allocator(is_host) | amounts_in(report.message)
        known |= found.held() | self._failed_batch(report, walk)
        if is_host:
            known |= host_memory(known.get("tried_bytes"))
        return MemoryAtFailure(is_host=is_host, **known)

    def _failed_batch(self, report: FailureReport, walk: _Walk) -> dict[str, Any]:
        """How large the batch was, by name as a report has it."""
        if self._batch is None or report.phase not in _WITH_BATCH:
            return {}
        # Once the exception has left the script's `no_grad()`, nobody can say.
        is_graph_kept = report.is_handled and self._batch.is_graph_kept(walk.root)
        is_evaluation = is_graph_kept or report.phase == "evaluation"
        batch = self._batch.read(walk.call, is_evaluation)
        return {**batch._asdict(), "is_graph_kept": is_graph_kept}


def describe(
    error: BaseException, walk: _Walk | None = None, is_handled: bool = False
) -> FailureReport:
    """What an exception says by itself; its rank and step are for others to say."""
    walk = walk or _walk(error)
    kind, message, where, worker = _words(error, walk.where or _callers_line(error))
    memory = None
    for each in _chain(error):
        name, text = type(each).__name__, _text(each)
        if is_out_of_memory(name, text):
            kind, message = name, text
            said: dict[str, Any] = amounts_in(text)
            memory = MemoryAtFailure(is_host=is_host_memory(name, text), **said)
            break
    return FailureReport(
        rank=0,
        error=kind,
        message=masked_message(message[: 2 * MAX_MESSAGE])[:MAX_MESSAGE],
        phase=walk.phase,
        where=where,
        is_handled=is_handled,
        worker=worker,
        memory=memory,
        unix_s=time.time(),
        traceback=traceback_text(
            error, with_callers=is_handled, max_letters=MAX_HANDLED if is_handled else MAX_LETTERS
        ),
    )


def _walk(error: BaseException, phase: str | None = None) -> _Walk:
    """The frames of an exception, or of the cause that happened inside a module.

    The phase is the one whose hook has seen the exception pass.
    """
    walked = [_Walk(each.__traceback__, phase if each is error else None) for each in _chain(error)]
    return next((each for each in walked if each.module is not None), walked[0])


class _Walk:
    """What a traceback's frames say: the phase, the modules, the user's innermost line.

    It begins in the phase whose hook has seen it pass, if one has.
    """

    def __init__(self, traceback: TracebackType | None, phase: str | None = None) -> None:
        self.phase = phase
        self.root: Any = None
        self.call: FrameType | None = None
        """The frame in which the outermost module was called."""
        self.module: Any = None
        self.parameter: Any = None
        """The one that an optimizer was at, where it goes through them one by one."""
        self.where: str | None = None
        self._is_called = False
        kind = getattr(sys.modules.get("torch.nn"), "Module", None)
        while traceback is not None:
            self._see(traceback.tb_frame, traceback.tb_lineno, kind)
            traceback = traceback.tb_next

    def _see(self, frame: FrameType, line: int, kind: type | None) -> None:
        code = frame.f_code
        found = _phase_of(code.co_filename, code.co_name)
        if found is not None:
            self.phase = found
        is_method = kind is not None and "self" in code.co_varnames
        owner = variables_of(frame).get("self") if is_method else None
        if kind is not None and issubclass(type(owner), kind):
            self._is_called = self._is_called or code.co_name in _CALLS
        if self._is_called and kind is not None and issubclass(type(owner), kind):
            self.module = owner
            if self.root is None:
                self.root, self.call = owner, frame
            if self.phase in (None, "optimizer", "closure"):  # its forward inside the optimizer
                self.phase = "forward"
        if found == "optimizer":
            at = [name for name in _PARAMETER_AT if name in code.co_varnames]
            held = variables_of(frame) if at else {}
            self.parameter = next((held[name] for name in at if name in held), self.parameter)
        if is_users(code.co_filename):
            self.where = _line(code.co_filename, line, code.co_name)


def _running_functions(error: BaseException | None) -> list[Any]:
    """The functions (`torch.autograd.Function`) in whose backward pass an exception was raised, as
    the nodes of a graph."""
    traceback = None if error is None else error.__traceback__
    found = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_name == "apply" and code.co_filename.endswith(_FUNCTION_OF_TORCH):
            found.append(variables_of(traceback.tb_frame).get("self"))
        traceback = traceback.tb_next
    return found


def _phase_of(file: str, function: str) -> str | None:
    if file.startswith(PACKAGE):
        return None  # `trace` in its path is no module of torch's
    for part, phase in _PHASE_OF_TORCH:
        if part in file and function in _ONLY_IN.get(part, (function,)):
            return phase
    return None


def _callers_line(error: BaseException) -> str | None:
    """The innermost user line above the frame that caught an exception raised inside torch."""
    frame = None if error.__traceback__ is None else error.__traceback__.tb_frame.f_back
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return (
        None
        if frame is None
        else _line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    )


def _line(file: str, line: int | str, function: str) -> str:
    try:
        folder = str(Path.cwd())
    except OSError as error:  # it is gone
        if is_interruption(error):
            raise
        folder = os.sep
    return line_name(file, line, function, folder)


def unhandled() -> BaseException | None:
    """The exception that ends this process; Python keeps it once it has shown it."""
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return None  # a person goes on after an exception
    error: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:  # a rank that multiprocessing started ends while it is being handled
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and error.code not in (None, 0):
            error = error.__context__
    return None if isinstance(error, NO_FAILURES) else error


def ended_by_device_error() -> bool:
    """Whether an error of the CUDA device ends this process; then CUDA must not be called again."""
    error = unhandled()
    return error is not None and any(
        type(each).__name__ == "AcceleratorError" or _DEVICE_ERROR.search(_text(each)) is not None
        for each in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it was raised from, as a traceback shows them."""
    following: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if following is None:
            return
        yield following
        following = following.__cause__ or (
            None if following.__suppress_context__ else following.__context__
        )


def _text(error: BaseException) -> str:
    # As Python shows it: a user's own `__str__` may fail.
    return str(TracebackException(type(error), error, None))


def _words(error: BaseException, where: str | None) -> tuple[str, str, str | None, int | None]:
    """Type, text, line and DataLoader worker: a worker's exception carries its own traceback."""
    kind, text = type(error).__name__, _text(error)
    from_worker = _WORKER.search(text)
    if isinstance(error, SyntaxError):
        return kind, text, _wrong_line(error) or where, None
    if from_worker is None:
        return kind, text, where, None
    lines = [found for found in _LINE_IN_TEXT.findall(text) if is_users(found[0])]
    original = text.strip().rsplit("\n", 1)[-1].partition(": ")[2]
    return (
        from_worker[1],
        original or text,
        _line(*lines[-1]) if lines else where,
        int(from_worker[2]),
    )


def _wrong_line(error: SyntaxError) -> str | None:
    """The line of a syntax error in the user's code; the frames end where the file was imported."""
    if error.filename is None or error.lineno is None or not is_users(error.filename):
        return None
    return _line(error.filename, error.lineno, "").removesuffix(" in ")


def _is_of_training(report: FailureReport) -> bool:
    """Whether a process without steps failed by its own fault; a launcher fails because a rank
    does."""
    is_own = report.phase is not None or report.where is not None
    return is_own and not is_consequence(report.error, report.message)


def _same(one: FailureReport, other: FailureReport) -> bool:
    return (one.error, one.message) == (other.error, other.message)


def _path(root: Any, module: Any) -> str | None:
    """The module's dotted name under a root; `None` for the root itself and for other modules."""
    if root is None:
        return None
    for name, each in root.named_modules():
        if each is module:
            return own_name(name)
    return None


def leave_report(error: BaseException, script: int | None, machine: str) -> None:
    """Leave a mark with the exception that ends this interpreter, whether it was traced or not.

    The mark is named after this process and its machine. A process that took training steps says
    the same, and more, through its ring; that report is the one that is read.

    A helper's is named after the pid of the script that it helps, `script`: of the helpers of one
    script only the last that failed is kept.
    """
    folder = os.environ.get(RUN_FOLDER)
    if not folder or isinstance(error, NO_FAILURES):
        return
    report = replace(
        describe(error),
        rank=place_in_environment()[0],
        is_rank=has_rank(),
        pid=os.getpid(),
        started_by=script,
    )
    process = os.getpid() if script is None else f"below-{script}"
    name = f"{FAILURE_MARK}{process}-{machine}.json"
    content = json.dumps(asdict(report)).encode(errors="replace")
    write_mark(Path(folder), name, content)
