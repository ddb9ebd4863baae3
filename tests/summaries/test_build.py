"""The summary keeps the contract: every key, every meaning, and the same bytes each time."""

from dataclasses import replace

import msgspec
import pytest

from factories import GIB, make_rank, make_run, map_steps, place_ranks
from failing import failed, report
from traceml.model.rank import Region
from traceml.model.record_layout import StepFlag
from traceml.model.run import Ending
from traceml.store.records import Artifact, LoggedMetric, RunRecords, TracerHealth
from traceml.summaries.build import build, with_text
from traceml.summaries.record import SectionSummary, Summary

SECTIONS = ("step_time", "step_memory", "system", "process")


def summary_of(run: RunRecords) -> Summary:
    return build(run, 1_800_000_100.25, "1.2.3")


def average(run: RunRecords) -> dict[str, float | None]:
    section = summary_of(run).step_time
    assert section is not None
    return section.global_.average


def sections_of(summary: Summary) -> dict[str, SectionSummary]:
    return {name: getattr(summary, name) for name in SECTIONS}


def test_the_head_says_whose_file_and_which_run() -> None:
    summary = summary_of(make_run(ranks=2, gpu=True))
    assert (summary.schema_version, summary.producer.name) == (1.9, "traceml-insight")
    assert (summary.producer.version, summary.producer.format) == ("1.2.3", 1)
    assert summary.generated_at == "2027-01-15T08:01:40.250000+00:00"
    assert summary.duration_s == 62.0
    assert summary.meta.run_name == "made"
    assert (summary.meta.world_size, summary.meta.gpus_observed) == (2, 2)
    assert (summary.meta.mode, summary.meta.nodes_observed) == ("single_node", 1)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="one rank"),
        pytest.param(make_run(ranks=3, gpu=True, slow_rank=1), id="three GPUs"),
        pytest.param(make_run(input_ms=80, rest_ms=30), id="two bottlenecks"),
        pytest.param(make_run(steps=0), id="no steps"),
        pytest.param(RunRecords(manifest=make_run().manifest, ranks=()), id="nothing at all"),
    ],
)
def test_every_section_leads_with_its_diagnosis_and_survives_json(run: RunRecords) -> None:
    summary = summary_of(run)
    for section in sections_of(summary).values():
        assert section.diagnosis == section.issues[0]
        names = set(section.metadata.section_metric_names)
        assert names == set(section.global_.average)
        assert names == set(section.global_.median) == set(section.global_.worst)
        for row in section.groups.rows.values():
            assert set(row.metrics) == names
    written = msgspec.json.encode(summary)
    assert msgspec.json.decode(written, type=Summary) == summary
    assert msgspec.json.encode(summary_of(run)) == written


def test_the_primary_diagnosis_is_the_step_times() -> None:
    summary = summary_of(make_run(input_ms=80))
    primary, issue = summary.primary_diagnosis, summary.step_time.diagnosis
    assert (primary.kind, primary.status) == ("INPUT_BOUND", "INPUT-BOUND")
    assert (primary.severity, primary.section) == ("crit", "step_time")
    assert (issue.phase, issue.metric, issue.ranks) == ("input", "input_wait", (0,))
    assert issue.share_pct == pytest.approx(80 / 116, abs=1e-3)
    assert primary.evidence["input_wait_ms"] == pytest.approx(80, rel=0.01)


def test_the_averages_are_the_contracts_sums() -> None:
    found = average(make_run(h2d_ms=2, rest_ms=3, between_ms=4))
    compute = found["forward_ms"] + found["backward_ms"] + found["optimizer_ms"]
    assert found["compute_ms"] == pytest.approx(compute)
    assert found["step_time_ms"] == pytest.approx(
        found["input_wait_ms"] + found["traced_step_time_ms"]
    )
    body = found["traced_step_time_ms"]
    assert found["residual_ms"] == pytest.approx(body - found["h2d_ms"] - compute)
    assert found["wait_ms"] == pytest.approx(body - compute)
    assert found["wall_step_ms"] == pytest.approx(found["step_time_ms"] + found["between_ms"])
    assert found["steps_per_s"] == pytest.approx(1e3 / found["wall_step_ms"])
    assert found["step_time_cpu_ms"] == found["step_time_ms"]
    assert found["step_time_gpu_ms"] is None


