"""Times the closure that a script gives to an optimizer's step: what runs in it is the script's own
code.

LBFGS calls it many times per step, and Lightning puts the whole of `training_step` into one. So
each call is a phase without a name inside the optimizer's phase: forward, backward and other phases
in it count as they do elsewhere, and the remaining time is the step's rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from traceml.steps.events import ABORT, BEGIN, CLOSURE, END
from traceml.trace.compiling import skipped
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.session import Session

Arguments = tuple[Any, ...]
Options = dict[str, Any]


def timing(session: Session) -> Callable[[Arguments, Options], tuple[Arguments, Options] | None]:
    """Returns a function that replaces the closure in the arguments of a step by a timed one; it
    returns `None` where there is no closure."""
    note = session.recorder.shortcut("note", session.guard(session.recorder.note))

    def timed(closure: Any) -> Any:
        @functools.wraps(closure)
        def timed_closure(*arguments: Any, **options: Any) -> Any:
            session.open_closures += 1
            try:
                note(BEGIN, CLOSURE)
                result = closure(*arguments, **options)
                note(END, CLOSURE)
                return result
            except BaseException as error:
                note(ABORT, CLOSURE)
                session.failures.note("closure")
                drop_our_frames(error)
                raise
            finally:
                session.open_closures -= 1

        return skipped(timed_closure)

    def with_timed_closure(
        arguments: Arguments, options: Options
    ) -> tuple[Arguments, Options] | None:
        if len(arguments) > 1:  # the first is the optimizer
            if _is_closure(arguments[1]):
                return (arguments[0], timed(arguments[1]), *arguments[2:]), options
        elif _is_closure(options.get("closure")):
            return arguments, {**options, "closure": timed(options["closure"])}
        return None

    return session.guard(with_timed_closure)


def _is_closure(argument: Any) -> bool:
    """Whether an argument can only be there to be called: a model or a class is more than that."""
    kind = type(argument)
    return callable(argument) and not issubclass(kind, (type, nn.Module))
