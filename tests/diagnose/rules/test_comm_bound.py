"""Comm bound fires on transfer that every rank waits for, and not on waiting for a late one."""

from dataclasses import replace

import pytest

from factories import (
    make_late,
    make_run,
    make_samples,
    make_waiting,
    map_steps,
    place_ranks,
    schedule,
    with_settings,
)
from traceml.diagnose.rules import comm_bound
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Severity
from traceml.model.phase import Phase
from traceml.store.records import DdpStatistics, RunRecords

MIB = 1 << 20
DDP = DdpStatistics(
    communication_s=0.05, overlap_s=0.03, gradient_bytes=100 * MIB, buckets=5, has_hook=False
)


def run_with_share(share: float, step_ms: float = 100.0, **options: object) -> RunRecords:
    rest = step_ms * (1 - share)
    shape = {"ranks": 2, "steps": 60, "noise": 0, "input_ms": rest * 0.05, **options}
    return make_run(
        forward_ms=rest * 0.3,
        backward_ms=rest * 0.5,
        optimizer_ms=rest * 0.1,
        rest_ms=rest * 0.05,
        communication_ms=step_ms * share,
        **shape,
    )


def with_cores(run: RunRecords, cores: float) -> RunRecords:
    samples = make_samples(len(run.ranks), 3)
    return replace(
        run, samples=tuple(replace(s, host=replace(s.host, cores=cores)) for s in samples)
    )


def with_ddp(run: RunRecords, ddp: DdpStatistics) -> RunRecords:
    return replace(run, ranks=tuple(replace(rank, ddp=ddp) for rank in run.ranks))


def late_in_turns(run: RunRecords) -> RunRecords:
    """One rank after the other is late; the others wait for it."""
    for rank in range(len(run.ranks)):
        run = make_late(run, rank, every=len(run.ranks), since=rank, by_ms=50)
    return make_waiting(run)


def found(run: RunRecords) -> Finding:
    finding = comm_bound.check(gather(run))
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(run_with_share(0.101), Severity.WARNING, id="just above the line"),
        pytest.param(run_with_share(0.199), Severity.WARNING, id="just below critical"),
        pytest.param(run_with_share(0.201), Severity.CRITICAL, id="just critical"),
        pytest.param(run_with_share(0.9), Severity.CRITICAL, id="nothing but communication"),
        pytest.param(run_with_share(0.5, 4.0), Severity.WARNING, id="a toy"),
        pytest.param(run_with_share(0.3, ranks=8), Severity.CRITICAL, id="eight ranks"),
        pytest.param(run_with_share(0.3, gpu=True), Severity.CRITICAL, id="on the GPU's clock"),
        pytest.param(
            make_waiting(make_late(run_with_share(0.5), 1, by_ms=20)),
            Severity.CRITICAL,
            id="with a late rank besides",
        ),
        pytest.param(
            with_cores(run_with_share(0.3, ranks=4), 4), Severity.CRITICAL, id="a core for each"
        ),
        pytest.param(
            with_cores(run_with_share(0.3, ranks=4), 2),
            Severity.WARNING,
            id="more ranks than cores",
        ),
        pytest.param(
            schedule(run_with_share(0.3), [50.0, 50.0], [2.0, 31.0]),
            Severity.WARNING,
            id="a rank that waits for a core as long",
        ),
        pytest.param(
            schedule(run_with_share(0.3), [50.0, 50.0], [2.0, 29.0]),
            Severity.CRITICAL,
            id="a rank that waits for a core for less",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = found(run)
    assert (finding.kind, finding.phase) == (comm_bound.KIND, Phase.COMMUNICATION)
    assert finding.severity is severity
    assert finding.ranks == tuple(range(len(run.ranks)))


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_with_share(0.099), id="just below the line"),
        pytest.param(run_with_share(0.4, 2.4), id="too short to notice"),
        pytest.param(run_with_share(0.5, ranks=1), id="one rank"),
        pytest.param(
            make_waiting(make_late(run_with_share(0.05), 1, by_ms=200)),
            id="waiting for a late rank",
        ),
        pytest.param(late_in_turns(run_with_share(0.05, ranks=4)), id="late in turns"),
        pytest.param(make_run(ranks=2, communication_ms=None), id="communication not measured"),
        pytest.param(make_run(ranks=2, steps=0), id="no steps"),
        pytest.param(
            with_cores(run_with_share(0.19, ranks=4), 2), id="a little, with more ranks than cores"
        ),
        pytest.param(
            schedule(run_with_share(0.19), [50.0, 50.0], [2.0, 20.0]),
            id="a little, with a rank that waits for a core",
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert comm_bound.check(gather(run)) is None


def test_the_transfer_is_the_time_lost_and_hidden_time_is_told_apart() -> None:
    run = make_waiting(make_late(run_with_share(0.5), 1, by_ms=20))
    finding = found(with_ddp(run, DDP))
    assert finding.lost_s_per_step == pytest.approx(0.05, rel=1e-3)
    assert "50.0 ms of 120.0 ms" in finding.claim
    assert "30.0 ms more is hidden" in finding.claim
    assert finding.evidence["exposed_ms"] == pytest.approx(60, rel=1e-3)
    assert finding.evidence["hidden_ms"] == pytest.approx(30)
    assert "hidden" not in found(run).claim
    assert found(run).evidence["hidden_ms"] is None


@pytest.mark.parametrize(
    ("share", "said"),
    [
        pytest.param(0.20, "over 3 micro-batches", id="a few micro-batches"),
        pytest.param(0.50, "over 9 micro-batches", id="many"),
        pytest.param(0.90, "over 16 micro-batches", id="more than anybody should"),
    ],
)
def test_the_advice_says_how_many_micro_batches_help_and_how_much(share: float, said: str) -> None:
    run = with_settings(run_with_share(share), accumulation_steps=1)
    action = found(with_ddp(run, DDP)).action
    assert said in action
    left = {0.20: "7.7%", 0.50: "10%", 0.90: "36%"}[share]
    assert f"down to {left}" in action


def test_accumulation_in_use_is_where_the_advice_starts() -> None:
    """Two micro-batches instead of four would double the communication."""
    run = with_settings(run_with_share(0.20), accumulation_steps=4)
    action = found(with_ddp(run, DDP)).action
    assert "12 micro-batches instead of 4 bring the wait down to 7.7%" in action
    assert "no_sync" in action
    most = with_settings(run_with_share(0.20), accumulation_steps=16)
    assert "instead of" not in found(with_ddp(most, DDP)).action
    unknown = found(with_ddp(run_with_share(0.20), DDP)).action
    assert "3 times as many micro-batches as now" in unknown


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        pytest.param("aabb", "Every layer's exchange of tensor parallelism", id="within machines"),
        pytest.param("abab", "lie on several machines", id="across machines"),
    ],
)
def test_tensor_parallel_waits_are_advised_by_where_the_ranks_lie(hosts: str, said: str) -> None:
    run = with_settings(place_ranks(run_with_share(0.3, ranks=4), dp=2, tp=2), parallelism="FSDP2")
    ranks = [
        replace(rank, rank=replace(rank.rank, hostname=host))
        for rank, host in zip(run.ranks, hosts, strict=True)
    ]
    action = found(replace(run, ranks=tuple(ranks))).action
    assert said in action
    assert "fewer ranks per layer" in action