def test_communication_stays_in_the_residual_as_the_contract_defines_it() -> None:
    found = average(make_run(communication_ms=5, rest_ms=1))
    assert found["communication_ms"] == pytest.approx(5, rel=0.01)
    assert found["residual_ms"] == pytest.approx(6, rel=0.01)


def test_steps_are_numbered_from_one() -> None:
    window = summary_of(make_run(first_step_ms=4000)).step_time.global_.window
    assert (window.start_step, window.end_step, window.completed_step) == (2, 200, 200)
    assert (window.steps_analyzed, window.warmup_steps) == (199, 1)
    assert window.diagnosis_clock == "cpu"


def test_median_and_worst_name_a_rank() -> None:
    section = summary_of(make_run(ranks=3, slow_rank=1, noise=0)).step_time
    worst, median = (
        section.global_.worst["forward_ms"],
        section.global_.median["forward_ms"],
    )
    assert (worst.idx, worst.value) == ("1", pytest.approx(30))
    assert median.value == pytest.approx(10)
    assert section.global_.worst["h2d_ms"].value is None
    assert list(section.groups.rows) == ["0", "1", "2"]


def test_memory_is_the_gpus_and_the_hosts() -> None:
    memory = summary_of(make_run(gpu=True)).step_memory.global_
    assert memory.worst["peak_reserved_bytes"].value == 12 * GIB
    assert memory.worst["peak_rss_bytes"].value == GIB
    host = summary_of(make_run()).step_memory
    assert host.global_.worst["peak_reserved_bytes"].value is None
    assert host.diagnosis.kind == "BALANCED"


def test_a_run_without_steps_says_why() -> None:
    ending = Ending(
        unix_s=1_800_000_000.0, exit_status=3, reason_without_steps="It never imported torch."
    )
    summary = summary_of(replace(make_run(steps=0), ranks=(), ending=ending))
    assert summary.primary_diagnosis.kind == "NO_DATA"
    said = "It ended with exit status 3 before its first training step. It never imported torch."
    assert summary.primary_diagnosis.summary == said
    assert summary.exit_status == 3
    assert summary.steps is None


def test_a_run_nobody_saw_end_has_no_duration() -> None:
    summary = summary_of(replace(make_run(), ending=None))
    assert summary.duration_s is None
    assert summary.exit_status is None


def test_the_series_serves_a_comparison() -> None:
    series = summary_of(make_run(slowdown_at=100)).steps
    assert series.count == 200
    assert set(series.quantiles_ms) == {"1", "5", "25", "50", "75", "95", "99"}
    assert len(series.block_means_ms) == 200 // series.block_steps
    parts = series.part_block_means_ms
    assert set(parts) == {
        *("input", "forward", "backward", "optimizer", "residual", "between", "wall")
    }
    assert {len(means_ms) for means_ms in parts.values()} == {len(series.block_means_ms)}
    assert parts["wall"] == pytest.approx(series.block_means_ms)
    assert series.slowdown_step == 101
    assert series.slowdown_ratio == pytest.approx(1.5, rel=0.02)


def test_what_if_follows_the_findings_in_their_order() -> None:
    summary = summary_of(make_run(input_ms=80, rest_ms=30, noise=0))
    assert [each.kind for each in summary.what_if] == ["INPUT_BOUND", "WAIT_HEAVY"]
    first = summary.what_if[0]
    assert (first.ranks, first.phase) == ((0,), "input")
    assert first.step_time_ms == pytest.approx(145)
    assert first.predicted_step_time_ms == pytest.approx(65)
    assert first.saved_ms == pytest.approx(80)
    assert first.speedup == pytest.approx(145 / 65, abs=1e-5)
    assert first.summary == "145.0 ms → 65.0 ms per step (2.23×) without the input wait"
    assert summary_of(make_run()).what_if == ()


