"""The history of a metric, with the times at which its values were logged."""

from __future__ import annotations

import json

from traceml.store.folder import read_manifest
from traceml.store.metric_curves import read_curves


def test_a_curve_is_in_seconds_since_the_run_began(tracer, run_folder):
    began_ns = int(read_manifest(run_folder).started_unix_s * 1e9)
    logged = [(2, {"loss": 0.5, "other": 1}), (1, {"loss": 1.0}), (3, {"loss": "nan"})]
    lines = [
        {"number": place, "kind": "metrics", "unix_ns": began_ns + s * 10**9, "values": values}
        for place, (s, values) in enumerate(logged)
    ]
    lines += [{"number": 9, "kind": "params", "values": {"loss": 3}}]
    made = tracer()
    made.step(1)
    made.drain(run_folder)
    written = "".join(json.dumps(line) + "\n" for line in lines)
    (run_folder / f"{made.stem}.messages").write_text(written)
    (name, curve), *others = read_curves(run_folder, ["loss", "missing"]).items()
    assert (name, others) == ("loss", [])
    assert [value for _, value in curve] == [1.0, 0.5]
    assert [round(at_s, 3) for at_s, _ in curve] == [1.0, 2.0]
