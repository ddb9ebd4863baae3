"""The experiment trackers that a run can be logged to: their names, packages and known versions;
and the small files by which training process, agent and tracker processes know of each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traceml.model.environment import MARKS, MESSAGES_MARK
from traceml.model.errors import UsageError, did_you_mean
from traceml.model.library_versions import VersionRange, installed_version

LOG_TO_MARK = "log-to"
"""The mark that says which trackers the run is logged to: their names, with commas between."""
SCRIPT_RUN_MARK = "tracker-run-"
"""Before a tracker's name: the mark that describes the run which the script has open there."""
SAID_MARK = "tracker-said-"
"""Before a tracker's name: the mark that holds what is told the user at the end."""
STOPPED_MARK = "tracker-stopped-"
"""Before a tracker's name: the mark that says why the training process no longer looks for its run,
or logs to it."""
WANDB_VALUES_MARK = "wandb-values.json"
"""The mark from which the training process logs into the W&B run that it has open."""
WANDB_FILLED_MARK = "wandb-filled"
"""The mark that says that the script's W&B run, which it keeps offline, holds values of ours: its
folder."""
VERDICT, DIAGNOSIS, NEXT = "traceml/verdict", "traceml/diagnosis", "traceml/next"
"""What the texts of a run's end are called in a tracker."""
DISABLED = "disabled"
"""What W&B calls the mode in which it logs nothing."""
OVER_MESSAGE = b"over\n"
"""What the agent writes to the process of a tracker when the summary is on disk; an end of the pipe
without it means that the agent is gone."""


@dataclass(frozen=True, slots=True)
class Tracker:
    """One tracker."""

    name: str
    """As users write it; also the module, and the extra that installs it."""
    distributions: tuple[str, ...]
    """The packages that bring the module, the usual one first."""
    oldest: str
    """The version that its extra asks for."""
    first_untested: str
    """The minor version after the one that the tests have last run with."""

    def version(self) -> str | None:
        """Returns the version that is installed here; `None` where none is."""
        return installed_version(*self.distributions)

    def version_warning(self) -> str | None:
        """Returns a sentence about an installed version that is not tested; `None` for another."""
        return VersionRange(self.name, self.oldest, self.first_untested).warning(self.version())


TRACKERS = {
    tracker.name: tracker
    for tracker in (
        Tracker("wandb", ("wandb",), "0.17", "0.32"),
        Tracker("mlflow", ("mlflow", "mlflow-skinny"), "3.0", "3.18"),
        Tracker("tensorboard", ("tensorboard",), "2.10", "2.22"),
        Tracker("trackio", ("trackio",), "0.43", "0.44"),
    )
}


def parse_trackers(text: str) -> tuple[str, ...]:
    """Returns the trackers that `wandb,mlflow` names, each once; raises UsageError for others."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in TRACKERS:
            raise UsageError(
                f"there is no tracker {name!r}{did_you_mean(name, TRACKERS)}; expected one or more "
                f"of {', '.join(TRACKERS)}, with commas between; each needs the extra of its name: "
                "pip install 'traceml-insight[wandb]'"
            )
    return tuple(dict.fromkeys(names))


def closing_messages(folder: Path) -> list[str]:
    """Returns what people are told at the end of a run: what was not delivered, and a line for each
    tracker. Raises OSError."""
    names = [MESSAGES_MARK, *(f"{SAID_MARK}{tracker}" for tracker in TRACKERS)]
    marks = [folder / MARKS / name for name in names]
    texts = [mark.read_text(errors="replace") for mark in marks if mark.is_file()]
    return [line for text in texts for line in text.splitlines() if line]


def require_installed(names: tuple[str, ...]) -> None:
    """Raises UsageError where the package of a tracker is missing in this interpreter."""
    missing = [name for name in names if not _is_importable(name)]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} cannot be logged to: the package is not installed here; "
            f"install it with: pip install 'traceml-insight[{','.join(missing)}]'"
        )


def _is_importable(name: str) -> bool:
    from importlib.util import find_spec

    try:
        found = find_spec(name)
        # W&B keeps its runs in a folder `wandb`: beside a script such a folder passes for a module.
        return found is not None and found.origin is not None
    except (ImportError, ValueError):  # somebody has put an object of their own in its place
        return True
