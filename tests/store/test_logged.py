"""What a script logs, from the ring to the summary's numbers."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceml.store import logged, record_file
from traceml.store.load import load_run

NAMES = ("loss", "accuracy", "lr")
LOGGED = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(-1000, 1000) | st.just("nan")),
    min_size=1,
    max_size=80,
)


def metric_lines(values) -> bytes:
    return b"".join(
        logged.line(
            number,
            json.dumps(
                {"kind": "metrics", "step": number, "unix_ns": number, "values": {name: value}}
            ).encode(),
        )
        for number, (name, value) in enumerate(values, start=1)
    )


@given(values=LOGGED, times=st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_thinning_changes_no_number_of_the_summary(values, times):
    content = metric_lines(values)
    thinned = content
    for _ in range(times):
        thinned = logged.thin(thinned)
    before = logged.reduce_metrics(logged.decode(content))
    after = logged.reduce_metrics(logged.decode(thinned))
    assert repr(before) == repr(after)  # repr, because nan is not equal to itself


def test_thinning_halves_the_lines_and_keeps_the_last_number(tmp_path):
    content = metric_lines([("loss", 1)] * 1000)
    thinned = logged.thin(content)
    assert len(thinned) < 0.6 * len(content)
    (path := tmp_path / "rank-0-1.messages").write_bytes(thinned)
    assert logged.last_number(path) == 1000


def test_thinning_keeps_params_artifacts_and_losses():
    said = [
        {"number": 1, "kind": "params", "values": {"lr": 0.1, "seed": 1}},
        {"number": 2, "kind": "artifact", "name": "model", "path": "/m.pt"},
        {"number": 2, "kind": "lost", "pieces": 3},
        {"number": 6, "kind": "params", "values": {"lr": 0.2}},
        {"number": 6, "kind": "lost", "pieces": 4},
        {"number": 7, "kind": "directions", "values": {"loss": False, "gap": True, "bad": 3}},
        {"number": 8, "kind": "directions", "values": {"gap": False}},
        {"number": 11, "kind": "metrics", "step": 1, "unix_ns": 1, "values": {"loss": 1.0}},
    ]
    content = b"".join(json.dumps(message).encode() + b"\n" for message in said)
    for _ in range(3):
        content = logged.thin(content)
    messages = logged.decode(content)
    assert logged.merge_params(messages).values == {"lr": 0.2, "seed": 1}
    assert [each.name for each in logged.artifacts(messages, {})] == ["model"]
    assert logged.lost_pieces(messages) == 7
    assert logged.directions(messages) == {"loss": False, "gap": False}


def test_a_line_its_writer_was_killed_in_is_passed_over():
    content = metric_lines([("loss", 1), ("loss", 2)])[:-10]
    assert len(logged.decode(content)) == 1
    assert len(logged.decode(logged.thin(content + b"\n"))) == 4


def test_values_that_are_not_finite_are_counted_and_kept_out_of_the_mean():
    (metric,) = logged.reduce_metrics(
        logged.decode(metric_lines([("loss", 1), ("loss", "inf"), ("loss", 3), ("loss", "nan")]))
    )
    assert (metric.count, metric.minimum, metric.maximum, metric.mean) == (4, 1.0, 3.0, 2.0)
    assert math.isnan(metric.last)
    assert (metric.first_step, metric.last_step) == (1, 4)


def test_messages_stay_bounded_while_their_totals_grow(tracer, run_folder, monkeypatch):
    monkeypatch.setattr(record_file, "MAX_MESSAGE_BYTES", 4096)
    made = tracer()
    made.step(1)
    for step in range(1, 2001):
        made.metrics(step, loss=step)
        if step % 16 == 0:
            made.say({"kind": "params", "values": {"progress": step}})
        if step % 20 == 0:
            made.drain(run_folder)
    assert (run_folder / f"{made.stem}.messages").stat().st_size < 3 * 4096
    loaded = load_run(run_folder)
    (metric,) = loaded.metrics
    assert (metric.count, metric.minimum, metric.maximum) == (2000, 1, 2000)
    assert (metric.mean, metric.last, metric.last_step) == (1000.5, 2000, 2000)
    assert loaded.params == {"progress": 2000}


@pytest.mark.parametrize("drained_before", [True, False], ids=["in mid-run", "at the beginning"])
def test_messages_the_ring_overwrote_are_counted(tracer, run_folder, drained_before):
    made = tracer(messages=8)
    made.step(1)
    made.metrics(0, loss=0)
    if drained_before:
        made.drain(run_folder)
    for step in range(1, 21):
        made.metrics(step, loss=step)
    made.drain(run_folder)
    loaded = load_run(run_folder)
    (metric,) = loaded.metrics
    assert loaded.ranks[0].health.messages_lost == 21 - metric.count
    assert metric.last == 20 and metric.count < 10


def test_an_artifacts_size_and_hash_are_found_by_its_path():
    said = [{"kind": "artifact", "name": "model", "path": "/m.pt"}]
    (found,) = logged.artifacts(said, {"/m.pt": {"size_bytes": 3, "sha256": "ab"}})
    assert (found.size_bytes, found.sha256) == (3, "ab")


def test_of_ddps_own_statistics_the_latest_count():
    def said(overlap_ns):
        return {
            "kind": "ddp",
            "communication_ns": 2_000_000,
            "overlap_ns": overlap_ns,
            "gradient_bytes": 4096,
            "buckets": 2,
            "has_hook": False,
        }

    found = logged.ddp_statistics([said(1), {"kind": "params", "values": {}}, said(500_000)])
    assert (found.communication_s, found.overlap_s) == (0.002, 0.0005)
    assert logged.ddp_statistics([{"kind": "params", "values": {}}]) is None


def test_metric_names_that_grow_without_end_do_not_grow_the_file(tracer, run_folder, monkeypatch):
    monkeypatch.setattr(record_file, "MAX_MESSAGE_BYTES", 16_384)
    monkeypatch.setattr(logged, "MAX_METRIC_NAMES", 20)
    made = tracer()
    made.step(1)
    sizes = []
    for step in range(1, 2001):
        made.metrics(step, **{f"value at step {step}": step})
        if step % 20 == 0:
            made.drain(run_folder)
            sizes.append((run_folder / f"{made.stem}.messages").stat().st_size)
    assert max(sizes) < 3 * 16_384
    assert max(sizes[50:]) <= 1.2 * max(sizes[:50])
    loaded = load_run(run_folder)
    assert len(loaded.metrics) == 20
    assert loaded.metrics[0].count == 1
    (note,) = loaded.notes
    assert note.startswith("metrics of 20 names are kept; those of further names are left out")


def test_the_parameters_of_a_run_have_a_limit_and_known_names_their_last_value():
    params = logged.Params()
    params.add({f"name {n}": n for n in range(2 * logged.MAX_PARAM_NAMES)})
    assert len(params.values) == logged.MAX_PARAM_NAMES
    params.add({"name 7": "again", "another": 1})
    assert params.values["name 7"] == "again"
    assert "another" not in params.values
    wide = logged.Params()
    wide.add({f"{n}": "x" * 10_000 for n in range(1000)})
    assert 0 < sum(map(len, wide.values.values())) <= logged.MAX_PARAM_LETTERS


def test_artifacts_whose_messages_were_lost_say_for_themselves_what_they_are():
    entry = {"name": "model", "path": "/m.pt", "unix_ns": 5, "size_bytes": 3, "kind": "checkpoint"}
    (found,) = logged.artifacts([], {"05-1": entry})
    assert (found.name, found.path, found.kind, found.note) == (
        "model",
        "/m.pt",
        "checkpoint",
        None,
    )


def test_an_artifact_that_no_agent_has_copied_says_so():
    said = [{"kind": "artifact", "name": "model", "path": "/m.pt", "id": "05-1", "unix_ns": 5}]
    (found,) = logged.artifacts(said, {})
    assert found.note == logged.NOT_COPIED_YET
    elsewhere = {"kind": "artifact", "name": "model", "path": "s3://b/m.pt", "unix_ns": 5}
    (found,) = logged.artifacts([elsewhere], {})
    assert (found.kind, found.note) == ("reference", None)


@pytest.mark.parametrize("entry", [{"size_bytes": "x"}, {"files": 3}, {"unix_ns": -1}, {"name": 1}])
def test_a_damaged_entry_of_an_artifact_costs_no_other(entry):
    said = [{"kind": "artifact", "name": name, "path": f"/{name}", "id": name} for name in "ab"]
    found = logged.artifacts(said, {"a": entry, "b": {"size_bytes": 3}})
    assert [(each.name, each.size_bytes) for each in found] == [("a", None), ("b", 3)]


def test_values_that_are_no_numbers_take_no_room_from_others(monkeypatch):
    monkeypatch.setattr(logged, "MAX_METRIC_NAME_BYTES", 10)
    lines = [{"kind": "metrics", "values": {"word": "no number"}}] * 20
    lines.append({"kind": "metrics", "values": {"a": 1.0, "bb": 2.0, "much too long": 3.0}})
    assert [each.name for each in logged.reduce_metrics(lines)] == ["a", "bb"]


@pytest.mark.parametrize("sign", ["x", "精"], ids=["one byte a sign", "three bytes"])
def test_the_totals_of_all_names_that_are_kept_fit_a_file_of_messages(sign):
    """Else every message that follows would thin the file again."""
    names = [sign * 240 + str(number) for number in range(15_000)]
    parts = [names[start : start + 100] for start in range(0, len(names), 100)]
    lines = [
        {"number": n, "kind": "metrics", "unix_ns": n, "values": dict.fromkeys(part, 1e300 / 7)}
        for n, part in enumerate(parts)
    ]
    content = b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in lines)
    for _ in range(12):
        content = logged.thin(content)
    assert len(content) < record_file.MAX_MESSAGE_BYTES
    metrics = logged.reduce_metrics(logged.decode(content))
    assert logged.is_full(metrics)
    assert len(metrics) <= logged.MAX_METRIC_NAMES
    assert sum(len(each.name.encode()) for each in metrics) <= logged.MAX_METRIC_NAME_BYTES
