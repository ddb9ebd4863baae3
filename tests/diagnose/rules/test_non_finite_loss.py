"""A NaN or infinite loss is named with its first step; to the end of the run it leads."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factories import make_run, map_steps, number_steps
from failing import failed, report, with_loss
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import non_finite_loss
from traceml.facts.gather import gather
from traceml.facts.gradients import BadValue
from traceml.model.finding import Kind, Severity
from traceml.model.settings import Settings
from traceml.store.records import LoggedMetric, RecordedLosses, RunRecords, SeenLoss

NAN, INF = float("nan"), float("inf")


def logged(name: str, values: list[float]) -> LoggedMetric:
    lost = [place for place, value in enumerate(values, 1) if not np.isfinite(value)]
    return LoggedMetric(
        name=name,
        count=len(values),
        last=values[-1],
        minimum=0,
        maximum=1,
        mean=0.5,
        first_step=1,
        last_step=len(values),
        first_not_finite_step=lost[0] if lost else None,
        history=tuple(enumerate(values, 1)),
    )


def with_metrics(*metrics: LoggedMetric) -> RunRecords:
    return replace(make_run(), metrics=metrics)


@pytest.mark.parametrize(
    ("run", "severity", "step"),
    [
        pytest.param(with_loss([1.0] * 50 + [NAN] * 50), Severity.CRITICAL, 51, id="to the end"),
        pytest.param(with_loss([1.0] * 99 + [INF]), Severity.CRITICAL, 100, id="at the last step"),
        pytest.param(
            with_loss([1.0, NAN, NAN], every=16), Severity.CRITICAL, 17, id="seen now and then"
        ),
        pytest.param(with_loss([1.0, NAN] + [1.0] * 50), Severity.WARNING, 2, id="it recovered"),
        pytest.param(
            with_metrics(logged("train/loss", [1.0, 2.0, NAN])), Severity.CRITICAL, 3, id="logged"
        ),
        pytest.param(
            with_loss([1.0, NAN, 1.0, 1.0, NAN, NAN, NAN]),
            Severity.CRITICAL,
            5,
            id="lost again, and longer than before",
        ),
        pytest.param(
            with_loss([1.0, NAN, NAN] * 2 + [1.0, NAN]),
            Severity.WARNING,
            8,
            id="lost again, as it has recovered from before",
        ),
        pytest.param(
            with_metrics(logged("loss", [1.0] * 9), logged("grad_norm", [1.0, INF, 1.0])),
            Severity.INFO,
            2,
            id="a gradient norm",
        ),
        pytest.param(
            with_metrics(logged("loss", [1.0] * 9), logged("grad_norm", [1.0, INF])),
            Severity.INFO,
            2,
            id="a gradient norm to the end, and a loss that stayed finite",
        ),
        pytest.param(
            with_metrics(logged("grad_norm", [1.0, INF, INF])),
            Severity.WARNING,
            2,
            id="a gradient norm to the end, and no loss is known",
        ),
        pytest.param(
            with_metrics(replace(logged("loss", [1.0] * 9), first_not_finite_step=4)),
            Severity.WARNING,
            4,
            id="the value itself was thinned out",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity, step: int) -> None:
    finding = non_finite_loss.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.NON_FINITE_LOSS, severity)
    assert finding.evidence["first_step"] == step


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="no loss was seen"),
        pytest.param(with_loss([1.0] * 50), id="finite throughout"),
        pytest.param(with_metrics(logged("accuracy_loss", [1.0])), id="a logged loss that is fine"),
        pytest.param(
            with_metrics(logged("loss", [1.0]), logged("val_loss", [NAN])),
            id="an evaluation's loss, where the training's is known",
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert non_finite_loss.check(gather(run)) is None


def test_to_the_end_it_leads_unless_something_else_ended_the_run() -> None:
    lost = with_loss([1.0] * 50 + [NAN] * 50, input_ms=80)
    assert diagnose(gather(lost)).primary.kind is Kind.NON_FINITE_LOSS
    ended = failed(report())
    both = replace(lost, reports=ended.reports, ending=ended.ending)
    assert diagnose(gather(both)).primary.kind is Kind.EXCEPTION


def test_a_gradient_norm_is_not_called_a_loss() -> None:
    norm = logged("grad_norm", [INF, INF, *[1.0] * 98])
    finding = non_finite_loss.check(gather(with_metrics(logged("loss", [1.0] * 100), norm)))
    assert finding is not None
    assert finding.claim == (
        "The gradient norm grad_norm was NaN or infinite in 2 of 100 values, first at logged step "
        "1; the loss stayed finite."
    )


def test_a_loss_that_recovered_and_was_lost_again_is_told_from_its_last_stretch() -> None:
    finding = non_finite_loss.check(gather(with_loss([1.0, NAN, 2.0, 3.0, NAN, NAN])))
    assert finding is not None
    assert finding.claim == (
        "loss is NaN or infinite from step 5 on (it was 3 before). It had been so earlier, first "
        "at step 2, and recovered (3 values in all)."
    )
    assert (finding.evidence["first_step"], finding.evidence["earliest_step"]) == (5, 2)


def test_the_scripts_own_step_numbers_are_named_and_not_compared_with_the_tracers() -> None:
    """The script goes on from step 9,000, and its loss is the later one by any count of steps."""
    own = logged("loss", [1.0, NAN, NAN])
    own = replace(own, first_not_finite_step=9002, history=((9001, 1.0), (9002, NAN), (9003, NAN)))
    alone = non_finite_loss.check(gather(with_metrics(own)))
    assert alone is not None
    assert "from logged step 9,002 on" in alone.claim
    assert alone.evidence["numbering"] == "logged"
    both = non_finite_loss.check(gather(replace(with_loss([1.0, NAN] * 50), metrics=(own,))))
    assert both is not None
    assert both.evidence["first_step"] == 9002  # the one that was lost for good
    early = logged("loss", [NAN, NAN])
    seen = non_finite_loss.check(gather(replace(with_loss([1.0] * 50 + [NAN]), metrics=(early,))))
    assert seen is not None
    assert (seen.evidence["first_step"], seen.evidence["numbering"]) == (51, "counted")


@pytest.mark.parametrize(
    ("run", "claim"),
    [
        pytest.param(
            with_loss([1.257] * 3 + [INF] * 27),
            "loss is NaN or infinite from step 4 on (it was 1.257 before).",
            id="every loss was read",
        ),
        pytest.param(
            with_loss([1.257, 1.257, INF], every=50),
            "loss became NaN or infinite between step 51 (1.257) and step 101, and stayed so.",
            id="every fiftieth was read",
        ),
        pytest.param(
            with_loss([1.257, 1.257, INF], every=50, lag=3),
            "loss became NaN or infinite between step 51 (1.257) and step 101, and stayed so.",
            id="every fiftieth was read, and came three steps later",
        ),
        pytest.param(
            with_loss([NAN] * 30),
            "loss is NaN or infinite from step 1 on: no finite value was seen before.",
            id="it never was",
        ),
        pytest.param(
            with_loss([2.5, NAN, 2.0], every=50),
            "loss was NaN or infinite between step 1 (2.5) and step 51; "
            "it recovered (1 value in all).",
            id="it recovered",
        ),
    ],
)
def test_the_claim_says_when_it_was_lost_as_exactly_as_is_known(
    run: RunRecords, claim: str
) -> None:
    finding = non_finite_loss.check(gather(run))
    assert finding is not None
    assert finding.claim == claim


def test_the_first_that_was_lost_is_known_though_its_step_is_folded() -> None:
    run = map_steps(with_loss([NAN] * 50), lambda steps, rank: number_steps(steps, first=1000))
    known = RecordedLosses(SeenLoss(1, 3.0), SeenLoss(3, NAN), SeenLoss(2, 2.5))
    (rank,) = run.ranks
    rank = replace(rank, earlier_steps=1000, losses=known)
    finding = non_finite_loss.check(gather(replace(run, ranks=(rank,))))
    assert finding is not None
    assert finding.claim == "loss is NaN or infinite from step 3 on (it was 2.5 before)."
    assert (finding.evidence["first_step"], finding.evidence["last_finite_step"]) == (3, 2)


def advice(values: list[float], **settings: Any) -> str:
    facts = replace(gather(with_loss(values)), settings=Settings(**settings))
    finding = non_finite_loss.check(facts)
    assert finding is not None
    return finding.action


def test_a_checkpoint_is_named_only_where_there_can_be_a_good_one() -> None:
    assert "a checkpoint of step 50 or earlier" in advice([1.0] * 50 + [NAN] * 50)
    for early in ([NAN] * 9, [1.0, 1.0, INF]):
        assert "checkpoint" not in advice(early)
        assert "initialisation" in advice(early)


@pytest.mark.parametrize(
    ("settings", "said", "unsaid"),
    [
        ({}, "if it trains in float16", None),
        ({"autocast_dtype": "bfloat16", "parameter_dtype": "float32"}, None, "float16 "),
        ({"autocast_dtype": "", "parameter_dtype": "float32"}, None, "float16"),
        (
            {"autocast_dtype": "float16", "has_grad_scaler": False},
            "try bfloat16, or with a GradScaler",
            None,
        ),
        ({"autocast_dtype": "float16", "has_grad_scaler": True}, "bfloat16", "GradScaler"),
    ],
)
def test_advice_knows_the_precision(settings, said: str | None, unsaid: str | None) -> None:
    for values in ([NAN] * 9, [1.0] * 50 + [NAN] * 50):
        text = advice(values, **settings)
        assert said is None or said in text
        assert unsaid is None or unsaid not in text


def test_a_gradient_norm_that_rose_first_is_said() -> None:
    norms = logged("grad_norm", [1.0] * 45 + [9.0] * 5 + [NAN] * 50)
    run = replace(with_loss([1.0] * 50 + [NAN] * 50), metrics=(norms,))
    finding = non_finite_loss.check(gather(run))
    assert finding is not None
    assert "the gradient norm had risen first: 9 against a usual 1" in finding.claim.lower()
    assert "Clip" in finding.action


@pytest.mark.parametrize(
    ("before", "usual"),
    [
        pytest.param([9.0, 3e4, 2e11], 15004.5, id="within few steps"),
        pytest.param([1.0] * 50 + [60.0, 4e5], 1.0, id="after many usual ones"),
        pytest.param([1.0] * 50 + [60.0, 900.0], None, id="not far enough"),
        pytest.param([-1.0] * 50 + [4e5], None, id="below zero there is no level"),
        pytest.param([4e5], None, id="nothing before"),
    ],
)
def test_training_that_diverged_is_told_and_laid_to_no_layer_s_code(
    before: list[float], usual: float | None
) -> None:
    facts = gather(with_loss([*before, NAN, NAN]))
    spoiled = BadValue(0, len(before), "backward", "blocks.2", is_of_parameters=True)
    layers = replace(facts.layers, gradients=replace(facts.layers.gradients, bad_value=spoiled))
    finding = non_finite_loss.check(replace(facts, layers=layers))
    assert finding is not None
    assert finding.evidence["loss_usual"] == usual
    assert finding.evidence["bad_layer"] == (None if usual else "blocks.2")
    assert ("diverged" in finding.action) == ("had grown first" in finding.claim) == bool(usual)
