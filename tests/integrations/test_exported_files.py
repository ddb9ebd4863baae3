"""Exported files, read by the libraries of their formats: pyarrow, and Perfetto's own messages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factories import make_run
from failing import failed, report
from node_runs import bring_to_head, write_nodes
from replay import with_part
from restarted_runs import Start, restarted
from run_folders import write_run
from traceml.cli import main
from traceml.figures.exported_timeline import write_timeline
from traceml.model import record_layout
from traceml.store.perfetto_trace import PerfettoWriter
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.read import read_summary

parquet = pytest.importorskip("pyarrow.parquet")
unknown_fields = pytest.importorskip("google.protobuf.unknown_fields")
perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@dataclass
class Slice:
    name: str
    depth: int
    begin_ns: int
    end_ns: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class ReadTrace:
    """A trace as a viewer sees it, by the paths of its tracks: `process/track`."""

    slices: dict[str, list[Slice]]
    instants: dict[str, list[tuple[str, int]]]
    counters: dict[str, list[tuple[int, float]]]
    processes: dict[str, int]


def read_trace(path: Path) -> ReadTrace:
    """Reads a trace with the messages that Perfetto publishes, and checks what its importer asks
    for: tracks described before use, interned names, slices that nest and end."""
    trace = perfetto.Trace()
    assert trace.ParseFromString(path.read_bytes()) == path.stat().st_size
    tracks: dict[int, Any] = {}
    names: dict[int, str] = {}
    found = ReadTrace(defaultdict(list), defaultdict(list), defaultdict(list), {})
    is_open: dict[str, list[Slice]] = defaultdict(list)
    last_ns: dict[str, int] = {}
    assert trace.packet[0].sequence_flags & 1 and trace.packet[0].HasField("clock_snapshot")
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        for part in (packet, packet.track_event, packet.track_descriptor, packet.interned_data):
            assert not len(unknown_fields.UnknownFieldSet(part)), "no field of Perfetto's"
        for name in packet.interned_data.event_names:
            names[name.iid] = name.name
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks and (
                not track.parent_uuid or track.parent_uuid in tracks
            )
            tracks[track.uuid] = track
            if track.HasField("process"):
                assert track.process.pid not in found.processes.values()
                found.processes[track.process.process_name] = track.process.pid
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        where = tracks[event.track_uuid]
        key = f"{tracks[where.parent_uuid].process.process_name}/{where.name}"
        assert packet.timestamp >= last_ns.get(key, 0), f"{key} goes back in time"
        last_ns[key] = packet.timestamp
        kind = event.type
        name = names[event.name_iid] if event.name_iid else event.name
        if kind == event.TYPE_SLICE_BEGIN:
            notes = {
                n.name: n.string_value or n.int_value or n.double_value
                for n in event.debug_annotations
            }
            made = Slice(name, len(is_open[key]), packet.timestamp, notes=notes)
            found.slices[key].append(made)
            is_open[key].append(made)
        elif kind == event.TYPE_SLICE_END:
            is_open[key].pop().end_ns = packet.timestamp
        elif kind == event.TYPE_INSTANT:
            found.instants[key].append((name, packet.timestamp))
        else:
            assert kind == event.TYPE_COUNTER and where.HasField("counter")
            found.counters[key].append((packet.timestamp, event.double_counter_value))
    assert not any(is_open.values()), "a slice never ends"
    return found


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("logs")
    write_run(place / "plain", make_run(ranks=2, gpu=True, between_ms=2.0, input_ms=30.0))
    write_run(place / "cut-short", make_run(), is_over=False)
    bring_to_head(*write_nodes(place / "nodes", ahead_s=100.0))
    return place


def exported(logs: Path, run: str, path: Path) -> ReadTrace:
    words = ["export", run, "--format", "perfetto", "-o", str(path), "--logs-dir", str(logs)]
    assert main(words) == 0
    return read_trace(path)


def test_parquet_has_types_nulls_and_every_row(logs: Path, tmp_path: Path):
    words = ["export", "plain", "--format", "parquet", "-o", str(tmp_path), "--logs-dir", str(logs)]
    assert main(words) == 0
    steps = parquet.read_table(tmp_path / "steps.parquet")
    assert steps.num_rows == 400
    assert str(steps.schema.field("forward_ms").type) == "double"
    assert str(steps.schema.field("step").type) == "int64"
    assert steps["h2d_ms"].null_count == 400 and steps["forward_ms"].null_count == 0
    findings = parquet.read_table(tmp_path / "findings.parquet").to_pylist()
    primary = read_summary(logs / "plain" / "final_summary.json").primary_diagnosis
    assert [row["kind"] for row in findings if row["is_primary"]] == [primary.kind]
    assert parquet.read_table(tmp_path / "step_blocks.parquet").num_rows == 0


def test_phases_nest_in_the_steps_of_their_rank(logs: Path, tmp_path: Path):
    trace = exported(logs, "plain", tmp_path / "a.pftrace")
    slices = trace.slices["rank 1 on host-a/Steps"]
    steps = [each for each in slices if each.name == "Step"]
    assert [step.notes["step"] for step in steps] == list(range(1, 201))
    assert {each.name for each in slices if each.depth} == {
        "Input wait",
        "Forward",
        "Backward",
        "Optimizer",
    }
    inner = [each for each in slices if each.depth == 1]
    first = [each for each in inner if each.end_ns <= steps[0].end_ns]
    assert [each.name for each in first] == ["Input wait", "Forward", "Backward", "Optimizer"]
    assert all(a.end_ns == b.begin_ns for a, b in pairwise(first))
    assert all(b.begin_ns - a.end_ns == 2_000_000 for a, b in pairwise(steps))
    assert (
        len([e for e in trace.slices["rank 0 on host-a/Steps by the GPU's clock"] if not e.depth])
        == 200
    )
    memory = trace.counters["rank 0 on host-a/Memory allocated on the device"]
    assert len(memory) == 200 and {value for _, value in memory} == {10.0 * 2**30}
    assert "rank 0 on host-a/Memory of the process" not in trace.counters, "it was not measured"
    assert len(trace.counters["machine host-a/CPU busy"]) == 3


def test_findings_are_on_tracks_of_their_own(logs: Path, tmp_path: Path):
    trace = exported(logs, "plain", tmp_path / "a.pftrace")
    found = {
        s.name: s for key, ss in trace.slices.items() if key.startswith("findings/") for s in ss
    }
    primary = read_summary(logs / "plain" / "final_summary.json").primary_diagnosis
    assert found[primary.status].notes["summary"] == primary.summary
    steps = [each for n in (0, 1) for each in trace.slices[f"rank {n} on host-a/Steps"]]
    assert found[primary.status].begin_ns == min(s.begin_ns for s in steps if s.name == "Step")
    assert found[primary.status].end_ns == max(step.end_ns for step in steps)


def steps_and_findings(run: RunRecords, path: Path) -> tuple[list[Slice], dict[str, Slice]]:
    """A run's complete steps, and its findings by their kinds."""
    with path.open("wb") as file:
        write_timeline(PerfettoWriter(file), run, build(run, 0.0, "1"))
    trace = read_trace(path)
    steps = [s for s in trace.slices["rank 0 on host-a/Steps"] if s.name == "Step"]
    findings = [s for key, ss in trace.slices.items() if key.startswith("findings/") for s in ss]
    return steps, {each.notes["kind"]: each for each in findings}


