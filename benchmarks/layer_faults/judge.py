"""Holds what a summary says of a run's layers against what was planted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.judge import all_findings
from benchmarks.layer_faults.catalog import Question, Truth

Json = Mapping[str, Any]
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Said:
    """What a summary names; `None` is not said."""

    layer: str | None
    phase: str | None = None
    step: int | None = None
    after_step: int | None = None
    """The step after which it happened, where only that and `step` are known."""


@dataclass(frozen=True, slots=True)
class LayerVerdict:
    """Whether a run was judged rightly, and why not."""

    is_right: bool
    said: str
    reason: str = ""


def judge(truth: Truth, summary: Json | None) -> LayerVerdict:
    """The verdict on one run."""
    said = None if summary is None else _ASKED[truth.question](summary)
    if said is None:
        return LayerVerdict(False, NOTHING, "no summary" if summary is None else "nothing was said")
    words = " ".join(str(each) for each in (said.layer, said.phase, said.step) if each is not None)
    return LayerVerdict(not (why := "; ".join(_wrong(truth, said))), words or "no layer", why)


def _wrong(truth: Truth, said: Said) -> Iterator[str]:
    if said.layer != truth.layer:
        yield f"the layer is {truth.layer or 'none'}"
    if truth.phase is not None and said.phase != truth.phase:
        yield f"the phase is {truth.phase}"
    if truth.step is not None and said.step is not None:
        first = said.step if said.after_step is None else said.after_step + 1
        if not first <= truth.step <= said.step:
            yield f"the step is {truth.step}"
    if truth.step is not None and said.step is None:
        yield "no step was said"


def _layers(summary: Json) -> Json:
    return (summary.get("layers") or {}).get("layers") or {}


def _slowest(summary: Json) -> Said | None:
    times = {
        (name, phase): layer.get(f"{phase}_ms") or 0.0
        for name, layer in _layers(summary).items()
        for phase in ("forward", "backward")
    }
    largest = max(times, key=lambda key: times[key], default=None)
    return None if largest is None else Said(*largest)


def _heaviest(summary: Json) -> Said | None:
    saved = {name: layer.get("saved_bytes") or 0 for name, layer in _layers(summary).items()}
    return Said(max(saved, key=lambda name: saved[name])) if any(saved.values()) else None


def _evidence(summary: Json, *kinds: str) -> Json | None:
    for finding in all_findings(summary):
        if finding.get("kind") in kinds and finding.get("evidence") is not None:
            evidence: Json = finding["evidence"]
            return evidence
    return None


def _growing(summary: Json) -> Said | None:
    found = _evidence(summary, "CREEP_CONFIRMED", "CREEP_EARLY")
    return None if found is None else Said(found.get("module"))


def _bad_value(summary: Json) -> Said | None:
    found = _evidence(summary, "NON_FINITE_LOSS", "EXPLODING_GRADIENTS")
    if found is None:
        return None
    return Said(
        found.get("bad_layer"),
        found.get("bad_phase"),
        found.get("bad_step"),
        found.get("bad_after_step"),
    )


def _exploded(summary: Json) -> Said | None:
    found = _evidence(summary, "EXPLODING_GRADIENTS")
    return None if found is None else Said(found.get("layer"))


def _failed(summary: Json) -> Said | None:
    failure = summary.get("failure")
    if not failure or failure.get("kind") != "OUT_OF_MEMORY":
        return None
    return Said(failure.get("module"), failure.get("phase"), failure.get("step"))


_ASKED = {
    Question.SLOW: _slowest,
    Question.HEAVY: _heaviest,
    Question.LEAK: _growing,
    Question.BAD_VALUE: _bad_value,
    Question.EXPLOSION: _exploded,
    Question.FAILURE: _failed,
}
