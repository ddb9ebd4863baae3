"""Three or more runs: tables, tests against the baseline, cost to reach a value, trade-offs."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from msgspec import structs
from scipy import stats

from compared_runs import run
from traceml.compare.cost_and_quality import first_reached_s, gpus_of, pareto_front
from traceml.compare.many_record import Cost, ManyComparison, RunEntry
from traceml.compare.many_runs import Candidate, compare_many, label_of
from traceml.compare.record import to_json
from traceml.compare.statistics import holm
from traceml.compare.terms import Terms
from traceml.model.errors import UsageError
from traceml.model.lineage import Command, Lineage
from traceml.summaries.record import Summary
from traceml.text.many_runs import WIDTH, many_text


def trained(
    loss: float | None,
    params: dict[str, Any],
    step_ms: float = 100.0,
    curve: list[tuple[float, float]] | None = None,
    **fields: Any,
) -> Candidate:
    metrics = {
        "val/loss": {"count": 3, "last": loss, "last_step": 9},
        "lr": {"count": 1, "last": 1},
    }
    summary = run(
        {"step_time_ms": step_ms},
        metrics=metrics,
        params=params,
        **{"duration_s": 60.0, "primary_diagnosis": {"status": "BALANCED"}, **fields},
    )
    name = "-".join(str(value) for value in params.values())
    return Candidate(name, summary, {"val/loss": curve} if curve else {})


def sweep(seeds: int = 3) -> list[Candidate]:
    """Two learning rates × two widths × seeds; the rate makes the loss 0.1 worse, width nothing."""
    chance = random.Random(5)
    return [
        trained(
            1.0 + (0.1 if lr == 0.2 else 0.0) + chance.gauss(0, 0.005),
            {"lr": lr, "width": width, "seed": seed},
        )
        for lr in (0.1, 0.2)
        for width in (8, 16)
        for seed in range(seeds)
    ]


def test_seeds_are_taken_together_and_only_what_differs_is_listed() -> None:
    found = compare_many(sweep())
    assert [entry.label for entry in found.entries] == ["A", "B", "C", "D"]
    assert {len(entry.runs) for entry in found.entries} == {3}
    assert found.parameters == {
        "lr": {"A": 0.1, "B": 0.1, "C": 0.2, "D": 0.2},
        "width": {"A": 8, "B": 16, "C": 8, "D": 16},
    }


def test_metrics_are_tested_against_the_baseline_and_corrected_by_holm() -> None:
    runs = sweep()
    found = compare_many(runs)
    groups = [runs[place : place + 3] for place in range(0, 12, 3)]
    losses = [[each.summary.metrics["val/loss"].last or math.nan for each in g] for g in groups]
    raw = {
        label: float(stats.ttest_rel(values, losses[0]).pvalue)  # paired by seed
        for label, values in zip("BCD", losses[1:], strict=True)
    }
    changes = found.metrics["val/loss"].changes
    assert {label: changes[label].p for label in "BCD"} == pytest.approx(holm(raw), rel=1e-6)
    assert (changes["B"].significant, changes["C"].significant) == (False, True)
    assert changes["A"].lhs == pytest.approx(sum(losses[0]) / 3)


def test_one_parameter_at_a_time_pools_all_pairs_that_differ_in_it_alone() -> None:
    runs = sweep()
    effects = {effect.param: effect for effect in compare_many(runs).effects}
    assert set(effects) == {"lr", "width"}
    lr = effects["lr"]
    assert (lr.lhs_value, lr.rhs_value, lr.pairs) == (0.1, 0.2, 6)
    change = lr.changes["val/loss"]
    assert change.delta == pytest.approx(0.1, abs=0.02) and change.significant
    value = [each.summary.metrics["val/loss"].last or math.nan for each in runs]
    raw = stats.ttest_rel(value[6:], value[:6])
    assert change.interval is not None
    assert change.interval == pytest.approx(tuple(raw.confidence_interval(0.95)), rel=0.01)
    assert effects["width"].changes["val/loss"].significant is False


def test_without_seeds_an_effect_has_no_test() -> None:
    runs = [trained(1.0, {"lr": 0.1}), trained(1.2, {"lr": 0.2}), trained(1.3, {"lr": 0.4})]
    effects = compare_many(runs).effects
    values = [(each.lhs_value, each.rhs_value) for each in effects]
    assert values == [(0.1, 0.2), (0.1, 0.4), (0.2, 0.4)]
    assert effects[0].changes["val/loss"].p is None
    assert effects[0].changes["val/loss"].pct_change == pytest.approx(20.0)


def test_effects_are_found_where_the_baseline_is_not_among_the_runs() -> None:
    """Widths were tried at another rate than the baseline's, and in another order each time."""
    runs = [trained(1.0, {"lr": 0.1, "width": 8})]
    runs += [trained(2.0 + w / 100, {"lr": 0.2, "width": w}) for w in (32, 16)]
    runs += [trained(3.0 + w / 100, {"lr": 0.3, "width": w}) for w in (16, 32)]
    effects = compare_many(runs).effects
    found = {(each.param, each.lhs_value, each.rhs_value): each.pairs for each in effects}
    assert found == {("lr", 0.2, 0.3): 2, ("width", 16, 32): 2}
    (width,) = (each for each in effects if each.param == "width")
    assert width.changes["val/loss"].delta == pytest.approx(0.16)


