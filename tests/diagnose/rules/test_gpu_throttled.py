"""A clock held down by a fault warns; one held down by full load is a remark."""

from dataclasses import replace

import pytest

from factories import make_run
from traceml.diagnose.rules import gpu_throttled
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.store.records import RunRecords


def throttled(reasons: tuple[str, ...] | None, samples: int, mhz: float = 1900.0) -> RunRecords:
    """The last of ten samples, so many of them, have these reasons."""
    run = make_run(gpu=True, steps=300, sampled_s=10)
    kept = [
        replace(
            sample,
            gpus=tuple(
                replace(
                    gpu,
                    sm_clock_mhz=mhz,
                    sm_clock_max_mhz=2000.0,
                    throttle_reasons=reasons if index >= 10 - samples else (),
                )
                for gpu in sample.gpus
            ),
        )
        for index, sample in enumerate(run.samples)
    ]
    return replace(run, samples=tuple(kept))


def beside_a_hot_neighbour() -> RunRecords:
    """The run uses one GPU of two, and the other one is held back."""
    run = throttled((), 10)
    samples = [
        replace(
            sample,
            gpus=(
                *sample.gpus,
                replace(sample.gpus[0], index=1, uuid="GPU-1", throttle_reasons=("thermal",)),
            ),
        )
        for sample in run.samples
    ]
    return replace(run, samples=tuple(samples))


@pytest.mark.parametrize(
    ("run", "severity", "reason"),
    [
        pytest.param(
            throttled(("thermal", "hw slowdown"), 1), Severity.WARNING, "thermal", id="heat"
        ),
        pytest.param(throttled(("power brake",), 5), Severity.WARNING, "power brake", id="brake"),
        pytest.param(
            throttled(("hw slowdown",), 5), Severity.WARNING, "hw slowdown", id="the hardware"
        ),
        pytest.param(
            throttled(("power cap",), 10, mhz=1880.0), Severity.INFO, "power cap", id="full load"
        ),
        pytest.param(
            throttled(("power cap",), 10, mhz=1300.0),
            Severity.WARNING,
            "power cap",
            id="a cap that leaves little",
        ),
        pytest.param(
            throttled(("power cap", "thermal"), 10),
            Severity.WARNING,
            "thermal",
            id="heat beside the cap",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity, reason: str) -> None:
    finding = gpu_throttled.check(gather(run))
    assert finding is not None
    assert finding.kind is gpu_throttled.KIND
    assert finding.severity is severity
    assert finding.evidence["reason"] == reason


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(throttled(("idle",), 10), id="idle"),
        pytest.param(throttled(("application clocks",), 10), id="clocks that somebody set"),
        pytest.param(throttled((), 10), id="nothing"),
        pytest.param(throttled(("power cap",), 10, mhz=1960.0), id="a cap that is hardly felt"),
        pytest.param(throttled(None, 10), id="the driver does not say"),
        pytest.param(throttled(("thermal",), 0), id="never"),
        pytest.param(make_run(), id="no GPU"),
        pytest.param(beside_a_hot_neighbour(), id="a GPU of somebody else's, maybe"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert gpu_throttled.check(gather(run)) is None


def test_a_cap_is_judged_by_its_own_clock_and_not_by_another_reasons() -> None:
    """Nine samples under a cap that is hardly felt, and one in which heat halved the clock."""
    run = throttled(("power cap",), 10, mhz=1960.0)
    last = run.samples[-1]
    hot = replace(last.gpus[0], sm_clock_mhz=400.0, throttle_reasons=("thermal",))
    run = replace(run, samples=(*run.samples[:-1], replace(last, gpus=(hot,))))
    finding = gpu_throttled.check(gather(run))
    assert finding is not None
    assert finding.evidence["reason"] == "thermal"
    assert finding.evidence["clock_share"] == pytest.approx(0.2)


def test_the_clock_and_the_share_are_said() -> None:
    finding = gpu_throttled.check(gather(throttled(("thermal",), 5, mhz=1300.0)))
    assert finding is not None
    assert "50% of the samples" in finding.claim
    assert "65% of its highest clock" in finding.claim
    assert "60 °C" in finding.claim
