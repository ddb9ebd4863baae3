"""Records a run's lineage (code, command, environment, machine, data) in a thread of the agent.

Git, machine and arguments are read once, when the run starts. The interpreter describes itself when
it has torch, and again when it trains; then the packages are listed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from traceml.agent.code import look_at_code
from traceml.agent.data_version import (
    content_hash,
    dvc_hashes,
    fingerprints,
    named_by,
    named_in,
)
from traceml.agent.git import Git
from traceml.agent.hardware import look_at_hardware
from traceml.agent.packages import packages_on
from traceml.model.interpreter import Interpreter
from traceml.model.lineage import Command, Data, Environment, Lineage
from traceml.model.run import Manifest
from traceml.store.lineage import read_interpreter, read_lineage, write_diff, write_lineage

PIECE_S = 2.0
"""Time limit for one piece, git and data together; what is not known by then stays unknown."""
LOOK_S = 0.5
"""How often the interpreter's mark is looked for."""
CLOSING_S = 2.0
"""How long the end of a run waits for missing pieces."""


class LineageCapture:
    """One run's lineage; `pieces` runs in its own thread, the rest in the agent's loop."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._lineage = Lineage()
        self._interpreter: Interpreter | None = None
        self._params: SimpleQueue[bytes | None] = SimpleQueue()
        """Logged parameters to be looked at; `None` when no more will come."""
        self._look_until_s = time.monotonic() + PIECE_S
        self._closed_s: float | None = None

    def note(self, messages: Iterable[bytes]) -> None:
        """Queues logged parameters, which may name data."""
        for message in messages:
            if b'"params"' in message[:40]:
                self._params.put(message)

    def close(self) -> None:
        """Ends the capture: missing pieces are read within `CLOSING_S`, or never."""
        self._closed_s = time.monotonic()
        self._params.put(None)

    def pieces(self) -> Iterator[Callable[[], None]]:
        """Yields what is to be done; each may fail without the others."""
        captured = read_lineage(self._folder)  # by an agent that died
        if captured is None:
            self._begin_look()
            yield from (self._look_at_code, self._look_at_data, self._look_at_hardware)
        else:
            self._lineage = captured
        while True:
            try:
                message = self._params.get(timeout=LOOK_S)
            except Empty:
                message = b""
            self._begin_look()
            yield self._look_at_interpreter
            if message is None:
                return
            if message:
                yield partial(self._look_at_logged, message)

    def _begin_look(self) -> None:
        self._look_until_s = time.monotonic() + PIECE_S

    def _left_s(self) -> float:
        until_s = self._look_until_s
        if self._closed_s is not None:
            until_s = min(until_s, self._closed_s + CLOSING_S)
        return until_s - time.monotonic()

    def _keep(self, lineage: Lineage) -> None:
        if lineage != self._lineage:
            self._lineage = lineage
            write_lineage(self._folder, lineage)

    # The pieces

    def _look_at_code(self) -> None:
        words = self._manifest.command
        script, arguments = _script_in(words, self._working_folder)
        command = Command(
            words=words,
            script=script,
            arguments=arguments,
            folder=self._manifest.working_folder or None,
            script_sha256=_content(self._working_folder, script),
            script_path=_file(self._working_folder, script),
        )
        self._keep(replace(self._lineage, captured_unix_s=time.time(), command=command))
        self._find_repository()

    def _find_repository(self) -> None:
        """Keeps the state of the repository of the script, or else of the folder it runs in."""
        script = self._script()
        places = [*([script.parent] if script else []), self._working_folder]
        code, diff = None, ""  # of no repository, also where a launcher's had been found before
        for place in dict.fromkeys(places):
            code, diff = look_at_code(place, self._folder.parent, self._left_s)
            if code is not None:
                break
        write_diff(self._folder, diff)
        self._keep(replace(self._lineage, code=code))

    def _look_at_hardware(self) -> None:
        hardware, driver = look_at_hardware()
        environment = replace(self._lineage.environment or Environment(), driver=driver)
        self._keep(replace(self._lineage, hardware=hardware, environment=environment))

    def _look_at_data(self) -> None:
        command, code = self._lineage.command, self._lineage.code
        dvc: dict[str, str] = {}
        if code is not None and code.repository is not None:
            root = Path(code.repository)
            dvc = dvc_hashes(root, Git(root, self._left_s))
        self._keep(replace(self._lineage, data=Data(dvc=dvc)))
        if command is not None and command.arguments is not None:
            self._add_paths(named_in(command.arguments))

    def _look_at_logged(self, message: bytes) -> None:
        self._add_paths(named_by(json.loads(message)["values"]))

    def _add_paths(self, names: Iterable[str]) -> None:
        """Adds paths that are new; the first fingerprint counts, because training may write beside
        its data."""
        data = self._lineage.data or Data()
        script = self._script()
        apart = (self._folder, *([script] if script else []))
        new = [name for name in names if name not in data.paths]
        found = fingerprints(new, self._working_folder, apart, self._left_s)
        self._keep(replace(self._lineage, data=replace(data, paths={**data.paths, **found})))

    def _look_at_interpreter(self) -> None:
        """Reads the interpreter's description of itself, when it is new."""
        found = read_interpreter(self._folder)
        if found is None or found == self._interpreter:
            return
        before, self._interpreter = self._interpreter, found
        packages = self._lineage.packages
        if before is None or (found.path, found.folder) != (before.path, before.folder):
            packages = packages_on(found.path, found.folder)
        environment = self._lineage.environment or Environment()
        self._keep(
            replace(
                self._lineage,
                command=self._command_of(found),
                environment=replace(
                    environment,
                    python=found.version,
                    executable=found.executable or None,
                    torch=found.torch,
                    cuda=found.cuda,
                    cudnn=_cudnn_version(packages),
                ),
                packages=packages,
                variables=dict(sorted(found.variables.items())),
            )
        )
        self._look_again(found)

    def _command_of(self, interpreter: Interpreter) -> Command:
        command = self._lineage.command or Command(words=self._manifest.command)
        script, *arguments = interpreter.argv or ("",)
        folder = interpreter.folder or command.folder
        content = command.script_sha256
        if content is None or (script, folder) != (command.script, command.folder):
            content = _content(Path(folder or "/"), script)
        return replace(
            command,
            script=script or None,
            arguments=tuple(arguments),
            folder=folder,
            script_sha256=content,
            script_path=_file(Path(folder or "/"), script),
        )

    def _look_again(self, interpreter: Interpreter) -> None:
        """Reads the code again: the script may be another than the command suggests."""
        script, code = self._script(), self._lineage.code
        root = None if code is None or code.repository is None else Path(code.repository)
        if script is not None and (root is None or root not in script.parents):
            self._find_repository()
        self._add_paths(named_in(interpreter.argv[1:]))

    @property
    def _working_folder(self) -> Path:
        command = self._lineage.command
        told = None if command is None else command.folder
        return Path(told or self._manifest.working_folder or "/")

    def _script(self) -> Path | None:
        command = self._lineage.command
        if command is None or not command.script:
            return None
        script = _file(self._working_folder, command.script)
        return None if script is None else Path(script)


def _script_in(words: tuple[str, ...], folder: Path) -> tuple[str | None, tuple[str, ...] | None]:
    """Returns the script of a command and its arguments, as far as the words tell."""
    for position, word in enumerate(words):
        if word.endswith(".py") and (folder / word).is_file():
            return word, words[position + 1 :]
    return None, None


def _file(folder: Path, script: str | None) -> str | None:
    """Returns the path of the script without symbolic links; `None` where it is no file."""
    try:
        found = (folder / script).resolve() if script else None
        return str(found) if found is not None and found.is_file() else None
    except (OSError, ValueError, RuntimeError):  # a loop of links is one of these
        return None


def _content(folder: Path, script: str | None) -> str | None:
    """Returns the hash of the script; `None` where it is no readable file."""
    try:
        return content_hash(folder / script) if script else None
    except (OSError, ValueError):
        return None


def _cudnn_version(packages: Mapping[str, str] | None) -> str | None:
    """Returns the version of the package that brings cuDNN; `None` where it was installed
    otherwise."""
    for name, version in (packages or {}).items():
        if name.startswith("nvidia-cudnn-"):
            return version
    return None
