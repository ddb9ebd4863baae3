"""Builds the optional C file of the tracer, `recorder.c`, beside its source.

Installing from the sources does so (`hatch_build.py`); elsewhere `python -m
traceml.trace.build_recorder` does. Whatever is missing (a compiler, Python's headers), nothing
fails: the hooks run in Python then. It imports nothing of this package: an installation runs it
before there is one.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from zlib import crc32

SOURCE = Path(__file__).with_name("recorder.c")
WITHOUT = "TRACEML_WITHOUT_C"
"""Set to 1, it leaves the C file out; `model.environment` has it too."""
TIMEOUT_S = 120


class RecorderNotBuilt(Exception):
    """There is no C here; the message says why."""


def build() -> Path:
    """Compile for the Python that runs this, and for all later ones where it can."""
    if os.environ.get(WITHOUT, "") not in ("", "0"):
        raise RecorderNotBuilt(f"{WITHOUT} is set")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise RecorderNotBuilt("it is for CPython with its global lock")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise RecorderNotBuilt(f"Python's headers are not in {headers}")
    target = SOURCE.with_name(f"_recorder{suffix()}")
    try:
        with tempfile.TemporaryDirectory(prefix="_recorder.", dir=target.parent) as folder:
            made = Path(folder) / target.name
            _run([*compiler(), *options(), f"-I{headers}", str(SOURCE), "-o", str(made)])
            made.replace(target)  # a process that has the old one loaded keeps it
    except OSError as error:
        raise RecorderNotBuilt(f"{target} cannot be written: {error}") from error
    return target


def suffix() -> str:
    """Of the file's name: one build serves every Python from 3.11 on; 3.10 has its own."""
    return ".abi3.so" if is_stable() else str(sysconfig.get_config_var("EXT_SUFFIX"))


def is_stable() -> bool:
    """Whether this Python's stable ABI has all that is needed: buffers are in it since 3.11."""
    return sys.version_info >= (3, 11)


def tag(platform: str) -> str:
    """Of a wheel that holds the build: interpreter, ABI and platform."""
    return f"cp311-abi3-{platform}" if is_stable() else f"cp310-cp310-{platform}"


def compiler() -> list[str]:
    """As the environment has it, or the machine's."""
    return _words("CC") or ["cc"]


def options() -> list[str]:
    """For one shared object that Python loads."""
    shared = (
        ["-shared"] if sys.platform != "darwin" else ["-bundle", "-undefined", "dynamic_lookup"]
    )
    stable = ["-DPy_LIMITED_API=0x030b0000"] if is_stable() else []
    source = f"-DSOURCE_CRC={crc32(SOURCE.read_bytes())}LL"
    return ["-O2", "-fPIC", *shared, *stable, source, *_words("CFLAGS")]


def _words(variable: str) -> list[str]:
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise RecorderNotBuilt(f"{variable} is no command line: {error}") from error


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderNotBuilt(f"`{command[0]}` could not be run: {error}") from error
    if done.returncode:
        raise RecorderNotBuilt(f"`{shlex.join(command)}` failed:\n{done.stderr.strip()}")


if __name__ == "__main__":
    try:
        print(f"built {build()}")
    except RecorderNotBuilt as reason:
        raise SystemExit(f"the tracer's hooks will run in Python alone: {reason}") from None
