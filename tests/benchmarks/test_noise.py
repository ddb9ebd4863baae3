"""The noise benchmark plans enough pairs, and counts every verdict on the same script as false."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks import noise
from compared_runs import run
from traceml.summaries.read import FILE_NAME


def keep(folder: Path, name: str, step_ms: float, **fields: object) -> None:
    steps = {"count": 400, "stdev_ms": step_ms / 100, "effective_count": 100.0}
    summary = run({"step_time_ms": step_ms}, steps=steps, **fields)
    (folder / name).mkdir()
    (folder / name / FILE_NAME).write_bytes(msgspec.json.encode(summary))


def test_a_hundred_pairs_of_each_kind_are_planned() -> None:
    planned = noise.plan()
    assert len({each.name for each in planned}) == len(planned)
    for kind in (noise.ALONE, noise.LOADED):
        numbers = [
            sum(each.script == script and each.kind == kind for each in planned)
            for script in noise.SCRIPTS
        ]
        assert sum(number * (number - 1) // 2 for number in numbers) >= 100
    loads = {each.load for each in planned if each.kind == noise.LOADED}
    assert loads == set(noise.LOADS)
    assert all((each.load.processes > 0) == (each.kind == noise.LOADED) for each in planned)


def test_kept_runs_are_judged_pair_by_pair(tmp_path: Path) -> None:
    """Of one script: two alike, one that a loaded machine slowed, and one that was changed."""
    busy = {"global": {"average": {"cpu_percent": 100.0, "cpu_other_percent": 50.0}}}
    quiet = {"global": {"average": {"cpu_percent": 52.0, "cpu_other_percent": 2.0}}}
    for script in noise.SCRIPTS:
        keep(tmp_path, f"{script}.alone.0", 100.0, system=quiet)
        keep(tmp_path, f"{script}.alone.1", 101.0, system=quiet)
        keep(tmp_path, f"{script}.loaded.0", 115.0, system=busy)
        keep(tmp_path, f"{script}.loaded.1", 160.0, system=busy)
        keep(tmp_path, f"{script}.+10%.0", 110.0, system=quiet)
        keep(tmp_path, f"{script}.+30%.0", 130.0, system=quiet)
    found = {figure.what: figure for figure in noise.judge(tmp_path)}
    shares = {what.rpartition(":")[0]: figure.measured for what, figure in found.items()}
    assert shares == {
        "same script, both alone": 0.0,
        "same script, both under load": 100.0,
        "same script, one alone, one under load": 50.0,
        "same script, both alone and quiet": 0.0,
        "planted +10 %, both alone": 100.0,
        "planted +30 %, both alone": 100.0,
        "planted +10 % on a quiet machine, both alone": 100.0,
        "planted +30 % on a quiet machine, both alone": 100.0,
    }
    assert found["same script, both alone: false verdicts"].spread.endswith("0 of 2 pairs")
