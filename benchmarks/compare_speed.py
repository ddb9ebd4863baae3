"""How long `traceml compare` takes, from the command to its end."""

from __future__ import annotations

import json
import resource
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.figure import Figure
from benchmarks.stats import median_interval

REPEATS = 9
GROUP = 20
LARGE_BYTES = 200_000_000
LARGE_REPEATS = 5


def document(step_ms: float, run_name: str) -> dict[str, Any]:
    """A small summary of ours."""
    average = {"step_time_ms": step_ms, "input_wait_ms": 1.0, "forward_ms": 5.0}
    average |= {"backward_ms": 10.0, "optimizer_ms": 2.0, "compute_ms": 17.0}
    blocks = [step_ms * (1 + 0.01 * ((place * 7919) % 13 - 6)) for place in range(64)]
    return {
        "schema_version": 1.9,
        "producer": {"name": "traceml-insight", "version": "0", "format": 1},
        "meta": {"run_name": run_name, "world_size": 1},
        "step_time": {"global": {"window": {"diagnosis_clock": "cpu"}, "average": average}},
        "steps": {"count": 640, "block_steps": 10, "block_means_ms": blocks},
    }


def large_document(step_ms: float) -> str:
    """The same with more ranks than any job has, up to the size asked for."""
    whole = document(step_ms, "large")
    metrics = {f"metric_{place}_ms": step_ms + place for place in range(25)}
    row = json.dumps({"identity": {"global_rank": 1, "hostname": "node"}, "metrics": metrics})
    rows = ", ".join(f'"{rank}": {row}' for rank in range(LARGE_BYTES // (len(row) + 10)))
    text = json.dumps(whole)
    return text.replace(
        '"step_time": {',
        f'"step_time": {{"groups": {{"by": "global_rank", "rows": {{{rows}}}}}, ',
        1,
    )


def run() -> list[Figure]:
    """Two files, two groups of runs, and a file that is far too large."""
    with tempfile.TemporaryDirectory() as place:
        logs = Path(place) / "logs"
        for group, step_ms in (("a", 20.0), ("b", 21.0)):
            for number in range(GROUP):
                folder = logs / f"{group}-{number}"
                folder.mkdir(parents=True)
                made = document(step_ms * (1 + number / 1000), folder.name)
                (folder / "final_summary.json").write_text(json.dumps(made))
        large = Path(place) / "large.json"
        large.write_text(large_document(20.0))
        small = logs / "b-0" / "final_summary.json"
        base = ["compare", "--logs-dir", str(logs), "--output", str(Path(place) / "out")]
        groups = ["--a", "a-*", "--b", "b-*"]
        return [
            _timed("compare two summaries", "≤ 0.3 s", [*base, "a-0", "b-0"], REPEATS),
            _timed(f"compare 2 × {GROUP} runs", "≤ 1.5 s", [*base, *groups], REPEATS),
            _timed(
                f"compare with a summary of {LARGE_BYTES // 10**6} MB",
                "≤ 1.5 s",
                [*base, str(large), str(small)],
                LARGE_REPEATS,
            ),
        ]


def _timed(what: str, target: str, words: list[str], repeats: int) -> Figure:
    command = [*commands.traceml(), *words]
    commands.run(command)  # the files are in memory from here on
    before_s = _children_cpu_s()
    middle, low, high = median_interval([commands.seconds(command) for _ in range(repeats)])
    cpu_s = (_children_cpu_s() - before_s) / repeats
    spread = f"95 % interval of the median, {repeats}"
    return Figure(what, target, middle, "s", low, high, spread, f"of which {cpu_s:.2f} s on a core")


def _children_cpu_s() -> float:
    """What a busy machine does not stretch."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
