"""Two models on one test set: paired tests as scipy has them, intervals, segments, verdicts."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from traceml.compare.paired_samples import (
    MAX_BOOTSTRAPPED,
    bootstrap_interval,
    compare_samples,
)
from traceml.compare.sample_record import PairedDifference, SampleComparison
from traceml.compare.statistics import holm
from traceml.compare.terms import Terms
from traceml.store.logged_samples import ScoredSamples, read_sample_file
from traceml.text.samples import WIDTH, samples_text


def scored(values: list[float], name: str = "score", segments: str = "") -> ScoredSamples:
    ids = [str(place) for place in range(len(values))]
    by_id = dict(zip(ids, values, strict=True))
    return ScoredSamples({name: by_id}, dict(zip(ids, segments, strict=False)))


def whole(found: SampleComparison, name: str = "score") -> PairedDifference:
    return found.scores[name].whole


# Student's own example of 1908, R's data set `sleep`: extra hours of sleep of ten patients with two
# drugs. R's page on t.test prints p-value = 0.002833 and the interval 0.7001142 to 2.4598858.
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_students_sleep_data() -> None:
    found = whole(compare_samples(scored(DRUG_1), scored(DRUG_2)))
    assert found.delta == pytest.approx(1.58)
    assert found.t_p == pytest.approx(0.002833, abs=1e-6)
    assert found.interval is not None and found.interval_by == "bootstrap"
    assert 0.7001 < found.interval[0] < 1.58 < found.interval[1] < 2.9  # skewed to the right
    differences = [y - x for x, y in zip(DRUG_1, DRUG_2, strict=True)]
    assert found.wilcoxon_p == pytest.approx(float(stats.wilcoxon(differences).pvalue))
    assert (found.test, found.mcnemar_p) == ("t", None)


# Darwin's plants of 1876: how much taller the cross-fertilised one of each pair is, in eighths of
# an inch. Fisher took them for the paired t test (t = 2.148, p = 0.0497), and textbooks have their
# exact signed-rank test (W = 24, p = 0.0413).
DARWIN = [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0]


def test_darwins_plants() -> None:
    found = whole(compare_samples(scored([0.0] * len(DARWIN)), scored(DARWIN)))
    assert found.t_p == pytest.approx(0.0497, abs=5e-5)
    assert found.wilcoxon_p == pytest.approx(0.041259765625)


@pytest.mark.slow
def test_the_bootstrap_covers_the_mean_of_skewed_differences() -> None:
    """Of 200 samples of 40 skewed values, 95 % intervals cover the true mean about as often."""
    chance = np.random.default_rng(31)
    true, covered, students = float(np.exp(0.125)), 0, 0
    for _ in range(200):
        values = chance.lognormal(0.0, 0.5, 40)
        low, high = bootstrap_interval(values.tolist())
        covered += low <= true <= high
        error = stats.sem(values) * stats.t.ppf(0.975, 39)
        students += abs(values.mean() - true) <= error
    assert stats.binom.ppf(0.001, 200, 0.93) <= covered  # a little less than asked for, at n = 40
    assert covered >= students - 6


def test_the_bootstrap_of_a_bell_curve_is_students_interval() -> None:
    values = stats.norm.ppf((np.arange(400) + 0.5) / 400).tolist()
    expected = stats.t.interval(0.95, 399, loc=np.mean(values), scale=stats.sem(values))
    assert bootstrap_interval(values) == pytest.approx(expected, abs=0.01)


def right_and_wrong(both: int, only_a: int, only_b: int, neither: int) -> SampleComparison:
    a = [1.0] * both + [1.0] * only_a + [0.0] * only_b + [0.0] * neither
    b = [1.0] * both + [0.0] * only_a + [1.0] * only_b + [0.0] * neither
    return compare_samples(scored(a, "correct"), scored(b, "correct"))


def test_mcnemars_exact_test() -> None:
    # Of 6 + 16 examples that one model alone has right, as many as 16 on one side by chance.
    expected = 2 * sum(math.comb(22, k) for k in range(7)) / 2**22
    found = whole(right_and_wrong(40, 6, 16, 38), "correct")
    assert found.mcnemar_p == pytest.approx(expected)
    assert (found.only_a_right, found.only_b_right, found.test) == (6, 16, "mcnemar")
    assert found.p == found.mcnemar_p


def test_mcnemars_test_of_agrestis_ratings() -> None:
    """Agresti's table of approval in two surveys, 1990: 150 changed to no, 86 to yes."""
    found = whole(right_and_wrong(794, 150, 86, 570), "correct")
    assert found.mcnemar_p == pytest.approx(float(stats.binomtest(86, 236, 0.5).pvalue))
    assert found.delta == pytest.approx((86 - 150) / 1600)


def test_the_same_answers_are_no_difference() -> None:
    found = right_and_wrong(50, 0, 0, 50).scores["correct"]
    assert (found.whole.p, found.whole.wilcoxon_p, found.whole.interval) == (1.0, 1.0, (0.0, 0.0))
    assert found.status == "NO CHANGE"


