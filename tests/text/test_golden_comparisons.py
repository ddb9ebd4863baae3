"""Whole outputs, kept: whoever changes one sees what users will see.

`PYTHONPATH=tests python tests/text/test_golden_comparisons.py` writes them again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compared_runs import run
from traceml.compare.pair import compare, compare_groups
from traceml.compare.record import Comparison, to_json
from traceml.compare.terms import Terms
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary
from traceml.text.comparison import WIDTH, comparison_text
from traceml.text.markdown import comparison_markdown

DATA = Path(__file__).parents[1] / "data"
GOLDEN = DATA / "compare"


def kept(folder: str, name: str) -> Summary:
    return read_summary(DATA / folder / f"{name}.json")


def seed() -> Comparison:
    names = ("compare_slow", "compare_fast")
    return compare(kept("seed", names[0]), kept("seed", names[1]), names)


def peer() -> Comparison:
    names = ("slow_input_cpu", "fast_input_cpu")
    return compare(kept("peer", names[0]), kept("peer", names[1]), names)


def peer_and_ours() -> Comparison:
    names = ("slow_input_cpu", "compare_fast")
    return compare(kept("peer", names[0]), kept("seed", names[1]), names)


def _member(name: str, number: int, factor: float, issues: list[dict[str, object]]) -> Summary:
    average: dict[str, float | None] = {
        "step_time_ms": 100.0 * factor,
        "traced_step_time_ms": 70.0 * factor,
        "input_wait_ms": 30.0 * factor,
        "forward_ms": 20.0,
        "backward_ms": 40.0 * factor,
        "optimizer_ms": 5.0,
        "compute_ms": 25.0 + 40.0 * factor,
    }
    return run(
        average,
        4e9 + number,
        meta={"run_name": f"{name}-{number}", "world_size": 8},
        params={"seed": number, "lr": 0.1 if name == "baseline" else 0.2},
        primary_diagnosis={"kind": "INPUT_BOUND", "status": "INPUT-BOUND"},
        step_time={"issues": issues},
    )


def groups() -> Comparison:
    straggler = {"kind": "INPUT_STRAGGLER", "status": "INPUT STRAGGLER", "ranks": [3]}
    a = [_member("baseline", n, factor, []) for n, factor in enumerate((1.0, 1.01, 0.99))]
    b = [_member("candidate", n, f, [straggler]) for n, f in enumerate((1.06, 1.08, 1.05))]
    terms = Terms(max_regression=0.03, fail_on=("regression",))
    return compare_groups(a, b, ("baseline-*", "candidate-*"), terms)


def _one(input_ms: float, forward_ms: float, swing: float) -> Summary:
    """A run that shows how its steps and their phases spread."""
    parts = {
        "input": input_ms,
        "h2d": 0.4,
        "forward": forward_ms,
        "backward": 20.0,
        "optimizer": 5.0,
        "residual": 0.6,
    }
    compute = forward_ms + 25.0
    average: dict[str, float | None] = {
        "step_time_ms": input_ms + compute + 1.0,
        "traced_step_time_ms": compute + 1.0,
        "input_wait_ms": input_ms,
        **{f"{name}_ms": part_ms for name, part_ms in parts.items() if name != "input"},
        "compute_ms": compute,
        "wait_ms": 1.0,
    }
    waves = {
        name: [part_ms * (1 + swing * math.sin(0.7 * block * (place + 2))) for block in range(64)]
        for place, (name, part_ms) in enumerate(parts.items())
    }
    totals = [sum(block) for block in zip(*waves.values(), strict=True)]
    steps = {"count": 640, "block_steps": 10, "block_means_ms": totals}
    diagnosis = {"kind": "INPUT_BOUND", "status": "INPUT-BOUND"}
    return run(average, steps={**steps, "part_block_means_ms": waves}, primary_diagnosis=diagnosis)


def one_each() -> Comparison:
    return compare(_one(30.0, 10.0, 0.1), _one(12.0, 10.5, 0.1), ("before", "after"))


def unclear() -> Comparison:
    a = [run({"step_time_ms": ms}) for ms in (100.0, 104.0, 97.0)]
    b = [run({"step_time_ms": ms}) for ms in (102.0, 105.0, 98.0)]
    return compare_groups(a, b, ("before+2", "after+2"))


COMPARISONS: tuple[Callable[[], Comparison], ...] = (
    *(seed, peer, peer_and_ours),
    *(one_each, groups, unclear),
)
FORMS: dict[str, Callable[[Comparison], str]] = {
    "txt": comparison_text,
    "json": lambda comparison: to_json(comparison).decode(),
    "md": comparison_markdown,
}


def outputs() -> Iterator[tuple[Path, str]]:
    for made in COMPARISONS:
        comparison = made()
        for ending, form in FORMS.items():
            yield GOLDEN / f"{made.__name__}.{ending}", form(comparison)


@pytest.mark.parametrize(
    ("path", "text"), list(outputs()), ids=lambda each: getattr(each, "name", "")
)
def test_the_output_is_the_one_kept(path: Path, text: str) -> None:
    if path.suffix == ".json":
        assert _rounded(json.loads(text)) == _rounded(json.loads(path.read_text()))
    else:
        assert text == path.read_text()


def _rounded(value: object) -> object:
    """The last digits of a float are the processor's."""
    if isinstance(value, float):
        return 0.0 if abs(value) < 1e-9 else float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("made", COMPARISONS, ids=lambda made: made.__name__)
def test_every_line_of_text_fits(made: Callable[[], Comparison]) -> None:
    assert max(map(len, comparison_text(made()).splitlines())) <= WIDTH


if __name__ == "__main__":
    for path, text in outputs():
        path.write_text(text)