def test_of_many_values_each_is_compared_with_the_baselines_and_its_neighbours() -> None:
    runs = [trained(1.0 + n / 10, {"lr": n}) for n in (3, *range(3), *range(4, 12))]
    values = [(each.lhs_value, each.rhs_value) for each in compare_many(runs).effects]
    assert values[:11] == [(3, n) for n in (*range(3), *range(4, 12))]
    others = [*range(3), *range(4, 12)]
    assert values[11:] == list(itertools.pairwise(others))


def of_code(version: str, loss: float, params: dict[str, object]) -> Candidate:
    made = trained(loss, params)
    command = Command(script="train.py", script_sha256=version)
    summary = structs.replace(made.summary, lineage=Lineage(command=command))
    return Candidate(made.name, summary)


def test_pairs_that_an_edit_of_the_code_keeps_apart_are_told_and_can_be_counted() -> None:
    """An uncommitted edit in the middle of a sweep left no effects, and nothing said so."""
    runs = [
        of_code("before" if lr < 0.2 else "after", 1.0 + lr, {"lr": lr, "seed": seed})
        for lr in (0.1, 0.2)
        for seed in range(3)
    ]
    found = compare_many(runs)
    assert (found.effects, found.pairs_of_other_code) == ((), 3)
    text = " ".join(many_text(found).split())
    assert "Left out: 3 pairs of settings differ in one parameter and in the code" in text
    assert "--ignore code counts them" in text
    counted = compare_many(runs, ignored=("code",))
    assert [(each.param, each.pairs) for each in counted.effects] == [("lr", 3)]
    assert counted.pairs_of_other_code == 0
    assert "Left out" not in many_text(counted)


def test_the_same_sweep_with_two_versions_of_the_code_leaves_nothing_out() -> None:
    runs = [of_code(code, 1.0 + lr, {"lr": lr}) for code in "ab" for lr in (0.1, 0.2)]
    found = compare_many(runs)
    assert {(each.param, each.pairs) for each in found.effects} == {("lr", 2), ("code", 2)}
    assert found.pairs_of_other_code == 0


def test_a_parameter_to_ignore_that_no_run_has_is_an_error_with_the_near_one() -> None:
    with pytest.raises(UsageError, match=r"no run has the parameter 'widht' \(did you mean width"):
        compare_many(sweep(), ignored=("widht",))


def test_a_direction_is_not_said_of_a_metric_of_tracemls_own() -> None:
    runs = sweep()
    with pytest.raises(UsageError, match="lower is better: leave it out"):
        compare_many(runs, Terms(metric="step_time", higher_is_better=True))
    agreed = compare_many(runs, Terms(metric="step_time", higher_is_better=False))
    assert agreed.metrics["val/loss"].direction_from == "name"