def test_fsdp_is_told_what_fsdp_can_do() -> None:
    action = found(with_settings(run_with_share(0.3), parallelism="FSDP")).action
    assert "reshard_after_forward" in action
    assert "async_op" not in action and "less often" not in action
    assert "gathers and reductions in bfloat16" in action
    half = with_settings(run_with_share(0.3), parallelism="FSDP", parameter_dtype="bfloat16")
    assert "bfloat16" not in found(half).action


def test_gradients_of_sixteen_bits_are_not_compressed_to_sixteen() -> None:
    run = with_settings(run_with_share(0.3), parameter_dtype="bfloat16", parallelism="DDP")
    assert "compress" not in found(with_ddp(run, DDP)).action


@pytest.mark.parametrize(
    ("ddp", "said"),
    [
        pytest.param(DDP, "bf16_compress_hook halves the 100.0 MiB", id="as it comes"),
        pytest.param(replace(DDP, buckets=1), "bucket_cap_mb=25", id="one bucket"),
        pytest.param(
            replace(DDP, gradient_bytes=MIB // 2, buckets=1), "not their size", id="next to nothing"
        ),
    ],
)
def test_the_advice_follows_from_what_ddp_sends(ddp: DdpStatistics, said: str) -> None:
    assert said in found(with_ddp(run_with_share(0.3), ddp)).action


def test_a_hook_is_not_advised_twice() -> None:
    action = found(with_ddp(run_with_share(0.3), replace(DDP, has_hook=True))).action
    assert "compress" not in action


def test_without_ddp_the_advice_is_about_the_scripts_own_collectives() -> None:
    action = found(run_with_share(0.3)).action
    assert "async_op=True" in action
    assert "no_sync" not in action


def test_steps_without_communication_count_as_none() -> None:
    """A script that averages its model every tenth step pays for it in that step alone."""

    def every_tenth(steps, rank):
        seldom = steps["sequence"] % 10 != 0
        steps["body_ns"][seldom] -= steps["communication_ns"][seldom]
        steps["wall_ns"][seldom] -= steps["communication_ns"][seldom]
        steps["communication_ns"][seldom] = 0

    run = map_steps(run_with_share(0.7), every_tenth)
    assert found(run).share == pytest.approx(7 / 37, rel=0.05)