def test_a_finding_lies_where_its_steps_do(tmp_path: Path):
    slower, grown = steps_and_findings(make_run(steps=400, slowdown_at=200), tmp_path / "s.pftrace")
    since = grown["SLOWDOWN"].notes["since_step"]
    assert abs(since - 201) <= 5
    assert grown["SLOWDOWN"].begin_ns == slower[since - 1].begin_ns
    assert grown["SLOWDOWN"].end_ns >= slower[-1].end_ns
    _, stalled = steps_and_findings(
        with_part(make_run(steps=100), "input", 9e3, slice(50, 51)), tmp_path / "o.pftrace"
    )
    one = stalled["INPUT_BOUND"]
    assert 9e9 <= one.end_ns - one.begin_ns < 9.5e9


@pytest.mark.parametrize("at", [150, 201], ids=["in a step that was kept", "after the last step"])
def test_a_failure_lies_at_its_step(tmp_path: Path, at: int):
    steps, found = steps_and_findings(failed(report(step=at)), tmp_path / "f.pftrace")
    assert len(steps) == 200
    begin_ns = steps[at - 1].begin_ns if at <= 200 else steps[-1].end_ns
    assert found["EXCEPTION"].begin_ns == begin_ns
    assert (found["EXCEPTION"].notes["since_step"], found["EXCEPTION"].notes["until_step"]) == (
        at,
        at,
    )
    if at <= 200:
        assert found["EXCEPTION"].end_ns == steps[at - 1].end_ns


