"""What the integrations share: which versions of a library are tested, how its methods become named
regions of a run, and how its loggers are called without harm."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

from traceml.model.library_versions import VersionRange, installed_version
from traceml.trace import verbs
from traceml.trace.compiling import left_alone
from traceml.trace.current import current
from traceml.trace.interruptions import drop_our_frames, is_interruption

_open_regions: set[tuple[int, str]] = set()
"""Threads and the names of the regions that they are in."""
_open_calls: set[int] = set()
"""Threads that are in a method of which calls are noticed."""
_said: set[str] = set()


def say_if_untested(tested: VersionRange) -> None:
    """Say once, on the first rank's stderr, that the installed version is not a tested one."""
    warning = tested.warning(installed_version(tested.library))
    if warning is not None:
        say_once(f"{warning}; training goes on, and some phases may lack their names")


def missing_library(error: ModuleNotFoundError, module: str, *libraries: str) -> ImportError:
    """The error to raise where the library cannot be imported that one of our modules is for.

    Raises the given one where the library is there and lacks something itself. Of several
    libraries, one is enough.
    """
    library = (error.name or "").partition(".")[0]
    if library not in libraries:
        raise error
    if sys.modules.get(library) is not None:  # it was loaded, and lacks a module
        return ImportError(
            f"{module} needs {error.name}, which the {library} that is installed in this "
            f"environment does not have; `pip install --upgrade {library}`, or leave the import out"
        )
    return ImportError(
        f"{module} is for scripts that use {' or '.join(libraries)}, which is not installed in "
        f"this environment; `pip install {libraries[0]}`, or leave the import out"
    )


def is_first_rank() -> bool:
    """Whether this process is the run's only or first rank; not where tracing is off.

    Before the ranks have met, Lightning's know their local rank alone.
    """
    session = current()
    is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    return session is not None and is_first_here and session.rank() == 0


def say_once(text: str) -> None:
    """Say something in a run's first process, if there is a run and it has not been said yet."""
    session = current()
    if session is not None and is_first_rank() and text not in _said:
        _said.add(text)
        session.say(text)


def name_methods(owner: type | None, names: Iterable[str], region: str) -> None:
    """Time the calls of methods as a named region of the run; what is named already stays.

    A call inside another of the same region is a part of it and is not counted again. What a
    version of the library does not have is left out.
    """
    session = current()
    for name in names:
        method = getattr(owner, name, None)
        if session is not None and callable(method) and not hasattr(method, "traceml_region"):
            session.replace(owner, name, _timed(method, region))


def notice_calls(owner: type, name: str, notice: Callable[..., None]) -> None:
    """Call `notice` with the arguments of each call of a method, before it; what is noticed already
    stays.

    A call inside another, as of the same method of a base class, is a part of it: Lightning's
    logger for TensorBoard logs a metric of its own with the hyperparameters.
    """
    session, method = current(), getattr(owner, name, None)
    if session is not None and callable(method) and not hasattr(method, "traceml_notices"):
        session.replace(owner, name, _noticed(method, notice))


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Make a hook of ours, which a library calls in a traced run, safe: whatever it raises is
    counted as a failure of the tracer, and training goes on."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> None:
        session = current()
        if session is not None:
            session.guard(functools.partial(method, *arguments, **options), any_thread=True)()

    return call


def _noticed(method: Callable[..., Any], notice: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noticed(*arguments: Any, **options: Any) -> Any:
        thread = get_ident()
        if thread in _open_calls:
            return method(*arguments, **options)
        _open_calls.add(thread)
        try:
            notice(*arguments, **options)
            return method(*arguments, **options)
        except BaseException as error:
            drop_our_frames(error)
            raise
        finally:
            _open_calls.discard(thread)

    noticed.traceml_notices = True  # type: ignore[attr-defined]
    return left_alone(noticed)


def _timed(method: Callable[..., Any], region: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*arguments: Any, **options: Any) -> Any:
        place = get_ident(), region
        if verbs.is_compiling() or place in _open_regions:
            return method(*arguments, **options)
        _open_regions.add(place)
        try:
            with verbs.trace_time(region):
                return method(*arguments, **options)
        except BaseException as error:
            drop_our_frames(error)
            raise
        finally:
            _open_regions.discard(place)

    timed.traceml_region = region  # type: ignore[attr-defined]
    return left_alone(timed)


def try_to_log(what: str, log: Callable[[], object]) -> None:
    """Hand something to a logger of the script's; one that fails must not fail the training."""
    try:
        log()
    except Exception as error:  # said, and training goes on
        if is_interruption(error):
            raise
        say_once(f"{what} could not be given its summary ({type(error).__name__}: {error})")
