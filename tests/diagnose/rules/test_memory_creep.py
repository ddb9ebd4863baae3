"""Memory creep fires on memory that outlives its steps, and names whose it is."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from factories import GIB
from failing import ENDED_UNIX_S, report
from layer_runs import layer_records, with_layers
from memory_runs import MIB, Curve, with_sampled_memory, with_steps_memory
from traceml.diagnose.rules import memory_creep
from traceml.facts.gather import gather
from traceml.model.failure import MemoryAtFailure
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.run import Ending
from traceml.store.layer_records import GrownLayer, OutlivedLayer
from traceml.store.records import RunRecords

noise = np.random.default_rng(0).normal(0, 1, 10_000)


def host(curve: Curve, **run: int) -> RunRecords:
    return with_steps_memory("rss_bytes", curve, **run)


def gpu(curve: Curve, ranks: int = 1) -> RunRecords:
    return with_steps_memory("allocated_bytes", curve, ranks, gpu=True)


def check(run: RunRecords) -> Finding | None:
    return memory_creep.check(gather(run))


def fires(run: RunRecords) -> Finding:
    finding = check(run)
    assert finding is not None
    return finding


EARLY, CONFIRMED = Kind.CREEP_EARLY, Kind.CREEP_CONFIRMED


@pytest.mark.parametrize(
    ("run", "kind", "place"),
    [
        pytest.param(host(lambda x, rank: 500 + 2 * x), CONFIRMED, "host", id="a linear leak"),
        pytest.param(
            host(lambda x, rank: 500 + 2 * x + 30 * noise[: len(x)]),
            CONFIRMED,
            "host",
            id="a leak with noise",
        ),
        pytest.param(
            host(lambda x, rank: 500 + np.maximum(x - 120, 0)),
            CONFIRMED,
            "host",
            id="a leak from step 120 on",
        ),
        pytest.param(
            host(lambda x, rank: 500 + x + 5 * (x % 40)), EARLY, "host", id="under a sawtooth"
        ),
        pytest.param(
            host(lambda x, rank: 500 + 2 * x, steps=50), CONFIRMED, "host", id="just enough steps"
        ),
        pytest.param(
            gpu(lambda x, rank: 10_000 + 4 * x), CONFIRMED, "gpu", id="tensors kept on the GPU"
        ),
        pytest.param(
            with_sampled_memory(lambda x, rank: 500 + 20 * x),
            CONFIRMED,
            "workers",
            id="a worker that leaks",
        ),
        pytest.param(
            with_sampled_memory(lambda x, rank: 500 + 50 * x, seconds=9),
            EARLY,
            "workers",
            id="a worker that leaks, seen for a few seconds",
        ),
        pytest.param(
            with_sampled_memory(lambda x, rank: 500 + 20 * x, of_workers=False),
            CONFIRMED,
            "host",
            id="a trainer that leaks, by its samples alone",
        ),
    ],
)
def test_must_fire(run: RunRecords, kind: Kind, place: str) -> None:
    finding = fires(run)
    assert (finding.kind, finding.section) == (kind, Section.STEP_MEMORY)
    assert finding.evidence["place"] == place
    assert finding.ranks == (0,)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(host(lambda x, rank: 500 + 0 * x), id="nothing grows"),
        pytest.param(host(lambda x, rank: 500 + 5 * (x % 60)), id="a sawtooth"),
        pytest.param(host(lambda x, rank: 500 + 100 * np.minimum(x // 30, 5)), id="a stair's end"),
        pytest.param(
            host(lambda x, rank: 500 + 400 * (1 - np.exp(-x / 40))), id="warm-up with a plateau"
        ),
        pytest.param(
            host(lambda x, rank: 500 + np.where(x % 50 < 5, 900, 0)), id="evaluation peaks"
        ),
        pytest.param(host(lambda x, rank: 500 + 50 * np.log1p(x)), id="slow growth of a logarithm"),
        pytest.param(host(lambda x, rank: 500 + 0.1 * x), id="Python's own few megabytes"),
        pytest.param(host(lambda x, rank: 50_000 + x), id="next to nothing of what is held"),
        pytest.param(host(lambda x, rank: 500 + 10 * x, steps=40), id="too few steps"),
        pytest.param(host(lambda x, rank: np.full(len(x), np.nan)), id="memory not read"),
        pytest.param(gpu(lambda x, rank: 10_000 + 300 * (x % 7)), id="batches of varying length"),
        pytest.param(
            with_sampled_memory(lambda x, rank: 500 + 50 * x, seconds=7), id="too few samples"
        ),
        pytest.param(
            with_sampled_memory(lambda x, rank: 500 + 40 * (x % 10)), id="workers of each epoch"
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert check(run) is None


def test_a_leak_on_one_rank_names_it() -> None:
    finding = fires(host(lambda x, rank: 500 + (2 * x if rank == 2 else 0 * x), ranks=4))
    assert finding.ranks == (2,)
    assert "rank 2 alone" in finding.claim
    assert finding.evidence["median_rise_bytes"] == 0
    assert isinstance(finding.evidence["worst_rise_bytes"], float)
    assert finding.evidence["worst_rise_bytes"] > 300 * MIB


def test_a_leak_on_every_rank_names_them_all() -> None:
    finding = fires(gpu(lambda x, rank: 10_000 + (2 + rank) * x, ranks=4))
    assert finding.ranks == (0, 1, 2, 3)
    assert "all ranks" in finding.claim
    assert finding.evidence["per_1000_steps_bytes"] == pytest.approx(5000 * MIB)


def test_the_claim_says_how_fast_since_when_and_how_long_it_can_go_on() -> None:
    """Steps of 37 ms that keep 2 MiB each, with 24 GiB left."""
    finding = fires(host(lambda x, rank: 500 + 2 * np.maximum(x - 100, 0), noise=0))
    assert "GiB per 1,000 steps" in finding.claim
    assert re.search(r"since step \d+", finding.claim)
    full_s = finding.evidence["full_in_s"]
    assert isinstance(full_s, float)
    assert full_s == pytest.approx(24 * GIB / (2 * MIB / 0.037), rel=0.1)
    assert "7 min" in finding.claim
    assert re.search(r"leaves 2\.\d MiB", finding.action)


def test_a_limit_of_the_process_that_is_met_first_is_what_is_full() -> None:
    """24 GiB are left on the host, 3 GiB of the process's address space."""

    def limited(limit_gib: int, **host_fields: int) -> Finding:
        run = host(lambda x, rank: 500 + 2 * x, noise=0)
        samples = tuple(
            replace(
                sample,
                host=replace(sample.host, **host_fields),
                processes=tuple(
                    replace(
                        process,
                        address_space_bytes=5 * GIB,
                        address_space_limit_bytes=limit_gib * GIB,
                    )
                    for process in sample.processes
                ),
            )
            for sample in run.samples
        )
        return fires(replace(run, samples=samples))

    finding = limited(8)
    assert finding.evidence["full_in_s"] == pytest.approx(3 * GIB / (2 * MIB / 0.037), rel=0.1)
    assert finding.evidence["limited_by"] == "RLIMIT_AS"
    said = "the 8.00 GiB of address space that RLIMIT_AS (ulimit -v) allows are full in"
    assert said in finding.claim
    finding = limited(64)
    assert finding.evidence["limited_by"] is None and "memory is full in 7 min" in finding.claim
    full = limited(8, ram_used_bytes=32 * GIB, ram_total_bytes=32 * GIB)
    assert full.evidence["limited_by"] is None and full.evidence["full_in_s"] == 0