def test_runs_of_one_seed_are_one_pair() -> None:
    """Four runs against one: that one was counted four times, and the effect called shown."""
    runs = [trained(1.0 + 0.01 * n, {"lr": 0.1, "seed": 1}) for n in range(4)]
    (effect,) = compare_many([*runs, trained(2.0, {"lr": 0.5, "seed": 1})]).effects
    assert effect.pairs == 1
    change = effect.changes["val/loss"]
    assert (change.lhs, change.rhs) == (pytest.approx(1.015), 2.0)
    assert change.p is None and not change.significant


def test_warnings_and_reasons_name_their_pair() -> None:
    runs = [trained(1.0, {"lr": lr}) for lr in (0.1, 0.2)]
    lost = Candidate("lost", run({}, metrics={"val/loss": {"count": 1, "last_step": 5}}))
    found = compare_many([*runs, lost], Terms(fail_on=("regression",)))
    assert any(each.startswith("A -> C: val/loss ended as NaN") for each in found.warnings)
    assert all(each.startswith("A -> ") for each in found.warnings)
    text = " ".join(many_text(found).split())
    assert "of 1 run of C" in text and "not measured in C" in text
    assert "Gate: FAILED (A -> C (step_time not measured); fails on regression)" in text


def alike(seed: int, groups: int = 12) -> list[Candidate]:
    chance = random.Random(seed)
    return [
        trained(1.0, {"lr": lr, "seed": run}, step_ms=100 * math.exp(chance.gauss(0, 0.05)))
        for lr in range(groups)
        for run in range(4)
    ]


def test_verdicts_are_corrected_for_the_number_of_groups() -> None:
    """Twelve equal groups: one of eleven comparisons by itself is soon a regression by chance."""
    lost = []
    for seed in range(5):
        found = compare_many(alike(seed), Terms(fail_on=("regression",))).comparisons
        raw = {place: each.verdict.p or 0.0 for place, each in enumerate(found)}
        for place, p in holm(raw).items():
            is_changed = found[place].verdict.status in ("REGRESSION", "IMPROVEMENT")
            assert is_changed == (p < 0.05)
            lost += [found[place]] if raw[place] < 0.05 <= p else []
    assert len(lost) >= 3  # the groups are a test of something
    assert all("of 11 comparisons" in each.verdict.why for each in lost)
    assert not any(each.gate.failed for each in lost if each.gate)


def test_a_real_regression_among_equal_groups_stays_one() -> None:
    chance = random.Random(3)
    slow = [
        trained(1.0, {"lr": 99, "seed": run}, step_ms=200 * math.exp(chance.gauss(0, 0.05)))
        for run in range(4)
    ]
    found = compare_many([*alike(0), *slow], Terms(fail_on=("regression",)))
    last = found.comparisons[-1]
    assert last.verdict.status == "REGRESSION" and last.gate is not None and last.gate.failed


@pytest.mark.slow
def test_false_effects_stay_at_their_rate() -> None:
    """Of 200 sweeps in which no parameter does anything, at most 5 % name one, give or take."""
    chance = random.Random(99)
    wrong = 0
    for _ in range(200):
        runs = [
            trained(chance.gauss(1.0, 0.1), {"a": a, "b": b, "seed": seed})
            for a in (0, 1)
            for b in (0, 1)
            for seed in range(3)
        ]
        effects = compare_many(runs).effects
        wrong += any(effect.changes["val/loss"].significant for effect in effects)
    assert wrong <= stats.binom.ppf(0.999, 200, 0.05)


