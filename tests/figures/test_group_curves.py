"""A metric's history by group: mean and range at common steps, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from listed_runs import list_run, metric
from traceml.api.explore_runs import explore_curves
from traceml.api.query_runs import RunSearch
from traceml.facts.curves_over_runs import common_steps, curve_over_runs
from traceml.facts.metric_history import no_history, thinned
from traceml.figures.exploration_record import GroupCurves
from traceml.figures.group_curves import GroupHistories, group_curves
from traceml.model.errors import UsageError


def history(steps: list[int], values: list[float]):
    return thinned("loss", np.array(steps), np.array(values))


def test_runs_are_averaged_at_common_steps_and_count_while_they_log() -> None:
    runs = [history([0, 10], [0.0, 10.0]), history([0, 5, 20], [2.0, 7.0, 7.0])]
    at = common_steps(runs)
    assert at.tolist() == [0, 5, 10, 20]
    curve = curve_over_runs(runs, at)
    assert curve.mean.tolist() == [1.0, 6.0, 8.5, 7.0]
    assert curve.low.tolist() == [0.0, 5.0, 7.0, 7.0]
    assert curve.high.tolist() == [2.0, 7.0, 10.0, 7.0]
    assert curve.runs == 2


def test_values_that_cannot_be_drawn_are_bridged() -> None:
    curve = curve_over_runs([history([0, 1, 2], [1.0, np.nan, 3.0])], np.array([0.0, 1.0, 2.0]))
    assert curve.mean.tolist() == [1.0, 2.0, 3.0]


def test_many_steps_become_few_with_both_ends() -> None:
    steps = list(range(900))
    at = common_steps([history(steps, [1.0] * 900)], max_points=100)
    assert (len(at), at[0], at[-1]) == (100, 0.0, 899.0)


def test_runs_without_a_history_have_no_points() -> None:
    curve = curve_over_runs([no_history("loss")], np.array([1.0]))
    assert (curve.runs, bool(np.isnan(curve.mean).all())) == (0, True)
    assert len(common_steps([])) == 0


def log_curve(folder: Path, values: list[float | str], rank: int = 0) -> None:
    lines = [
        json.dumps({"number": n, "kind": "metrics", "step": n * 10, "values": {"loss": value}})
        for n, value in enumerate(values)
    ]
    (folder / f"rank-{rank}-1.messages").write_text("\n".join(lines) + "\n")


def curves(logs: Path, **asked: str) -> GroupCurves:
    return explore_curves(RunSearch(logs), logs, "", **asked)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("logged")
    for number in range(4):
        lr = 0.1 if number < 2 else 0.01
        folder = list_run(logs, f"r{number}", {"lr": lr}, {"loss": metric(number)})
        log_curve(folder, [number + 4.0, number + 2.0, "nan", number + 1.0])
        log_curve(folder, [99.0], rank=1)
    list_run(logs, "silent", {"lr": 0.1}, {"loss": metric(1.0)})
    return logs


def test_each_group_is_a_line_with_a_band(logged: Path) -> None:
    found = curves(logged)
    assert found.lines is not None
    assert [one.name for one in found.lines.series] == ["0.01 (2 runs)", "0.1 (2 runs)"]
    small, large = found.lines.series
    assert found.lines.at == (0.0, 10.0, 30.0)
    assert (small.values, large.values) == ((6.5, 4.5, 3.5), (4.5, 2.5, 1.5))
    assert (large.low, large.high) == ((4.0, 2.0, 1.0), (5.0, 3.0, 2.0))
    assert found.notes == (
        "1 run kept no history of it.",
        "4 values that are NaN, infinite or beyond ±1e300 are not drawn.",
    )


def test_a_band_can_be_the_interval_of_the_mean(logged: Path) -> None:
    found = curves(logged, band="interval")
    assert found.lines is not None and found.band == "interval"
    assert found.lines.band == "95 % interval"
    large = found.lines.series[1]
    assert large.low is not None and large.high is not None
    # Of 4 and 5: 4.5 ± 12.706 · 0.7071 / √2.
    assert (large.low[0], large.high[0]) == pytest.approx((-1.853, 10.85), rel=1e-3)
    with pytest.raises(UsageError, match="is no band"):
        curves(logged, band="wide")


def test_the_interval_of_one_run_is_not_known() -> None:
    one = GroupHistories("a", 1, [history([0, 1], [1.0, 2.0])])
    found = group_curves("loss", [one], 1, None, "interval")
    assert found.lines is not None and found.lines.series[0].low == (None, None)


def test_of_many_groups_the_largest_are_drawn(tmp_path) -> None:
    for number in range(12):
        folder = list_run(
            tmp_path, f"r{number}", {"k": number // 2 + 10 * (number > 9)}, {"loss": metric(1)}
        )
        log_curve(folder, [1.0, 2.0])
    for number in range(6):
        folder = list_run(tmp_path, f"s{number}", {"k": 100 + number}, {"loss": metric(1)})
        log_curve(folder, [1.0, 2.0])
    found = curves(tmp_path, group="params.k")
    assert found.lines is not None and len(found.lines.series) == 8
    assert found.notes[0] == "The 8 largest of 12 groups are drawn."


def test_what_has_no_history_says_so(logged: Path) -> None:
    assert curves(logged, metric="duration_s") == GroupCurves(None, ("duration_s has no history.",))


def test_nothing_logged_says_what_to_log(tmp_path) -> None:
    list_run(tmp_path, "a", {}, {"loss": metric(1.0)})
    found = curves(tmp_path)
    assert found.lines is None
    assert "traceml.log_metrics" in found.notes[0]
