"""Hands a run's checkpoint to the model registry, with the comparison as evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from traceml.api.compare import find_changes
from traceml.api.fetch_runs import FetchedRuns
from traceml.api.find_runs import choose_summaries
from traceml.api.push import push_run
from traceml.compare.logged_metrics import LOGGED, MOVED_PCT
from traceml.compare.many_runs import quality_metric
from traceml.compare.record import Comparison, LoggedDelta, to_json
from traceml.compare.sides import Sides
from traceml.compare.terms import Terms
from traceml.model.artifact import ArtifactKind
from traceml.model.errors import UsageError, did_you_mean
from traceml.model.printable import printable
from traceml.store.artifact_store import safe_relative
from traceml.store.mlflow_registry import (
    ARTIFACT_TAG,
    HASH_TAG,
    ModelFile,
    Registered,
    artifact_there,
    attach_evidence,
    checkpoints_there,
    register,
)
from traceml.store.mlflow_runs import FOLDER, RUN_ID_TAG, MlflowRuns
from traceml.store.mlflow_server import SCHEME, split_address
from traceml.store.mlflow_upload import Progress, Sent
from traceml.store.regular_files import stat_regular
from traceml.store.run_sources import is_source_word
from traceml.summaries.read import locate, read_summary
from traceml.summaries.record import ArtifactSummary, Summary
from traceml.text.comparison import comparison_text

WORSE = ("REGRESSION", "MIXED")
"""Verdicts with which a checkpoint is registered only where that is forced."""
_MAX_WHY_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Judged:
    """The comparison of a run with its baseline."""

    comparison: Comparison
    metric: str | None
    """The logged metric that decides; `None`: step time, then peak memory."""

    @property
    def status(self) -> str:
        """The verdict in one word."""
        return self.comparison.verdict.status

    @property
    def is_worse(self) -> bool:
        """Whether the run is worse than its baseline, or partly so, or seems to be."""
        return self.status in WORSE or self.seems_worse

    @property
    def seems_worse(self) -> bool:
        """Whether the metric that decides got worse, though these runs are too few to show it."""
        found = self.comparison.sections[LOGGED].metrics.get(self.metric or "")
        if self.status != "INCONCLUSIVE" or not isinstance(found, LoggedDelta):
            return False
        is_known = found.higher_is_better is not None
        moved = abs(found.pct_change or 0.0) >= MOVED_PCT
        return is_known and moved and not found.is_better


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """What is to be registered, and under which conditions."""

    run: str
    """As users name it; a run of the same server, or one on this machine, which is sent first."""
    model: str
    artifact: str | None = None
    experiment: str | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """What was registered."""

    registered: Registered
    checkpoint: ModelFile
    choice: str
    """Why this checkpoint, in words."""
    sent: Sent | None
    """What had to be sent; `None` where the run was at the server."""


def judge(run: str, baseline: str, logs_dir: Path, terms: Terms, fetched: FetchedRuns) -> Judged:
    """Compares a run with its baseline, by the metric that stands for what the runs achieved unless
    the terms name one."""
    a, b = (
        [str(path) for path in choose_summaries(fetched.local_words([word]), logs_dir)]
        for word in (baseline, run)
    )
    summaries = [read_summary(Path(path), follow_links=True) for path in (*a, *b)]
    if terms.metric is None:
        common = quality_metric(Sides(tuple(summaries), ()), terms)
        is_in_all = common is not None and all(common in each.metrics for each in summaries)
        terms = replace(terms, metric=common if is_in_all else None)
    comparison, _ = find_changes(a, b, logs_dir, terms)
    return Judged(comparison, terms.metric)


def promote(
    store: MlflowRuns,
    request: PromotionRequest,
    logs_dir: Path,
    judged: Judged | None,
    is_forced: bool,
    fetched: FetchedRuns,
    progress: Progress,
) -> Promotion:
    """Registers the checkpoint of a run; `judged` is its evidence.

    Raises UsageError where there is no checkpoint, or several and none was chosen.
    """
    if is_source_word(request.run):
        found = _at_server(store, request, fetched)
    else:
        found = _on_this_machine(store, request, logs_dir, progress)
    run_id, checkpoint = found.run_id, found.file
    tags = {ARTIFACT_TAG: checkpoint.name, "traceml.run": found.name, **_content_tags(checkpoint)}
    text = f"{checkpoint.name} of the run {found.name}."
    if judged is not None:
        report = comparison_text(judged.comparison)
        evidence = {
            "comparison.txt": report,
            "comparison.json": to_json(judged.comparison).decode(),
        }
        base = re.sub(r"[^\w.-]+", "_", f"{request.model}_against_{judged.comparison.a}")
        tags |= _verdict_tags(judged, is_forced)
        tags["traceml.evidence"] = attach_evidence(store.server, run_id, base, evidence)
        text = f"{text} Compared with {judged.comparison.a}:\n\n```text\n{report}\n```"
    registered = register(
        store.server, request.model, run_id, checkpoint, tags, text, request.alias
    )
    return Promotion(registered, checkpoint, found.choice, found.sent)


def _content_tags(checkpoint: ModelFile) -> dict[str, str]:
    known = {HASH_TAG: checkpoint.sha256, "traceml.size_bytes": checkpoint.size_bytes}
    return {name: str(value) for name, value in known.items() if value is not None}


def _verdict_tags(judged: Judged, is_forced: bool) -> dict[str, str]:
    verdict = judged.comparison.verdict
    return {
        "traceml.verdict": judged.status,
        "traceml.why": verdict.why[:_MAX_WHY_CHARS],
        "traceml.metric": judged.metric or "step_time",
        "traceml.baseline": judged.comparison.a,
        "traceml.forced": str(is_forced and judged.is_worse).lower(),
    }


@dataclass(frozen=True, slots=True)
class _PromotedRun:
    """A run at the server, and its file that is to be registered."""

    run_id: str
    name: str
    file: ModelFile
    choice: str
    sent: Sent | None = None


def _on_this_machine(
    store: MlflowRuns, request: PromotionRequest, logs_dir: Path, progress: Progress
) -> _PromotedRun:
    """Chooses a checkpoint before anything is sent, then sends the run."""
    path = locate(request.run, logs_dir).absolute()
    summary = read_summary(path, follow_links=True)
    chosen, choice = _chosen(_logged(summary), request)
    artifact = summary.artifacts[chosen.name]
    _refuse_missing(path.parent, chosen.name, artifact)
    sent = push_run(store, path, request.experiment, progress=progress)
    there = artifact_there(store.server, sent.run_id, f"{FOLDER}/{artifact.stored}")
    is_whole = there is not None and there.size_bytes in (None, artifact.size_bytes)
    if not is_whole and artifact.kind != ArtifactKind.FOLDER.value:
        found = "; ".join(sent.problems) or "it is not at the server, or not whole"
        raise UsageError(
            f"{printable(chosen.name)} could not be sent: {found}; nothing was registered: fix "
            "that, and promote again"
        )
    return _PromotedRun(sent.run_id, path.parent.name, chosen, choice, sent)


def _at_server(store: MlflowRuns, request: PromotionRequest, fetched: FetchedRuns) -> _PromotedRun:
    """Chooses a checkpoint of a run that is at the server."""
    if not request.run.startswith(SCHEME):
        raise UsageError(
            f"{printable(request.run)} has no checkpoint that MLflow could register; expected a "
            "run on this machine, or mlflow:RUN_ID"
        )
    uri, word = split_address(request.run)
    if uri is not None and uri != store.server.uri.rstrip("/"):
        raise UsageError(
            f"the run is at {printable(uri)} and the model at {store.server.shown}: a registry "
            "takes runs of its own server; push the run there first"
        )
    run = store.find(word)
    run_id, name = run.info.run_id, run.info.run_name or run.info.run_id
    if RUN_ID_TAG in run.data.tags:
        (path,) = fetched.local_words([request.run])
        return _PromotedRun(run_id, name, *_chosen(_logged(read_summary(Path(path))), request))
    if request.artifact is not None:
        found = artifact_there(store.server, run_id, request.artifact)
        known = {} if found is None else {found.name: found}
    else:
        known = checkpoints_there(store.server, run_id)
    return _PromotedRun(run_id, name, *_chosen(known, request))


def _logged(summary: Summary) -> dict[str, ModelFile]:
    """Returns the kept artifacts of a run of TraceML's, by name."""
    found: dict[str, ModelFile] = {}
    for name, artifact in summary.artifacts.items():
        inside = safe_relative(artifact.stored) if artifact.stored else None
        if inside is not None:
            source = f"{FOLDER}/{inside.parent.as_posix()}"  # a folder with this one file
            is_model = artifact.kind == ArtifactKind.CHECKPOINT.value
            found[name] = ModelFile(name, source, artifact.size_bytes, artifact.sha256, is_model)
    return found


