"""What a run in progress has logged so far: the numbers that its final summary would have."""

from __future__ import annotations

import json
from pathlib import Path

from traceml.store import logged
from traceml.store.metric_follower import LiveMetrics


def line(step: int, **values: object) -> str:
    said = {"number": step, "kind": "metrics", "step": step, "unix_ns": step, "values": values}
    return json.dumps(said) + "\n"


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(lines)


def test_all_that_was_logged_counts_also_what_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "rank-0-1.messages"
    append(path, *(line(step, loss=10.0 - step, lr=0.1) for step in range(1, 6)))
    live = LiveMetrics(tmp_path)
    first = {metric.name: metric for metric in live.refresh()}
    assert (first["loss"].last, first["loss"].count, first["lr"].last) == (5.0, 5, 0.1)
    append(path, line(6, loss="nan"), line(7, loss=7.5), "half of a li")
    direction = {"number": 8, "kind": "directions", "values": {"loss": False}}
    append(tmp_path / "rank-1-2.messages", line(3, loss=0.5), json.dumps(direction) + "\n")
    loss = next(metric for metric in live.refresh() if metric.name == "loss")
    assert (loss.last, loss.minimum, loss.maximum, loss.count) == (7.5, 0.5, 9.0, 8)
    assert (loss.last_step, loss.first_step, loss.higher_is_better) == (7, 1, False)


def test_it_is_what_reading_everything_at_once_gives(tmp_path: Path) -> None:
    path = tmp_path / "rank-0-1.messages"
    live = LiveMetrics(tmp_path)
    for step in range(60):
        append(path, line(step, loss=abs(30 - step) / 7, **{f"m{step % 3}": step}))
        live.refresh()
    whole = logged.reduce_metrics(logged.decode(path.read_bytes()))
    found = live.refresh()
    assert [metric.name for metric in found] == ["loss", "m0", "m1", "m2"]
    for one, other in zip(found, whole, strict=True):
        assert (one.last, one.minimum, one.maximum, one.count, one.first) == (
            *(other.last, other.minimum, other.maximum, other.count, other.first),
        )
        assert abs(one.mean - other.mean) < 1e-9


def test_a_file_that_was_thinned_is_not_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "rank-0-1.messages"
    append(path, *(line(step, loss=float(step)) for step in range(40)))
    live = LiveMetrics(tmp_path)
    live.refresh()
    thinned = tmp_path / "new"
    thinned.write_bytes(logged.thin(path.read_bytes()))
    thinned.replace(path)
    append(path, line(40, loss=40.0))
    (loss,) = live.refresh()
    assert (loss.count, loss.minimum, loss.last) == (41, 0.0, 40.0)


def test_without_files_there_are_none(tmp_path: Path) -> None:
    assert LiveMetrics(tmp_path).refresh() == ()
