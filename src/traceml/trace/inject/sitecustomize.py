"""Begins tracing in every interpreter below `traceml run`, once that interpreter imports torch.

It is found through PYTHONPATH by whatever Python the user's command starts, so it needs nothing but
the standard library, reads as old Pythons can, and never raises. A `sitecustomize` of the user's own
still runs.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 5 ms here
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
_RUN_FOLDER = os.environ.get("TRACEML_RUN_FOLDER", "")


def mark(name, text=""):
    """Leave a small file that says how far this interpreter came; the first one is enough."""
    try:
        folder = os.path.join(_RUN_FOLDER, "marks")  # noqa: PTH118
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        descriptor = os.open(os.path.join(folder, name), flags, 0o644)  # noqa: PTH118
        os.write(descriptor, text.encode())
        os.close(descriptor)
    except OSError:
        return  # marked already, or nowhere to write: tracing does not depend on it


class AfterTorch:
    """Waits in `sys.meta_path` for torch, then lets the tracer begin."""

    def find_spec(self, name, path=None, target=None):
        """Find torch as Python would have, and begin tracing when it has been executed."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def execute_then_begin(module):
            execute(module)
            _begin()

        spec.loader.exec_module = execute_then_begin
        return spec


class _OwnPackage:
    """Lets an interpreter that has no `traceml` of its own find ours, and nothing beside it."""

    def find_spec(self, name, path=None, target=None):
        """Find `traceml` where the launcher has it."""
        if name != "traceml":
            return None
        return importlib.util.spec_from_file_location(
            name,
            os.path.join(_PACKAGE, "__init__.py"),  # noqa: PTH118
            submodule_search_locations=[_PACKAGE],
        )


def _begin():
    mark("torch")
    if sys.version_info < (3, 10):  # noqa: UP036 - the user's interpreter may be any
        version = ".".join(map(str, sys.version_info[:2]))
        mark("trouble", "the script runs under Python %s; tracing needs 3.10 or newer" % version)
        return
    try:
        from traceml.trace.begin import begin
    except ImportError as error:
        where = getattr(sys.modules.get("traceml"), "__file__", "nowhere")
        mark("trouble", "the tracer could not be loaded (%s; traceml is %s)" % (error, where))
        return
    begin()


def _run_users_own():
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _arrive():
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    if _RUN_FOLDER:
        mark("python")
        sys.meta_path.append(_OwnPackage())
        sys.meta_path.insert(0, AfterTorch())
    _run_users_own()


if __name__ == "sitecustomize":
    _arrive()