def _chosen(known: Mapping[str, ModelFile], request: PromotionRequest) -> tuple[ModelFile, str]:
    """Returns the artifact that was asked for, or the only checkpoint, and why that one."""
    models = [name for name, each in known.items() if each.is_model]
    shown = printable(request.run)
    if request.artifact is not None:
        if request.artifact not in known:
            raise UsageError(
                f"{shown} kept no artifact {request.artifact!r}"
                f"{did_you_mean(request.artifact, known)}; it has: "
                f"{printable(', '.join(known)) or 'none'}"
            )
        return known[request.artifact], "as asked"
    if not models:
        raise UsageError(
            f"{shown} kept no checkpoint; log one with traceml.log_artifact(path), or name another "
            f"artifact with --artifact (it has: {printable(', '.join(known)) or 'none'})"
        )
    if len(models) > 1:
        raise UsageError(
            f"{shown} has {len(models)} checkpoints: {printable(', '.join(models[:20]))}; choose "
            f"one, such as --artifact {printable(models[-1])}"
        )
    return known[models[0]], "its only checkpoint"


def _refuse_missing(folder: Path, name: str, artifact: ArtifactSummary) -> None:
    """Raises UsageError where the kept copy is not what was logged."""
    path = folder / (artifact.stored or "")
    found = stat_regular(path)
    is_folder = artifact.kind == ArtifactKind.FOLDER.value
    if is_folder and path.is_dir():
        return
    if found is None or artifact.size_bytes not in (None, found.st_size):
        raise UsageError(
            f"{printable(name)} cannot be registered: {path} was removed or changed since it was "
            "logged; restore it, or choose another one with --artifact"
        )