def test_the_cost_to_reach_the_baselines_value() -> None:
    gpus = {"meta": {"gpus_observed": 4, "world_size": 2}}
    power = {"system": {"global": {"average": {"gpu_power_w": 500.0}}}}
    curves = [[(10.0, 2.0), (3600.0, 1.0)], [(10.0, 2.0), (1800.0, 0.9)], [(10.0, 2.0)]]
    runs = [
        trained(loss, {"lr": place}, curve=curve, **gpus, **power)
        for place, (loss, curve) in enumerate(zip((1.0, 0.9, 2.0), curves, strict=True))
    ]
    found = compare_many(runs).to_reach
    assert found is not None and (found.target, found.target_from) == (1.0, "baseline")
    assert found.costs == {"A": Cost(3600.0, 2.0, 1.0), "B": Cost(1800.0, 1.0, 0.5), "C": None}
    assert found.reached == {"A": (1, 1), "B": (1, 1), "C": (0, 1)}
    asked = compare_many(runs, target=1.5).to_reach
    assert asked is not None and asked.target_from == "user"
    text = many_text(compare_many(runs))
    assert "Cost to reach val/loss ≤ 1, the last value of A:" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  B: 1 ") and "kWh" in line]
    assert line.split() == ["B:", "1", "30", "min", "1", "h", "0.5", "kWh"]


def test_a_value_is_reached_when_it_is_first_passed() -> None:
    curve = [(1.0, 0.5), (2.0, 0.7), (3.0, 0.6), (4.0, 0.9)]
    assert first_reached_s(curve, 0.65, higher_is_better=True) == 2.0
    assert first_reached_s(curve, 0.5, higher_is_better=False) == 1.0
    assert first_reached_s(curve, 0.95, higher_is_better=True) is None


def test_a_run_without_a_gpu_has_no_gpu_hours() -> None:
    assert gpus_of(run(meta={"gpus_observed": 0, "world_size": 2})) is None
    assert gpus_of(run(meta={"gpus_observed": 8, "world_size": 2})) == 2


def test_the_front_holds_what_nothing_beats() -> None:
    entries = [
        RunEntry(label=label, name=label, runs=(label,), duration_s=cost)
        for label, cost in zip("ABCDE", (10.0, 20.0, 20.0, 5.0, None), strict=True)
    ]
    quality = {"A": 0.8, "B": 0.9, "C": 0.7, "D": 0.8, "E": 1.0}
    found = pareto_front("accuracy", quality, True, entries)
    assert found is not None and found.cost == "duration_s"
    assert found.front == ("B", "D")
    assert found.dominated_by == {"A": "D", "C": "B"}


def test_equals_do_not_beat_each_other() -> None:
    entries = [RunEntry(label=x, name=x, runs=(x,), duration_s=1.0) for x in "AB"]
    found = pareto_front("loss", {"A": 1.0, "B": 1.0}, False, entries)
    assert found is not None and found.front == ("A", "B")


def test_a_user_names_the_metric_and_its_direction() -> None:
    runs = [trained(1.0, {"x": place}, curve=[(1.0, 1.0)]) for place in range(3)]
    found = compare_many(runs, Terms(metric="lr", higher_is_better=True))
    assert found.pareto is not None and found.pareto.metric == "lr"
    row = found.metrics["lr"]
    assert (row.higher_is_better, row.direction_from) == (True, "user")


def test_no_metric_no_value_to_reach() -> None:
    runs = [Candidate(str(place), run({"step_time_ms": 1.0})) for place in range(3)]
    with pytest.raises(UsageError, match="--metric"):
        compare_many(runs, target=1.0)
    found = compare_many(runs)
    assert found.to_reach is None and found.pareto is None and found.effects == ()


def hostile() -> ManyComparison:
    params = {f"p{number}" + "x" * 80: "v\x1b[31m\n" * 20 for number in range(15)}
    runs = []
    for place in range(30):
        summary: Summary = run(
            {"step_time_ms": 1e9 * (place + 1)},
            params={**params, "unicode 学": place},
            metrics={
                f"m\n{number}/" + "loss" * 40: {"count": 1, "last": last}
                for number, last in enumerate((1e308, -1e308, None, 0.0, 1e-300))
            },
        )
        runs.append(Candidate("run\x1b" * 40 + str(place), summary))
    return compare_many(runs)