def test_scores_that_are_no_numbers_are_counted_on_their_side(tmp_path: Path) -> None:
    """A model that fails on 30 of 100 samples is not the same as one that scores them all."""
    for side, lost in (("a", 30), ("b", 0)):
        rows = [f"{n},{'nan' if n < lost else n % 2}" for n in range(100)]
        (tmp_path / f"{side}.csv").write_text("\n".join(["id,accuracy", *rows]))
    a, b = (read_sample_file(tmp_path / f"{side}.csv") for side in "ab")
    found = compare_samples(a, b)
    assert (found.paired, found.only_in_a, found.only_in_b) == (100, 0, 0)
    score = found.scores["accuracy"]
    assert (score.whole.count, score.without_number) == (70, (30, 0))
    assert score.status == "INCONCLUSIVE"
    text = "\n".join(samples_text("test", found))
    assert "accuracy: A has no number for 30 samples" in text and "only one side" not in text
    assert compare_samples(a, a).scores["accuracy"].status == "NO CHANGE"


@pytest.mark.parametrize(
    ("name", "shift", "status"),
    [
        pytest.param("accuracy", 0.2, "IMPROVEMENT", id="more is better"),
        pytest.param("accuracy", -0.2, "REGRESSION", id="less is worse"),
        pytest.param("loss", 0.2, "REGRESSION", id="more is worse"),
        pytest.param("thing", 0.2, "INCONCLUSIVE", id="nobody knows"),
    ],
)
def test_the_direction_decides(name: str, shift: float, status: str) -> None:
    chance = random.Random(1)
    a = [chance.random() for _ in range(200)]
    b = [x + shift + chance.gauss(0, 0.1) for x in a]
    found = compare_samples(scored(a, name), scored(b, name)).scores[name]
    assert found.status == status


def test_a_user_says_the_direction() -> None:
    a, b = [0.1 * place for place in range(20)], [0.1 * place + 0.5 for place in range(20)]
    terms = Terms(metric="thing", higher_is_better=True)
    assert compare_samples(scored(a, "thing"), scored(b, "thing"), terms).scores[
        "thing"
    ].status == ("IMPROVEMENT")


def test_segments_are_tested_by_themselves_and_corrected_together() -> None:
    chance = random.Random(4)
    segments = "".join(chance.choice("abcd") for _ in range(400))
    a = [chance.random() for _ in range(400)]
    b = [
        x + chance.gauss(0.1 if segment == "a" else 0.0, 0.2)
        for x, segment in zip(a, segments, strict=True)
    ]
    found = compare_samples(scored(a, segments=segments), scored(b)).scores["score"].segments
    raw = {}
    for segment in "abcd":
        places = [place for place, each in enumerate(segments) if each == segment]
        raw[segment] = float(
            stats.ttest_rel([b[place] for place in places], [a[place] for place in places]).pvalue
        )
    assert {name: each.p for name, each in found.items()} == pytest.approx(holm(raw), rel=1e-6)
    assert [name for name, each in found.items() if each.significant] == ["a"]
    assert sum(each.count for each in found.values()) == 400


def test_only_common_examples_count() -> None:
    a, b = scored([0.1 * place for place in range(10)]), scored([0.5] * 8)
    b.scores["score"]["extra"] = 3.0
    found = compare_samples(a, b)
    assert (found.paired, found.only_in_a, found.only_in_b) == (8, 2, 1)
    assert whole(found).count == 8
    nothing = compare_samples(scored([1.0]), ScoredSamples({"score": {"other": 1.0}}))
    assert (nothing.paired, whole(nothing).delta) == (0, None)


def test_too_few_examples_are_not_tested() -> None:
    found = compare_samples(scored([0.1, 0.2]), scored([0.3, 0.4]))
    assert (whole(found).p, whole(found).interval) == (None, None)
    assert found.scores["score"].status == "INCONCLUSIVE"
    assert "too few samples" in "\n".join(samples_text("test", found))


def test_the_same_question_has_the_same_answer() -> None:
    chance = random.Random(8)
    a, b = ([chance.random() for _ in range(50)] for _ in range(2))
    assert compare_samples(scored(a), scored(b)) == compare_samples(scored(a), scored(b))


def test_of_many_samples_the_interval_is_students() -> None:
    chance = random.Random(9)
    a, b = ([chance.random() for _ in range(MAX_BOOTSTRAPPED + 1)] for _ in range(2))
    found = whole(compare_samples(scored(a), scored(b)))
    expected = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert found.interval_by == "t"
    assert found.interval == pytest.approx(tuple(expected), rel=0.01)


def test_false_alarms_stay_at_their_rate() -> None:
    """Of 200 test sets on which both models are alike, at most 5 % are called a change."""
    chance = random.Random(12)
    wrong = 0
    for _ in range(200):
        hardness = [chance.random() for _ in range(60)]
        a, b = ([float(h < chance.random()) for h in hardness] for _ in range(2))
        wrong += (
            whole(
                compare_samples(scored(a, "correct"), scored(b, "correct")), "correct"
            ).significant
            is True
        )
    assert wrong <= stats.binom.ppf(0.999, 200, 0.05)


def test_hostile_names_stay_in_their_lines() -> None:
    name = "score\x1b[31m\n" * 30
    a = ScoredSamples({name: {"x" * 9 + str(p): p / 1e300 for p in range(9)}}, {})
    a.segments = dict.fromkeys(a.scores[name], "segment\n" * 40)
    lines = samples_text("set\x07" * 50, compare_samples(a, a))
    assert all(len(line) <= WIDTH and line.isprintable() for line in lines)