def test_a_gpu_fills_up_by_its_own_rank() -> None:
    finding = fires(gpu(lambda x, rank: 10_000 + 4 * x, ranks=2))
    full_s = finding.evidence["full_in_s"]
    assert isinstance(full_s, float)
    assert full_s == pytest.approx((140 * 1024 - 11_200) * MIB / (4 * MIB / 0.037), rel=0.1)


@pytest.mark.parametrize(
    ("per_step_mib", "severity"),
    [
        pytest.param(2.0, Severity.CRITICAL, id="full within minutes"),
        pytest.param(0.2, Severity.CRITICAL, id="full within hours"),
        pytest.param(0.008, Severity.WARNING, id="full in days"),
    ],
)
def test_what_ends_the_run_soon_is_critical(per_step_mib: float, severity: Severity) -> None:
    finding = fires(host(lambda x, rank: 500 + per_step_mib * x, steps=8000))
    assert (finding.kind, finding.severity) == (CONFIRMED, severity)


def test_an_early_sign_is_never_critical() -> None:
    finding = fires(host(lambda x, rank: 500 + x + 5 * (x % 40)))
    assert (finding.kind, finding.severity) == (EARLY, Severity.WARNING)


def test_without_a_known_capacity_nothing_is_said_about_its_end() -> None:
    run = replace(host(lambda x, rank: 500 + 2 * x), samples=())
    finding = fires(run)
    assert finding.severity is Severity.WARNING
    assert finding.evidence["full_in_s"] is None
    assert "full" not in finding.claim


