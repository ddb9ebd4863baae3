"""Others on the run's GPU are told, and its counters are no evidence then."""

from dataclasses import replace

import pytest

from factories import count_gpus, make_run
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import gpu_shared, tensor_cores_idle
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section, Severity
from traceml.store.records import RunRecords

ALONE = make_run(gpu=True, steps=300, sampled_s=10)


def shared(others: float | None, samples: int | None = None, run: RunRecords = ALONE) -> RunRecords:
    """The run of whose samples the last ones, or all, see others keep the GPU so busy."""
    first = 0 if samples is None else len(run.samples) - samples
    kept = [
        replace(
            sample,
            gpus=tuple(
                replace(gpu, other_busy_share=others if index >= first else 0.0)
                for gpu in sample.gpus
            ),
        )
        for index, sample in enumerate(run.samples)
    ]
    return replace(run, samples=tuple(kept))


def beside_a_shared_gpu() -> RunRecords:
    """The run uses one GPU of two, and others use the other one."""
    run = shared(0.0)
    samples = [
        replace(
            sample,
            gpus=(
                *sample.gpus,
                replace(sample.gpus[0], index=1, uuid="GPU-1", other_busy_share=0.9),
            ),
        )
        for sample in run.samples
    ]
    return replace(run, samples=tuple(samples))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        pytest.param(shared(0.48), "computed on GPU 0 48% of the time", id="all the time"),
        pytest.param(shared(0.9, samples=2), "computed on GPU 0 18% of the time", id="at the end"),
    ],
)
def test_must_fire(run: RunRecords, words: str) -> None:
    finding = gpu_shared.check(gather(run))
    assert finding is not None and words in finding.claim
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(shared(0.0), id="alone"),
        pytest.param(shared(0.09), id="just below the threshold"),
        pytest.param(shared(None), id="not measured"),
        pytest.param(ALONE, id="older samples"),
        pytest.param(beside_a_shared_gpu(), id="others on a GPU that the run does not use"),
        pytest.param(make_run(steps=300, sampled_s=10), id="no GPU"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert gpu_shared.check(gather(run)) is None


def test_counters_of_a_shared_gpu_are_no_evidence() -> None:
    """They see float32 work: whose it is nobody knows."""
    counted = count_gpus(ALONE, sm_share=0.9, fp32_share=0.5, tensor_share=0.02, busy_share=1.0)
    assert tensor_cores_idle.check(gather(shared(0.0, run=counted))) is not None
    facts = gather(shared(0.5, run=counted))
    assert tensor_cores_idle.check(facts) is None
    kinds = [finding.kind for finding in diagnose(facts).sections[Section.STEP_TIME]]
    assert {gpu_shared.KIND, Kind.COMPUTE_BOUND} <= set(kinds)
