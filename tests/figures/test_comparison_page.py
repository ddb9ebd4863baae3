"""A comparison's page says what the text says, and its waterfall sums exactly."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compared_runs import run, runs
from factories import make_run, make_waiting
from traceml.compare.pair import compare, compare_groups
from traceml.compare.paired_samples import compare_samples
from traceml.compare.record import Comparison
from traceml.figures.comparison_page import comparison_page
from traceml.figures.page import ComparisonPage, Table, Tile, Waterfall
from traceml.store.logged_samples import ScoredSamples
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.record import Summary

SLOW, FAST = make_run(input_ms=80, workers=0), make_run()


def compared(a: RunRecords, b: RunRecords) -> Comparison:
    return compare(build(a, 0.0, "0"), build(b, 0.0, "0"), ("slow", "fast"))


def page(a: RunRecords = SLOW, b: RunRecords = FAST) -> ComparisonPage:
    return comparison_page(compared(a, b))


def table(found: ComparisonPage, name: str) -> Table:
    (chosen,) = [each for part in found.parts for each in part.tables if each.id == name]
    return chosen


def figure(found: ComparisonPage, name: str) -> Any:
    (chosen,) = [each for part in found.parts for each in part.figures if each.id == name]
    return chosen


def test_the_page_opens_with_the_legend_and_the_verdict() -> None:
    found = page()
    assert found.legend == ("A: slow", "B: fast", "Format: A -> B | delta = B - A")
    assert (found.verdict.status, found.verdict.severity) == ("IMPROVEMENT", "good")
    assert found.diagnosis == "INPUT-BOUND → COMPUTE-BOUND"
    assert found.verdict.next is not None and found.verdict.next.startswith("B is COMPUTE-BOUND")


@pytest.mark.parametrize(
    ("a", "b", "status", "tone"),
    [
        (FAST, SLOW, "REGRESSION", "crit"),
        (FAST, FAST, "NO CHANGE", "info"),
        (make_run(input_ms=None, forward_ms=None, steps=0), FAST, "INCONCLUSIVE", "warn"),
    ],
    ids=["slower", "the same run", "nothing measured"],
)
def test_the_verdict_has_a_tone(a: RunRecords, b: RunRecords, status: str, tone: str) -> None:
    found = page(a, b)
    assert (found.verdict.status, found.verdict.severity) == (status, tone)


def test_memory_against_time_is_a_warning() -> None:
    a, b = run({"step_time_ms": 100.0}, 1e9), run({"step_time_ms": 10.0}, 9e9)
    assert comparison_page(compare(a, b, ("a", "b"))).verdict.severity == "warn"


def test_the_table_is_that_of_the_text() -> None:
    found = table(page(), "changes-table")
    assert found.columns == ("", "A", "B", "Delta", "95% CI")
    rows = {row.cells[0].strip(): row.cells[1:4] for row in found.rows}
    assert rows["Total step"][:2] == ("116.0 ms", "37.0 ms")
    assert rows["Input"] == ("80.0 ms", "1.0 ms", "-79.0 ms (-98.8%)")


def test_tiles_say_the_unit_once() -> None:
    (step, *_) = page().parts[0].tiles
    assert step == Tile("Step time", "116.0 → 37.0 ms", note="-79.0 ms (-68.1%)")


def test_a_change_that_the_runs_show_has_a_colour() -> None:
    slower = compare_groups(runs([10, 10.1, 9.9]), runs([20, 20.1, 19.9]), ("a", "b"))
    (step, *_) = comparison_page(slower).parts[0].tiles
    assert step.tone == "crit"


def test_the_waterfall_leads_from_a_to_b() -> None:
    drawn: Waterfall = figure(page(), "waterfall")
    assert [change.name for change in drawn.changes if change.is_total] == ["A", "B"]
    moved = {change.name: change for change in drawn.changes if not change.is_total}
    assert moved["Input wait"].value == pytest.approx(-79, abs=0.2)
    assert moved["Input wait"].colour == "better"
    assert moved["Input wait"].text == "-79.0 ms"


parts_ms = st.floats(0, 1e5)


@given(st.tuples(*[parts_ms] * 5), st.tuples(*[parts_ms] * 5))
def test_the_waterfall_sums_exactly(a: tuple[float, ...], b: tuple[float, ...]) -> None:
    drawn = [each for part in _pair(a, b).parts for each in part.figures if each.id == "waterfall"]
    for waterfall in drawn:
        assert isinstance(waterfall, Waterfall)
        first, *moved, last = [change.value for change in waterfall.changes]
        assert first + sum(moved) == pytest.approx(last, abs=1e-6 * max(first, last, 1e-9))


def _pair(a: tuple[float, ...], b: tuple[float, ...]) -> ComparisonPage:
    return comparison_page(compare(_with(a), _with(b), ("a", "b")))


def _with(parts: tuple[float, ...]) -> Summary:
    names = ("input_wait_ms", "forward_ms", "backward_ms", "optimizer_ms")
    compute = sum(parts[1:4])
    return run(
        {
            **dict(zip(names, parts[:4], strict=True)),
            "compute_ms": compute,
            "residual_ms": parts[4],
            "step_time_ms": sum(parts),
            "traced_step_time_ms": compute + parts[4],
        }
    )


def test_both_steps_stand_beside_each_other() -> None:
    bars = figure(page(), "before-after")
    assert bars.categories == ("A: slow", "B: fast")
    assert [series.colour for series in bars.series][:2] == ["input", "forward"]
    assert bars.series[0].values == (pytest.approx(80, rel=0.01), pytest.approx(1, rel=0.01))


def test_phases_that_one_side_did_not_tell_apart_are_compute_on_both() -> None:
    a = run({"step_time_ms": 50.0, "compute_ms": 40.0, "forward_ms": 10.0})
    bars = figure(comparison_page(compare(a, build(FAST, 0.0, "0"), ("a", "b"))), "before-after")
    assert [series.name for series in bars.series] == ["Input wait", "Rest", "Compute"]


def test_a_straggler_that_came_is_told() -> None:
    ranks = make_run(ranks=4, communication_ms=1)
    slow = make_waiting(make_run(ranks=4, communication_ms=1, slow_rank=2))
    rows = table(page(ranks, slow), "rank-changes-table").rows
    assert [row.cells for row in rows] == [("New in B", "COMPUTE STRAGGLER", "2")]
    assert rows[0].tone == "warn"


def test_what_is_different_about_the_runs_is_told_by_group() -> None:
    a, b = (run({"step_time_ms": 10.0}, params={"lr": lr, "tricky": "\x1b["}) for lr in (0.1, 0.2))
    found = table(comparison_page(compare(a, b, ("a", "b"))), "different-params")
    assert found.title == "Parameters"
    assert [row.cells for row in found.rows] == [("lr", "0.1", "0.2")]


def test_warnings_and_noise_are_notes() -> None:
    notes = page(make_run(ranks=2), make_run(ranks=4)).notes
    assert any(note.startswith("Noise: ") for note in notes)
    assert "World size differs: 2 -> 4." in notes


def test_nothing_in_common_is_still_a_page() -> None:
    found = comparison_page(compare(Summary(), Summary(), ("a", "b")))
    assert found.verdict.status in ("INCONCLUSIVE", "NO CHANGE")
    assert found.parts == () or all(part.tables or part.tiles or part.note for part in found.parts)


def test_logged_metrics_are_a_part_of_the_page() -> None:
    def logging(loss: float) -> Summary:
        metrics = {"val/loss": {"count": 3, "last": loss}, "lr": {"count": 3, "last": loss / 10}}
        return run({"step_time_ms": 100.0}, metrics=metrics)

    page = comparison_page(compare(logging(0.5), logging(0.52), ("a", "b")))
    (part,) = [part for part in page.parts if part.id == "logged"]
    (table,) = part.tables
    assert [row.cells[0] for row in table.rows] == ["val/loss", "lr"]
    assert table.rows[0].cells[1:4] == ("0.5", "0.52", "+0.02 (+4.0%, worse)")
    assert "guessed" in (part.note or "")
    (changes,) = [part for part in page.parts if part.id == "changes"]
    assert all("loss" not in row.cells[0] for table in changes.tables for row in table.rows)


def test_single_examples_are_a_part_of_the_page() -> None:
    def scored(shift: int) -> ScoredSamples:
        scores = {str(n): float((n + shift) % 4 > 0) for n in range(80)}
        return ScoredSamples({"correct": scores}, {str(n): "ab"[n % 2] for n in range(80)})

    same = compare(run({"step_time_ms": 1.0}), run({"step_time_ms": 1.0}), ("a", "b"))
    found = same.with_samples({"test": compare_samples(scored(0), scored(1))})
    (part,) = [part for part in comparison_page(found).parts if part.id == "samples-0"]
    (table,) = part.tables
    assert part.title == "On the same 80 samples: test"
    assert part.is_wide, "its seven columns do not fit in half a page"
    assert [row.cells[0].strip() for row in table.rows] == ["correct", "a", "b"]
    assert table.rows[0].cells[1:5] == ("80", "0.75", "0.75", "+0")


def test_segments_follow_their_metric_and_thousands_only_where_they_changed() -> None:
    def logged(dog: float, odd: float) -> Summary:
        values = {"accuracy": 0.9, "accuracy[cat]": 0.9, "accuracy[dog]": dog}
        values |= {f"recall[{n}]": 0.5 for n in range(100)} | {"recall[77]": odd}
        metrics = {name: {"count": 1, "last": value} for name, value in values.items()}
        return run({"step_time_ms": 100.0}, metrics=metrics)

    found = comparison_page(compare(logged(0.8, 0.5), logged(0.7, 0.6), ("a", "b")))
    labels = [row.cells[0] for row in table(found, "logged-table").rows]
    expected = ["accuracy", "\xa0\xa0accuracy[dog]", "\xa0\xa0accuracy[cat]", "recall[77]"]
    assert labels == expected
    (part,) = [each for each in found.parts if each.id == "logged"]
    assert part.note is not None and "accuracy by segment: 0 better, 1 worse (dog)" in part.note