@pytest.mark.parametrize(
    ("run", "words"),
    [
        pytest.param(gpu(lambda x, rank: 10_000 + 4 * x), "loss.detach()", id="GPU"),
        pytest.param(
            with_sampled_memory(lambda x, rank: 500 + 20 * x), "persistent_workers", id="workers"
        ),
        pytest.param(
            with_steps_memory("rss_bytes", lambda x, rank: 500 + 2 * x, workers=0),
            "__getitem__",
            id="host, where the training process makes its batches itself",
        ),
    ],
)
def test_the_action_names_the_usual_culprits(run: RunRecords, words: str) -> None:
    assert words in fires(run).action


def test_the_claim_says_after_how_many_steps_memory_is_full() -> None:
    run = gpu(lambda x, rank: 500 + 2 * x)
    finding = fires(run)
    steps = finding.evidence["full_in_steps"]
    total_bytes = run.ranks[0].rank.device_total_bytes
    assert total_bytes is not None and isinstance(steps, int)
    left = (total_bytes / MIB - (500 + 2 * 300)) / 2  # MiB that are free, at 2 MiB per step
    assert steps == pytest.approx(left, rel=0.02)
    assert f"after about {steps:,} more steps" in finding.claim


def test_the_deep_profile_says_for_how_long_a_smaller_batch_makes_room() -> None:
    layers = layer_records(
        forward_ms={"": 1.0, "one": 1.0},
        held={"parameters": [0, MIB], "saved": [0, 400 * MIB]},
    )
    run = with_layers(gpu(lambda x, rank: 500 + 2 * x), layers)
    samples = 32
    # A quarter of 400 MiB is 50 steps at 2 MiB.
    assert (
        f"a batch of {samples * 3 // 4} instead of {samples} makes room for about 50 more steps"
        in fires(run).action
    )
    assert "batch" not in fires(gpu(lambda x, rank: 500 + 2 * x)).action


LEAKING = {
    "an attribute": GrownLayer(0, 5, "blocks.2", "Block", 0, "history", 0),
    "layers added": GrownLayer(0, 5, "experts", "ModuleList", 0, None, 40),
    "buffers": GrownLayer(0, 5, "norm", "Norm", 0, None, 0),
}


def leaking_run(per_step_mib: float, *, outlived: bool = False, case: str = "an attribute"):
    run = gpu(lambda step, rank: 1000 + step)
    more: dict[str, object] = {}
    if outlived:
        left = int(per_step_mib * MIB)
        more["outlived"] = (OutlivedLayer(90, 80, "head", "Linear", left),)
    else:
        more["grown"] = tuple(
            LEAKING[case]._replace(step=step, more_bytes=int((step - 5) * per_step_mib * MIB))
            for step in (60, 100)
        )
    record = layer_records(pid=run.ranks[0].rank.pid, forward_ms={"": 1.0}, **more)
    return with_layers(run, record)


@pytest.mark.parametrize(
    ("case", "said", "remedy"),
    [
        ("an attribute", "blocks.2 keeps 1.0 MiB more per step in its attribute history.", "Empty"),
        ("layers added", "experts holds 1.0 MiB more per step: 40 layers were added", "once"),
        ("buffers", "norm holds 1.0 MiB more per step in its parameters and buffers.", "larger"),
    ],
)
def test_the_module_that_leaks_is_named(case: str, said: str, remedy: str) -> None:
    found = fires(leaking_run(1.0, case=case))
    assert said in found.claim and remedy in found.action
    assert found.evidence["module"] == LEAKING[case].name


def test_the_layer_whose_outputs_are_kept_is_named() -> None:
    found = fires(leaking_run(0.9, outlived=True))
    assert "are outputs of head that outlive their step" in found.claim
    assert "who keeps the outputs of head (Linear)" in found.action


def test_a_module_that_grows_far_slower_than_memory_is_not_blamed() -> None:
    found = fires(leaking_run(0.1))
    assert found.evidence["module"] is None and "loss.item()" in found.action


@pytest.mark.parametrize("outlived", [False, True])
def test_a_module_that_would_grow_faster_than_memory_is_not_blamed(outlived: bool) -> None:
    """1 MiB per step is measured; a number far above that is no leak's."""
    found = fires(leaking_run(119.6, outlived=outlived))
    assert found.evidence["module"] is None and "loss.item()" in found.action
    assert "119.6" not in found.claim


def test_memory_that_ran_out_is_not_said_to_be_full_some_time_later() -> None:
    run = leaking_run(1.0)
    held = MemoryAtFailure(total_bytes=80 << 30)
    out = report(0, "OutOfMemoryError", "CUDA out of memory.", memory=held)
    out = replace(out, pid=run.ranks[0].rank.pid)
    ended = replace(run, reports=(out,), ending=Ending(ENDED_UNIX_S, exit_status=1))
    assert "memory is full in" in fires(run).claim
    found = fires(ended)
    assert "is full" not in found.claim and found.evidence["full_in_s"] is None
