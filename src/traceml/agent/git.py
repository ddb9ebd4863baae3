"""Runs git on a repository: without network, without locks, and with a time limit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

MAX_OUTPUT_BYTES = 1 << 20
"""Of an answer; more than anybody would read."""

_READ_ONLY = (
    # Whoever runs a script out of a repository trusts it already, whoever owns the files.
    *("-c", "safe.directory=*"),
    *("-c", "core.fsmonitor=false"),  # starts a daemon
    *("-c", "core.quotePath=false"),
    *("-c", "protocol.allow=never"),  # a partial clone would fetch what it lacks
)


class Git:
    """Git in one folder; `left_s` returns how long the next command may take."""

    def __init__(
        self, folder: Path, left_s: Callable[[], float], index: Path | None = None
    ) -> None:
        self._folder = folder
        self.left_s = left_s
        self._index = index

    @contextmanager
    def with_own_index(self) -> Iterator[Git]:
        """Returns the same with a copy of the index, because `git diff` locks and writes the index.

        Where there is no index to copy, it answers nothing: git would report all files as deleted.
        """
        place = self.ask("rev-parse", "--git-path", "index")
        with TemporaryDirectory(prefix="traceml-") as folder:
            copy = Path(folder) / "index"
            try:
                shutil.copy2(self._folder / (place or ""), copy)  # git goes by its time
            except OSError:
                yield Git(self._folder, lambda: 0.0)
                return
            yield Git(self._folder, self.left_s, copy)

    def ask(self, *words: str) -> str | None:
        """Returns git's output; `None` without git, on an error, or after the time limit."""
        answer = self.ask_bytes(*words)
        return None if answer is None else answer[0].decode(errors="replace").rstrip("\n")

    def ask_bytes(
        self, *words: str, most: int = MAX_OUTPUT_BYTES, answers: tuple[int, ...] = (0,)
    ) -> tuple[bytes, bool] | None:
        """Returns the first bytes of the output, and whether there was more.

        `answers` are the exit statuses that count as success.
        """
        left_s = self.left_s()
        if left_s <= 0:
            return None
        try:
            process = subprocess.Popen(
                ["git", *_READ_ONLY, *words],
                cwd=self._folder,
                env=_environment(self._index),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what git starts ends with it
            )
        except OSError:  # there is no git, or no such folder
            return None
        alarm = Timer(left_s, _end, [process])
        alarm.daemon = True
        alarm.start()
        assert process.stdout is not None
        with process:
            content = process.stdout.read(most + 1)
            is_more = len(content) > most
            if is_more:
                _end(process)
        alarm.cancel()
        if process.returncode not in answers and not is_more:
            return None
        return content[:most], is_more


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(index: Path | None) -> dict[str, str]:
    """Returns our environment without variables that select another repository or ask for input."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    if index is not None:
        kept["GIT_INDEX_FILE"] = str(index)
    return {
        **kept,
        "GIT_OPTIONAL_LOCKS": "0",  # the user's own git must never find the index locked
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",  # since git 2.45
        "GIT_ALLOW_PROTOCOL": "none",  # whatever the repository allows itself
        "LC_ALL": "C",
    }
