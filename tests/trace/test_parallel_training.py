"""Jobs that split one model over ranks: traced right, and judged among ranks of the same work."""

import re
from pathlib import Path

import pytest

from processes import AT_ONCE, TRACEML, run
from traceml.diagnose.engine import diagnose
from traceml.diagnose.finding_order import STRAGGLERS
from traceml.diagnose.rules import (
    expert_imbalance,
    pipeline_bubbles,
    pipeline_imbalance,
    uneven_batches,
)
from traceml.facts.gather import gather
from traceml.model.finding import Section
from traceml.store.load import load_run
from warm_jobs import WarmJob, run_warm

SCRIPT = Path(__file__).parents[1] / "parallel_training.py"
STEPS = 12

JOBS = {
    "mesh": (4, "fsdp_and_tensor_parallel", "--late-rank", 1, "--delay-ms", 400),
    "pipeline": (2, "pipeline", "--schedule", "GPipe", "--slow-stage", 1),
    "replicas": (4, "pipeline", "--replicas", 2, "--slow-stage", 1, "--late-rank", 2),
    "by hand": (4, "pipeline_by_hand"),
    "long sequences": (2, "sequence_lengths", "--long-rank", 1),
    "in turns": (3, "sequence_lengths", "--takes-turns"),
    "experts": (3, "experts", "--busy-expert", 2),
}
"""Their ranks, and what the script is told: a late rank of a mesh with two dimensions; a pipeline
whose last stage has more layers; two of them, in one of which a stage is late as well; two that no
library knows of; longer sequences on one rank, or on one after the other; and an expert that most
tokens go to."""
COMPARED = ("mesh", "pipeline")
"""These run a second time without tracing."""


LAUNCHED = ("pipeline",)
"""Run under `traceml run`; the others call `traceml.init`, with torch imported once for all."""


class ParallelJob:
    """What a job printed, and the facts that were recorded of it."""

    def __init__(self, name, traced, done):
        self.done = done
        assert done.status == 0, done.stderr
        self.learnt = sorted(re.findall(r"rank \d+: [0-9a-f]{64}", done.stdout))
        assert len(self.learnt) == JOBS[name][0]
        if traced:
            self.records = load_run(done.folder)
            self.facts = gather(self.records)
            self.found = diagnose(self.facts).sections[Section.STEP_TIME]

    def late(self):
        """The ranks that findings call late, in this order."""
        return [each.ranks for each in self.found if each.kind in STRAGGLERS]


def words_of(name):
    """The script, and what it is told."""
    ranks, *words = JOBS[name]
    return [SCRIPT, *words, "--ranks", ranks, "--steps", STEPS]


def launched(name, cwd):
    script, *words = words_of(name)
    return run([TRACEML, "run", script, "--args", *words], cwd)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    wanted = [(name, True) for name in JOBS] + [(name, False) for name in COMPARED]
    folders = {each: tmp_path_factory.mktemp("parallel") for each in wanted}
    by_us = {(name, True): launched(name, folders[name, True]) for name in LAUNCHED}
    copies = [each for each in wanted if each not in by_us]
    warm = run_warm(
        [
            WarmJob(words_of(name), folders[name, traced], "job" if traced else None)
            for name, traced in copies
        ],
        AT_ONCE,
    )
    done = by_us | dict(zip(copies, warm, strict=True))
    return {each: ParallelJob(*each, finished) for each, finished in done.items()}


@pytest.mark.parametrize("name", JOBS)
def test_every_step_is_seen_with_its_phases_and_no_failure(jobs, name):
    job = jobs[name, True]
    for rank in job.facts.ranks:
        assert rank.steps_taken == STEPS
        times = rank.times
        assert None not in (times.forward_s, times.backward_s, times.communication_s)
        assert times.forward_s + times.backward_s + times.communication_s <= times.step_s
    assert [rank.health.failures for rank in job.records.ranks] == [0] * len(job.facts.ranks)


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_learnt_is_bit_for_bit_the_same_without_tracing(jobs, name):
    assert jobs[name, True].learnt == jobs[name, False].learnt


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("mesh", ["dp 0, tp 0", "dp 0, tp 1", "dp 1, tp 0", "dp 1, tp 1"]),
        ("pipeline", ["pp 0", "pp 1"]),
        ("replicas", ["dp 0, pp 0", "dp 0, pp 1", "dp 1, pp 0", "dp 1, pp 1"]),
    ],
)
def test_each_rank_knows_its_place(jobs, name, labels):
    places = [rank.place for rank in jobs[name, True].facts.ranks]
    assert [place.label for place in places] == labels
    if name != "mesh":
        assert [place.stages for place in places] == [(at % 2,) for at in range(len(places))]


def test_the_late_rank_of_a_mesh_is_named_with_its_place(jobs):
    job = jobs["mesh", True]
    assert (1,) in job.late()
    late = next(each for each in job.found if each.ranks == (1,))
    assert "Rank 1 (dp 0, tp 1)" in late.claim


def test_a_stage_with_more_layers_is_no_straggler_but_an_imbalance(jobs):
    job = jobs["pipeline", True]
    assert job.late() == []
    finding = next(each for each in job.found if each.kind is pipeline_imbalance.KIND)
    assert finding.ranks == (1,)
    assert job.facts.pipeline.micro_batches == 4
    assert pipeline_bubbles.KIND in {each.kind for each in job.found}


def test_of_two_pipelines_the_late_replica_is_named_and_not_the_longer_stage(jobs):
    """Rank 2 holds the first stage of the second pipeline; the last stages have more layers."""
    job = jobs["replicas", True]
    assert job.late() == [(2,)]
    assert "than rank 0" in next(each.claim for each in job.found if each.ranks == (2,))
    assert job.facts.pipeline.longest.ranks == (1, 3)


def test_ranks_with_more_layers_are_no_stragglers_where_no_library_knows_of_stages(jobs):
    job = jobs["by hand", True]
    assert job.late() == []
    finding = next(each for each in job.found if each.kind is pipeline_imbalance.KIND)
    assert finding.ranks == (2, 3)


@pytest.mark.parametrize(
    ("name", "kind", "ranks"),
    [
        ("long sequences", uneven_batches.KIND, (1,)),
        ("in turns", uneven_batches.KIND, ()),
        ("experts", expert_imbalance.KIND, (2,)),
    ],
)
def test_a_rank_that_has_more_to_work_on_is_said_to_and_not_called_late(jobs, name, kind, ranks):
    job = jobs[name, True]
    assert job.late() == []
    assert (kind, ranks) in [(each.kind, each.ranks) for each in job.found]
