"""What monitoring systems are given of a run: the same numbers as its summary, in few series."""

from __future__ import annotations

import json
import re

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from factories import count_gpus, make_run
from traceml.cli.ui import GRAFANA_DASHBOARD, main
from traceml.model.exported_metric import (
    BY_NAME,
    EXPORTED,
    MAX_LOGGED,
    MAX_SERIES,
    NOT_EXPORTED,
)
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.exported_values import ExportedValue, exported_values
from traceml.summaries.record import MetricSummary, Summary
from traceml.text.open_metrics import open_metrics_text, prometheus_text

AWKWARD = 'a "b"\\c\nd'


def summary_of(run: RunRecords) -> Summary:
    return build(run, 0.0, "1")


def on_gpus(ranks: int = 2) -> Summary:
    return summary_of(
        count_gpus(make_run(ranks, slow_rank=1, gpu=True), sm_share=0.5, tensor_share=0.25)
    )


def values(summary: Summary, run: str = "a", state: str = "live") -> list[ExportedValue]:
    return exported_values(summary, run, state)


def series(summary: Summary) -> dict[tuple[str, ...], float]:
    """By name and labels, without the run."""
    return {
        (each.metric.name, *(text for _, text in each.labels[1:])): each.value
        for each in values(summary)
    }


def test_values_are_those_of_the_summary_in_base_units():
    summary = on_gpus()
    found, steps, system = series(summary), summary.step_time, summary.system
    assert steps is not None and system is not None
    average, hosts = steps.global_.average, system.global_.average
    expected = {
        ("traceml.step.duration",): average["step_time_ms"] / 1e3,
        ("traceml.phase.duration", "forward"): average["forward_ms"] / 1e3,
        ("traceml.step.duration.quantile", "0.95"): average["step_time_p95_ms"] / 1e3,
        ("traceml.throughput.samples",): average["samples_per_s"],
        ("traceml.host.cpu.utilization",): hosts["cpu_percent"] / 100,
        ("traceml.gpu.power", "1"): 500.0,
        ("traceml.gpus.sm.utilization",): 0.5,
        ("traceml.rank.step.duration", "1"): steps.groups.rows["1"].metrics["step_time_ms"] / 1e3,
        ("traceml.run.ranks",): 2,
        ("traceml.steps",): 200,
        ("traceml.run.state", "live"): 1,
        ("traceml.ranks.slowest",): 1,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    spread = [found["traceml.ranks.step.duration", stat] for stat in ("min", "median", "max")]
    assert spread == sorted(spread) and spread[0] < spread[2]


def test_the_verdict_and_the_findings_are_series():
    summary = on_gpus()
    found, verdict = series(summary), summary.primary_diagnosis
    what = (verdict.kind or "", verdict.severity or "")
    assert what[0] == "COMPUTE_STRAGGLER"
    assert found[("traceml.run.verdict", *what)] == 1
    assert found[("traceml.finding", "step_time", *what)] == 1


def test_the_phases_sum_to_the_step():
    found = series(summary_of(make_run(2, communication_ms=7.0, rest_ms=2.0)))
    for whole, part, names in (
        ("traceml.step.duration", "traceml.phase.duration", ()),
        ("traceml.rank.step.duration", "traceml.rank.phase.duration", ("1",)),
    ):
        key = (part, *names)
        phases = [value for found_key, value in found.items() if found_key[: len(key)] == key]
        assert len(phases) == 6
        assert sum(phases) == pytest.approx(found[(whole, *names)], rel=1e-6)


def test_what_was_not_measured_is_left_out_and_never_zero():
    found = series(summary_of(make_run(h2d_ms=None, forward_ms=None)))
    names = {key[0] for key in found}
    assert ("traceml.phase.duration", "forward") not in found
    assert not any(name.startswith(("traceml.gpu.", "traceml.gpus.")) for name in names)
    assert values(Summary())[0].metric.name == "traceml.run.state"


def test_many_ranks_are_a_spread_and_not_a_series_each():
    few = values(summary_of(make_run(MAX_SERIES, steps=30)))
    many = values(summary_of(make_run(MAX_SERIES + 1, steps=30)))
    assert sum(each.metric.name == "traceml.rank.step.duration" for each in few) == MAX_SERIES
    assert not any(each.metric.name.startswith("traceml.rank.") for each in many)
    assert sum(each.metric.name == "traceml.ranks.step.duration" for each in many) == 3
    assert len(many) < 100


def test_both_formats_are_valid_and_keep_awkward_names():
    summary = on_gpus()
    found = [*values(summary, AWKWARD), *values(summary, "other")]
    for text, parse in (
        (prometheus_text(found), parse_prometheus),
        (open_metrics_text(found), parse_open_metrics),
    ):
        samples = [sample for family in parse(text) for sample in family.samples]
        assert len(samples) == len(found)
        read = {(each.name, *sorted(each.labels.items())): each.value for each in samples}
        assert read == {
            (each.metric.prometheus_name, *sorted(each.labels)): each.value for each in found
        }


def test_every_series_is_in_the_catalogue_with_its_labels():
    for each in values(on_gpus()):
        declared = BY_NAME[each.metric.name]
        assert tuple(name for name, _ in each.labels) == ("run", *declared.labels)
        assert each.metric.unit == declared.unit


def test_a_metric_has_one_meaning_in_all_its_entries():
    for metric in EXPORTED:
        same = BY_NAME[metric.name]
        assert (metric.doc, metric.labels, metric.unit) == (same.doc, same.labels, same.unit)
        assert re.fullmatch(r"traceml(\.[a-z_]+)+", metric.name)
    names = {metric.prometheus_name for metric in BY_NAME.values()}
    assert len(names) == len(BY_NAME)


def test_the_dashboard_is_printed_without_a_server(capsys):
    assert main(["--grafana"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(GRAFANA_DASHBOARD.read_text())


def test_the_grafana_dashboard_asks_for_metrics_and_labels_that_exist():
    dashboard = json.loads(GRAFANA_DASHBOARD.read_text())
    by_prometheus_name = {metric.prometheus_name: metric for metric in EXPORTED}
    used = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            (name,) = re.findall(r"traceml_\w+", expression)
            metric = by_prometheus_name[name]
            used.add(name)
            labels = {"run", *metric.labels}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, name
            assert set(re.findall(r"(\w+)!?=~?\"", expression)) <= labels, name
            for grouped in re.findall(r"by \((.*?)\)", expression):
                assert set(grouped.split(", ")) <= labels, name
    assert "traceml_step_duration_seconds" in used
    variables = json.dumps(dashboard["templating"])
    assert set(re.findall(r"traceml_\w+", variables)) <= by_prometheus_name.keys()
    assert NOT_EXPORTED.prometheus_name not in used  # Prometheus alone does not have it


def test_of_too_many_logged_metrics_the_losses_are_told():
    names = ["loss", "val/loss", "zz/loss[cat]", *(f"accuracy_{n:02}" for n in range(MAX_LOGGED))]
    summary = Summary(metrics={name: MetricSummary(count=1, last=0.5) for name in names})
    told = [key[1] for key in series(summary) if key[0] == "traceml.logged"]
    assert told[:3] == ["loss", "val/loss", "accuracy_00"]
    assert len(told) == MAX_LOGGED
