"""A run as a page that can be refreshed."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Lock

from traceml.api.inline_pictures import RUN_PICTURE, InlinePictures, images_of
from traceml.api.live_goodput import LiveGoodput
from traceml.api.live_layers import LiveHostTime, LiveLayers
from traceml.api.run_files import RunFiles
from traceml.facts.history import History, sensor_history, step_history
from traceml.facts.metric_history import MAX_METRICS, metric_histories
from traceml.figures.head import RunStanding
from traceml.figures.page import Figure, Part, Picture, RunPage
from traceml.figures.run_page import run_page, step_figures
from traceml.model.metric_segments import split_segment
from traceml.store.run_follower import RunFollower

MIN_PAUSE_S = 1.0
"""Between two looks at a run in progress."""
MAX_CORE_SHARE = 0.25
"""Of a core, for following a run with many ranks: it is looked at less often."""


class RunWatch:
    """One run that is viewed repeatedly; safe for several threads."""

    def __init__(self, folder: Path, lens_id: str | None = None) -> None:
        """Raises RunNotFound where the folder is no run, UnreadableRecords where it is damaged.

        `lens_id`: whose step is shown (`figures/rank_lens.py`).
        """
        self._folder, self._lens_id = folder, lens_id
        self._pictured: tuple[object, ...] = ()
        self._pictures: tuple[Picture, ...] = ()
        self._files = RunFiles(folder)
        self._follower = None if self._files.is_foreign else RunFollower(folder)
        self._layers = LiveLayers()
        self._host_time = LiveHostTime(folder)
        self._goodput = LiveGoodput()
        self._lock = Lock()
        self._page: RunPage | None = None
        self._spent_s = 0.0, 0.0
        """CPU time of the last two looks."""
        self._history: History | None = None

    def page(self) -> RunPage:
        """Returns the run's current page; raises RunNotFound where it was deleted."""
        with self._lock:
            before, self._page = self._page, None  # should a look fail, the next one draws anew
            began_s = time.thread_time()
            has_changed = self._files.refresh()
            if before is None or has_changed or self._files.state == "live":
                before = self._drawn()
            self._page = before
            self._spent_s = self._spent_s[1], time.thread_time() - began_s
            return before

    def pause_s(self) -> float:
        """Returns how long to wait before the next look at a run in progress.

        One expensive look does not count: the first one reads all that there is.
        """
        return max(MIN_PAUSE_S, min(self._spent_s) / MAX_CORE_SHARE)

    def detail(self, first_step: int, last_step: int) -> tuple[Figure, ...]:
        """Returns the charts over steps for a range of steps, in the finest available
        resolution."""
        with self._lock:
            if self._follower is None:
                return ()
            ranks = self._follower.ranks_between(first_step, last_step)
            logged = self._follower.metrics()
            history = History(
                steps=step_history(ranks, self._files.manifest.started_unix_s, self.is_live()),
                metrics=metric_histories(logged, (first_step, last_step)),
            )
            return step_figures(history, self._files.summary, self._history, self._lens_id)

    def is_live(self) -> bool:
        """Whether the run was in progress when its page was last made."""
        return self._files.state == "live"

    def _drawn(self) -> RunPage:
        history, notes, output = History(), self._files.notes, None
        layers: Part | None = None
        host_time: Part | None = None
        summary = self._files.summary
        if self._follower is not None:
            self._follower.refresh()
            history = _history(self._follower, self._files.state == "live")
            notes, output = (*notes, *_notes(self._follower)), self._follower.output
            if self._files.state == "live":
                layers = self._layers.part(self._follower, summary)
                summary = self._goodput.add_to(summary, self._follower)
                host_time = self._host_time.part(self._follower)
        self._history = history
        standing = RunStanding(
            manifest=self._files.manifest,
            state=self._files.state,
            exit_status=self._files.exit_status,
            now_unix_s=time.time(),
            output=output,
            notes=notes,
        )
        return run_page(
            summary,
            standing,
            history,
            self._lens_id,
            self._shown_pictures(),
            layers,
            host_time,
        )

    def _shown_pictures(self) -> tuple[Picture, ...]:
        """Returns the logged images; they are decoded again only where one has changed."""
        summary = self._files.summary
        images = {} if summary is None else images_of(summary)
        known = tuple((name, found.sha256, found.stored) for name, found in images.items())
        if known != self._pictured:
            pictures = InlinePictures()
            for name, found in images.items():
                pictures.add_file(name, self._folder, found, RUN_PICTURE)
            self._pictured, self._pictures = known, tuple(pictures.kept)
        return self._pictures


def _history(follower: RunFollower, is_live: bool) -> History:
    began = follower.manifest.started_unix_s
    return History(
        steps=step_history(follower.ranks(), began, is_live),
        sensors=sensor_history(follower.samples(), follower.rank_numbers(), began),
        metrics=metric_histories(follower.metrics()),
    )


def _notes(follower: RunFollower) -> tuple[str, ...]:
    logged = sum(split_segment(name) is None for name in follower.metrics())
    if logged <= MAX_METRICS:
        return follower.notes
    return (*follower.notes, f"{MAX_METRICS} of {logged} logged metrics are drawn")
