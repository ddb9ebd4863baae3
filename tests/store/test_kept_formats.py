"""Every record format that was ever written stays readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml.model import record_layout
from traceml.model.record_layout import NOT_MEASURED
from traceml.store.load import load_run

KEPT = Path(__file__).parents[1] / "data" / "records"
MS = 1_000_000


def test_there_is_a_kept_run_of_every_version():
    expected = {f"v{version}" for version in range(1, record_layout.VERSION + 1)}
    assert {path.name for path in KEPT.glob("v*")} == expected


@pytest.mark.parametrize("version", range(1, record_layout.VERSION + 1))
def test_a_kept_run_reads_as_it_did(version: int):
    run = load_run(KEPT / f"v{version}")
    assert run.notes == ()
    assert run.manifest.run_name == "kept" and run.manifest.command == ("python", "train.py")
    assert run.ending is not None and run.ending.exit_status == 0
    assert [sample.host.cpu_share for sample in run.samples] == [0.5, 0.5, 0.5]
    assert run.params["lr"] == 0.1 and len(run.params["note"]) == 300
    (metric,) = run.metrics
    assert (metric.name, metric.count, metric.maximum, metric.last_step) == ("loss", 20, 1.0, 20)
    assert [artifact.path for artifact in run.artifacts] == ["/checkpoints/model.pt"]


@pytest.mark.parametrize("version", range(1, record_layout.VERSION + 1))
def test_the_steps_of_a_kept_run_are_all_there(version: int):
    (rank,) = load_run(KEPT / f"v{version}").ranks
    (block,) = rank.blocks
    assert (block["first_step"], block["steps"], block["complete_steps"]) == (0, 16, 16)
    assert block["wall_ns_sum"] == 160 * MS and block["wall_ns_max"] == 10 * MS
    assert block["optimizer_ns_sum"] == 16 * MS + sum(range(16))
    assert block["gpu_body_ns_count"] == (16 if version >= 4 else 0)
    assert rank.steps["sequence"].tolist() == list(range(17, 49))
    assert set(rank.steps["body_ns"].tolist()) == {7 * MS}
    for place, name in enumerate(
        record_layout.GPU_FIELDS
    ):  # kept since the version that has them all
        known = [100 * place + number for number in range(16, 48)]
        assert rank.steps[name].tolist() == (known if version >= 4 else [NOT_MEASURED] * 32)
    assert rank.steps["flags"].tolist() == [0] * 31 + [int(record_layout.StepFlag.ABORTED)]
    assert (rank.rank.pid, rank.rank.hostname, rank.rank.device) == (1000, "host-a", "cpu")
    (region,) = rank.regions
    assert (region.name, region.calls, region.host_s) == ("augment", 10, 0.02)
    assert rank.health.ended and rank.health.steps_lost == 0
