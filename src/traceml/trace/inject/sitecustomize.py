"""Begins tracing in every interpreter below `traceml run`, once that interpreter imports torch.

An exception that ends an interpreter is written down when Python has shown it, torch or not.

It is found through PYTHONPATH by whatever Python the user's command starts, so it needs nothing but
the standard library, reads as old Pythons can, and never raises. A `sitecustomize` of the user's
own still runs.
"""

import atexit
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 5 ms here
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""What launchers set for each of their ranks."""
_RAY_HOOK = "traceml.integrations.ray_environment.join_workers"
_ZERO_CODE = "traceml.integrations.zero_code"
_JOINED = {
    "transformers.trainer": "join_transformers",
    "accelerate.accelerator": "join_accelerate",
}
"""Modules of frameworks that know no plug-ins, and what of ours names the phases of each."""


def mark(name, text=""):
    """Leave a small file that says how far this interpreter came; whether it is the first to."""
    try:
        folder = os.path.join(os.environ["TRACEML_RUN_FOLDER"], "marks")  # noqa: PTH118
        if os.path.isdir(os.environ["TRACEML_RUN_FOLDER"]):  # noqa: PTH112 - or it is elsewhere
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        descriptor = os.open(os.path.join(folder, name), flags, 0o600)  # noqa: PTH118
        os.write(descriptor, text.encode())
        os.close(descriptor)
    except FileExistsError:
        return False  # marked already, as nearly always
    except (OSError, KeyError, UnicodeError) as error:
        if _is_interruption(error):
            raise
        return False  # nowhere to write: tracing does not depend on it
    return True


def _is_interruption(error):
    """Whether a signal's handler of the user's raised this while our code ran: it is the user's."""
    try:
        from traceml.trace.interruptions import is_interruption
    except (ImportError, SyntaxError):  # there is no tracer here, or this Python is too old for it
        return False
    return is_interruption(error)


