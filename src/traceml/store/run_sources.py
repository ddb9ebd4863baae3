"""Where runs come from besides logs folders: one place that turns a user's word into a source.

A source is one file: a class as `TrackedSource` describes it. A new one gets a line in `_opened`.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceml.model.errors import UsageError, did_you_mean
from traceml.model.printable import printable
from traceml.model.tracked_run import TrackedSource

SCHEMES = ("mlflow", "tensorboard", "wandb")
_FORMS = (
    "mlflow (the server of MLFLOW_TRACKING_URI), mlflow+http://HOST:PORT, tensorboard:DIR or "
    "wandb:DIR"
)


def is_source_word(word: str) -> bool:
    """Returns whether a word names runs of another tool: `mlflow:RUN_ID`, `tensorboard:DIR`."""
    scheme = word.partition(":")[0].partition("+")[0]
    return scheme in SCHEMES and ":" in word


def open_source(word: str, experiments: Sequence[str] = ()) -> TrackedSource:
    """Returns the source that a word names; `experiments` are MLflow's.

    Raises UsageError for a word that names none, where a package is missing, or where a server
    does not answer, and RunNotFound where a folder is not there.
    """
    scheme = word.partition(":")[0].partition("+")[0]
    if scheme not in SCHEMES or (scheme != "mlflow" and not word.partition(":")[2]):
        raise UsageError(
            f"{printable(word)!r} names no store{did_you_mean(scheme, SCHEMES)}; expected {_FORMS}"
        )
    if experiments and scheme != "mlflow":
        raise UsageError(f"--experiment is MLflow's, and {printable(word)} is not; leave it out")
    return _opened(scheme, word, experiments)


def _opened(scheme: str, word: str, experiments: Sequence[str]) -> TrackedSource:
    # Late: each needs a package of its own, which takes a second or two to import.
    if scheme == "tensorboard":
        from traceml.store.tensorboard_runs import TensorboardRuns

        return TensorboardRuns(word)
    if scheme == "wandb":
        from traceml.store.wandb_runs import WandbRuns

        return WandbRuns(word)
    from traceml.store.mlflow_runs import MlflowRuns

    return MlflowRuns(word, experiments)