def test_what_users_logged_is_kept() -> None:
    run = replace(
        make_run(),
        params={"lr": 0.1},
        metrics=(LoggedMetric("loss", 10, 0.5, 0.4, 2.0, 1.0, 0, 9),),
        artifacts=(Artifact("weights", "w.pt", 12, "ab"),),
    )
    summary = summary_of(run)
    assert summary.params == {"lr": 0.1}
    assert (summary.metrics["loss"].last, summary.metrics["loss"].max) == (0.5, 2.0)
    assert summary.artifacts["weights"].size_bytes == 12


def test_regions_are_in_milliseconds() -> None:
    rank = make_rank(make_run().ranks[0].steps, regions=[Region("load", 4, 2.0, 1.0, None)])
    (region,) = summary_of(replace(make_run(), ranks=(rank,))).regions
    assert (region.calls, region.total_ms, region.mean_ms) == (4, 2000.0, 500.0)
    assert region.gpu_total_ms is None


def test_what_the_tracer_could_not_do_is_counted() -> None:
    def abort(steps, rank):
        steps["flags"][7] = StepFlag.ABORTED

    run = map_steps(make_run(ranks=2), abort)
    health = TracerHealth(steps_lost=3, failures=1, last_failure="oops", regions_dropped=2)
    ranks = tuple(replace(rank, health=health) for rank in run.ranks)
    tracer = summary_of(replace(run, ranks=ranks, notes=("a note",))).tracer
    assert (tracer.steps_recorded, tracer.steps_aborted, tracer.steps_lost) == (398, 2, 6)
    assert (tracer.failures, tracer.last_failure) == (2, "oops")
    assert tracer.notes == ("a note", "4 named regions did not fit and were not timed")


def test_the_text_is_added_and_changes_nothing_else() -> None:
    summary = summary_of(make_run())
    assert summary.text is None
    complete = with_text(summary, "words")
    assert complete.text == "words"
    assert msgspec.structs.replace(complete, text=None) == summary


def test_a_run_that_failed_says_so_first_and_in_one_place() -> None:
    summary = summary_of(failed(report(step=57)))
    assert summary.failure is not None
    assert (summary.failure.kind, summary.failure.rank) == ("EXCEPTION", 0)
    assert (summary.failure.step, summary.failure.phase) == (57, "forward")
    assert summary.failure.where == "train.py:7 in forward"
    assert summary.primary_diagnosis.kind == "EXCEPTION"
    assert summary.stability is not None
    assert summary.stability.diagnosis == summary.stability.issues[0]
    assert summary.failure.summary == summary.stability.diagnosis.summary


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="ended well"),
        pytest.param(failed(status=143), id="asked to end"),
        pytest.param(failed(status=9), id="a status of its own"),
    ],
)
def test_a_run_that_did_not_fail_has_no_failure(run: RunRecords) -> None:
    summary = summary_of(run)
    assert summary.failure is None
    assert summary.stability is not None
    assert summary.primary_diagnosis.section == "step_time"


def test_each_row_says_where_its_rank_stands_in_the_mesh() -> None:
    run = place_ranks(make_run(ranks=4), pp=2, dp=2)
    rows = build(run, 0.0, "0").step_time.groups.rows
    assert [row.identity.mesh for row in rows.values()][1] == {"pp": 0, "dp": 1}
    plain = build(make_run(ranks=2), 0.0, "0").step_time.groups.rows
    assert [row.identity.mesh for row in plain.values()] == [None, None]
    assert [row.identity.pipeline_stages for row in plain.values()] == [None, None]
