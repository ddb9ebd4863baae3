"""Turns a user's word for a run of another tool into a run folder on this machine.

Commands that read runs take their words through `FetchedRuns` first, so that comparisons, reports
and everything else meet run folders alone. A server of ours never does: a browser's request must
not make it ask other machines.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from traceml.model.printable import printable, printable_lines
from traceml.model.tracked_run import TrackedRun, TrackedSource
from traceml.store.folder import SUMMARY
from traceml.store.run_sources import is_source_word, open_source

_MAX_NAME_BYTES = 100


class FetchedRuns:
    """Runs of other tools that a command fetched; they are removed when it is left.

    `with FetchedRuns() as fetched: paths = fetched.local_words(words)`
    """

    def __init__(self) -> None:
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._words: dict[str, list[str]] = {}
        self._names: set[str] = set()

    def __enter__(self) -> FetchedRuns:
        return self

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            self._place.cleanup()

    def local_words(self, words: Sequence[str]) -> list[str]:
        """Returns words that all name runs on this machine: `mlflow:RUN_ID`, `tensorboard:DIR` and
        `wandb:DIR` are fetched, each once, and become the paths of their summaries.

        Raises UsageError and RunNotFound.
        """
        return [local for word in words for local in self._local(word)]

    def _local(self, word: str) -> Sequence[str]:
        if not is_source_word(word):
            return (word,)
        if word not in self._words:
            source = open_source(word)
            paths = [self._write_folder(source, run) for run in source.find_runs()]
            self._words[word] = list(map(str, paths))
        return self._words[word]

    def _write_folder(self, source: TrackedSource, run: TrackedRun) -> Path:
        folder, notes = self._new_folder(run), run.notes
        if not source.fetch_files(run, folder) or not (folder / SUMMARY).is_file():
            # Late: it takes numpy, which two summaries are compared without.
            from traceml.api.tracked_folder import write_tracked

            if left_out := write_tracked(run, folder):
                notes += (f"{left_out:,} of its metrics are left out: it has too many",)
        for note in notes:
            print(f"traceml: {printable_lines(f'{run.name}: {note}')}", file=sys.stderr)
        return folder / SUMMARY

    def _new_folder(self, run: TrackedRun) -> Path:
        """Makes a folder whose name is the run's, and says where it comes from."""
        if self._place is None:
            self._place = tempfile.TemporaryDirectory(prefix="traceml-runs-")
        plain = re.sub(r"[^\w.+=-]+", "_", printable(run.name)).strip("._")
        short = plain.encode()[:_MAX_NAME_BYTES].decode(errors="ignore") or "run"
        name = f"{short}@{run.source}"
        if name in self._names:
            name = f"{name}-{re.sub(r'[^A-Za-z0-9]+', '', run.run_id)[-8:]}"
        while name in self._names:
            name = f"{name}-{len(self._names)}"
        self._names.add(name)
        # A logs folder for each run: neighbours would count as earlier runs of its command.
        folder = Path(self._place.name).resolve() / str(len(self._names)) / name
        folder.mkdir(0o700, parents=True)
        return folder