def test_machines_are_on_one_clock(logs: Path, tmp_path: Path):
    trace = exported(logs, str(logs / "nodes" / "host-a" / "run"), tmp_path / "n.pftrace")
    begins = {key: ss[0].begin_ns for key, ss in trace.slices.items() if key.endswith("/Steps")}
    assert set(begins) == {f"rank {n} on host-{'aabb'[n]}/Steps" for n in range(4)}
    assert max(begins.values()) - min(begins.values()) < 1e9, "the other clock is 100 s ahead"
    assert "machine host-b" in trace.processes


def test_a_run_that_was_cut_short_is_a_trace_without_findings(logs: Path, tmp_path: Path):
    trace = exported(logs, "cut-short", tmp_path / "c.pftrace")
    assert len([each for ss in trace.slices.values() for each in ss if each.name == "Step"]) == 200
    assert not [key for key in trace.slices if key.startswith("findings/")]


def test_attempts_are_processes_one_after_another(tmp_path: Path):
    with (tmp_path / "r.pftrace").open("wb") as file:
        write_timeline(PerfettoWriter(file), restarted(Start(steps=10), Start(steps=5)), None)
    trace = read_trace(tmp_path / "r.pftrace")
    first, second = (trace.slices[f"rank 0, attempt {n} on host-a/Steps"] for n in (1, 2))
    assert first[-1].end_ns <= second[0].begin_ns
    assert [each.notes["step"] for each in second if each.name == "Step"] == list(range(11, 16))


def test_a_process_number_that_is_used_again_is_another_process(tmp_path: Path):
    run = restarted(Start(steps=10), Start(steps=5))
    same = tuple(replace(each, rank=replace(each.rank, pid=1)) for each in run.processes)
    with (tmp_path / "r.pftrace").open("wb") as file:
        write_timeline(PerfettoWriter(file), replace(run, processes=same, starts=()), None)
    assert len(read_trace(tmp_path / "r.pftrace").processes) == 4


def test_what_the_gpu_did_of_an_unfinished_step_is_no_step(tmp_path: Path):
    run = make_run(steps=7, gpu=True)
    steps = np.array(run.ranks[0].steps)
    steps["flags"][6] |= int(record_layout.StepFlag.ABORTED)
    with (tmp_path / "g.pftrace").open("wb") as file:
        run = replace(run, ranks=(replace(run.ranks[0], steps=steps),))
        assert write_timeline(PerfettoWriter(file), run, None) == (6, 0)
    trace = read_trace(tmp_path / "g.pftrace")
    for track in ("Steps", "Steps by the GPU's clock"):
        slices = trace.slices[f"rank 0 on host-a/{track}"]
        numbers = [each.notes["step"] for each in slices if each.name == "Step"]
        assert numbers == list(range(1, 7))