class AfterTorch:
    """Waits in `sys.meta_path` for torch, then lets the tracer begin."""

    def find_spec(self, name, path=None, target=None):
        """Find torch as Python would have, and begin tracing when it has been executed.

        Many a library only asks whether there is a torch, so we wait until it is executed.
        """
        if name != "torch":
            return None
        spec = _find_elsewhere(self, name, path, target)
        if spec is None:
            mark("no-torch", sys.executable or "this Python")
        elif not _call_after(spec.loader, self._begin):
            mark("trouble", "torch comes from a loader that lets nobody wait for it")
        return spec

    def _begin(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        _begin()


class _AfterFramework:
    """Waits for the modules of frameworks whose phases have names."""

    def find_spec(self, name, path=None, target=None):
        """Find such a module as Python would have, and join it when it has been executed."""
        if name not in _JOINED or sys.version_info < (3, 10):
            return None
        spec = _find_elsewhere(self, name, path, target)
        if spec is not None:
            _call_after(spec.loader, lambda: _join(name))
        return spec


def _call_after(loader, done):
    """Have `done` called once a module has been executed; whether its loader lets anybody wait."""
    if not hasattr(loader, "exec_module") or isinstance(loader, type):
        return True  # a folder of that name, or a loader that is not this module's alone
    execute = loader.exec_module

    def execute_then_call(module):
        vars(loader).pop("exec_module", None)
        try:
            execute(module)
            done()
        except BaseException as error:  # whatever the import raises shows no frame of ours
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise

    try:
        loader.exec_module = execute_then_call
    except AttributeError as error:
        if _is_interruption(error):
            raise
        return False
    return True


class _OwnPackage:
    """Lets an interpreter that has no `traceml` of its own find ours, and nothing beside it."""

    def find_spec(self, name, path=None, target=None):
        """Find `traceml` where the launcher has it, unless the interpreter has one.

        A driver of Ray tells it where its workers find the run.
        """
        if name == "ray" and sys.version_info >= (3, 10):
            os.environ.setdefault("RAY_RUNTIME_ENV_HOOK", _RAY_HOOK)
        if name != "traceml":
            return None
        found = _find_elsewhere(self, name, path, target)
        if found is not None and found.origin is not None:
            return found  # a folder that merely has the name has no origin
        return importlib.util.spec_from_file_location(
            name,
            os.path.join(_PACKAGE, "__init__.py"),  # noqa: PTH118
            submodule_search_locations=[_PACKAGE],
        )


def _find_elsewhere(finder, name, path, target):
    """What Python would have found without one of our finders."""
    for other in sys.meta_path:
        if other is not finder and hasattr(other, "find_spec"):
            spec = other.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _begin():
    mark("torch")
    if sys.version_info < (3, 10):  # noqa: UP036 - the user's interpreter may be any
        version = ".".join(map(str, sys.version_info[:2]))
        _stay_off("the script runs under Python " + version + "; tracing needs 3.10 or newer")
        return
    error = _failing(_load_tracer)
    if error is not None:
        where = getattr(sys.modules.get("traceml"), "__file__", None) or "nowhere"
        _stay_off("the tracer could not be loaded (" + str(error) + "; traceml is " + where + ")")


def _join(framework):
    join = _JOINED[framework]
    error = _failing(lambda: getattr(importlib.import_module(_ZERO_CODE), join)())
    if error is not None and mark("unnamed-" + framework, str(error)):
        _say("the phases of " + framework + " have no names: " + str(error))


def _load_tracer():
    from traceml.trace.current import begin

    begin()


def _failing(function, *arguments):
    """Call a function of ours; the exception it raised, which must not reach the user's script."""
    try:
        function(*arguments)
    except Exception as error:  # said by the caller
        if _is_interruption(error):
            raise
        return error
    return None


def _stay_off(reason):
    """Say why this process is not traced; the first one to find out is enough."""
    if mark("trouble", reason):
        _say("tracing is off: " + reason)


def _say(text):
    if sys.stderr is not None:
        try:
            sys.stderr.write("traceml: " + text + "\n")
        except (OSError, ValueError) as error:
            if _is_interruption(error):
                raise
            # stderr is closed: nobody is listening


def _watch_end():
    """Have the exception that ends this interpreter written down.

    A script, and each rank that a launcher starts, speaks for the run. What those start besides are
    their helpers: whether a helper's failure matters is theirs to say.
    """
    pid = str(os.getpid())
    rank = ",".join(os.environ.get(name, "") for name in _RANKS)
    script, _, rank_of_script = os.environ.get("TRACEML_SCRIPT", "").partition(":")
    has_own_rank = rank != rank_of_script and rank.strip(",") != ""
    is_helper = script.isdigit() and script != pid and not has_own_rank
    if not is_helper:
        os.environ["TRACEML_SCRIPT"] = pid + ":" + rank
        mark_start()
    atexit.register(_end, int(pid), int(script) if is_helper else None)


def mark_start():
    """Leave a mark by which the agent follows this process from now on: it may die before its first
    step, or so soon after it that nobody would have looked yet."""
    mark("script-" + str(os.getpid()) + "-" + _machine(), _start_words())


def _start_words():
    """The rank that a launcher gave this process, how often it started its ranks again, and the
    time; `-` for what nobody said."""
    known = (os.environ.get(name, "") for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
    return " ".join([*(text if text.isdigit() else "-" for text in known), str(time.time())])


def _machine():
    """Its name: of machines that share a folder, two may have processes of the same number."""
    return os.uname()[1] if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def _end(pid, script):
    """Registered first, so called last: everything that the user wants done at exit is done."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    # Python remembers a KeyboardInterrupt for its exit status; importing modules would undo that.
    is_failure = error is not None and not isinstance(error, KeyboardInterrupt)
    is_old = sys.version_info < (3, 10)
    if not is_failure or is_old or os.getpid() != pid or hasattr(sys, "ps1"):
        return
    failed = _failing(_leave_report, error, script)
    if failed is not None:
        mark("unreported", str(failed))


def _leave_report(error, script):
    from traceml.trace.failure import leave_report

    leave_report(error, script, _machine())


def _run_users_own():
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _arrive():
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    if os.environ.get("TRACEML_RUN_FOLDER"):
        mark("python")
        _watch_end()
        sys.meta_path[:0] = [AfterTorch(), _AfterFramework(), _OwnPackage()]
    _run_users_own()


if __name__ == "sitecustomize":
    _arrive()