def test_hostile_names_and_extreme_numbers_stay_in_their_lines() -> None:
    found = hostile()
    text = many_text(found)
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert "\x1b" not in text
    assert b"Infinity" not in to_json(found) and b"NaN" not in to_json(found)


def test_labels_go_on_after_z() -> None:
    assert [label_of(number) for number in (0, 25, 26, 27, 51, 52)] == [
        *("A", "Z", "AA", "AB", "AZ", "BA")
    ]


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        pytest.param((0.5, 0.3, 0.4), "0.3 with lr 2 (B); next: 0.4 with lr 3 (C).", id="best"),
        pytest.param((0.5, 0.4, 0.4), "0.4 with lr 2 (B); as good: 0.4 with lr 3 (C).", id="tied"),
        pytest.param((0.5, None, 0.4), "0.4 with lr 3 (C); next: 0.5 with lr 1 (A).", id="NaN"),
    ],
)
def test_the_first_line_says_which_setting_was_best(
    losses: tuple[float | None, ...], said: str
) -> None:
    runs = [trained(loss, {"lr": lr}) for lr, loss in enumerate(losses, start=1)]
    assert many_text(compare_many(runs)).startswith(f"Best val/loss: {said}\n\n3 runs, ")


def test_without_a_direction_nothing_is_called_the_best() -> None:
    runs = [
        Candidate(name, run({"step_time_ms": 1.0}, metrics={"x": {"count": 1, "last": 1.0}}))
        for name in "abc"
    ]
    assert many_text(compare_many(runs)).startswith("3 runs, compared with A:")


def test_a_warning_says_which_of_the_runs_it_is_about() -> None:
    runs = [
        trained(0.5, {"lr": 1}, meta={"world_size": 1}),
        trained(0.5, {"lr": 2}, meta={"world_size": 1}, exit_status=1),
        trained(0.5, {"lr": 3}, meta={"world_size": 4}),
        trained(0.5, {"lr": 4}, meta={"world_size": 4}, exit_status=1),
    ]
    assert compare_many(runs).warnings == (
        "A -> B: Not every run of B ended well; see its own summary.",
        "A -> C, D: World size differs: 1 -> 4.",
        "A -> D: Not every run of D ended well; see its own summary.",
    )
    assert compare_many([runs[0], runs[2], runs[3]]).warnings[0] == "World size differs: 1 -> 4."


def test_of_many_warnings_the_text_has_a_few() -> None:
    runs = [trained(0.5, {"lr": lr}, exit_status=int(lr > 0)) for lr in range(8)]
    found = compare_many(runs)
    text = many_text(found)
    assert len(found.warnings) == 7
    assert text.count("ended well") == 4
    assert "… and 3 more warnings about pairs of runs, in the JSON file" in text


def test_what_beats_several_is_named_once() -> None:
    runs = [trained(loss, {"lr": loss}, duration_s=60 * loss) for loss in (1.0, 2.0, 3.0)]
    said = " ".join(many_text(compare_many(runs)).split())
    assert "Not among them: B, C (A is at least as good and as cheap)." in said


def test_what_mattered_is_in_the_text_and_the_document() -> None:
    chance = random.Random(3)
    runs = [
        trained(1.0 + place / 10, {"lr": place, "width": chance.choice((8, 16)), "seed": place})
        for place in range(12)
    ]
    found = compare_many(runs)
    assert found.what_mattered is not None
    assert [each.name for each in found.what_mattered.parameters if each.matters] == ["lr"]
    assert b'"what_mattered"' in to_json(found)
    text = many_text(found)
    assert "What mattered for val/loss (12 settings):" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_few_settings_get_no_paragraph_about_what_mattered() -> None:
    found = compare_many(sweep())
    assert found.what_mattered is not None and "too few" in found.what_mattered.warnings[0]
    assert "What mattered" not in many_text(found)
