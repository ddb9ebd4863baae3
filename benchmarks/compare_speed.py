"""How long `traceml compare` takes on run folders as people have them, from command to end.

Fifty runs of one command lie in a repository with their lineage; those of A and of B are of
different commits, so that a comparison also looks for earlier runs and asks git what changed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.figure import Figure
from benchmarks.stats import median_interval
from traceml.model.run import Manifest
from traceml.store.folder import write_manifest

REPEATS = 9
RUNS = 50
GROUP = 20
PACKAGES = 150
LARGE_BYTES = 200_000_000
LARGE_REPEATS = 5
COMMAND = ("python", "train.py", "--lr", "0.1")


def document(step_ms: float, run_name: str) -> dict[str, Any]:
    """A small summary of ours."""
    average = {"step_time_ms": step_ms, "input_wait_ms": 1.0, "forward_ms": 5.0}
    average |= {"backward_ms": 10.0, "optimizer_ms": 2.0, "compute_ms": 17.0}
    waves = [1 + 0.01 * ((place * 7919) % 13 - 6) for place in range(64)]
    blocks = [step_ms * wave for wave in waves]
    levels = {"input": 1.0, "h2d": 0.5, "forward": 5.0, "backward": 10.0, "optimizer": 2.0}
    levels |= {"residual": step_ms - 18.5, "between": 1.0, "wall": step_ms + 1}
    parts = {name: [level * wave for wave in waves] for name, level in levels.items()}
    steps = {"count": 640, "block_steps": 10, "block_means_ms": blocks}
    return {
        "schema_version": 1.9,
        "producer": {"name": "traceml-insight", "version": "0", "format": 1},
        "meta": {"run_name": run_name, "world_size": 1},
        "step_time": {"global": {"window": {"diagnosis_clock": "cpu"}, "average": average}},
        "steps": {**steps, "part_block_means_ms": parts},
    }


def lineage(project: Path, commit: str) -> dict[str, Any]:
    """Where such a run comes from."""
    return {
        "captured_unix_s": time.time(),
        "code": {"repository": str(project), "commit": commit, "branch": "main", "dirty": False},
        "command": {
            "words": COMMAND,
            "script": COMMAND[1],
            "arguments": COMMAND[2:],
            "folder": str(project),
        },
        "environment": {"python": "3.12.1", "torch": "2.11.0", "cuda": "12.8"},
        "packages": {f"package-{place}": f"1.{place}" for place in range(PACKAGES)},
        "hardware": {"hostname": "node", "cpu": "a CPU", "cores": 8, "gpus": []},
        "data": {"dvc": {}, "paths": {"data": {"files": 3, "size_bytes": 6}}},
        "variables": {"OMP_NUM_THREADS": "8"},
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


def make_runs(project: Path) -> None:
    """Fifty finished runs: `a-*` of the first commit, `b-*` and the rest of the second."""
    commits = [_commit(project, f"x = {number}\n" * 100) for number in range(2)]
    names = [f"a-{number}" for number in range(GROUP)] + [f"b-{number}" for number in range(GROUP)]
    names += [f"other-{number}" for number in range(RUNS - len(names))]
    for number, name in enumerate(names):
        folder = project / "logs" / name
        folder.mkdir(parents=True)
        is_first = name.startswith("a-")
        step_ms = (20.0 if is_first else 21.0) * (1 + number % GROUP / 1000)
        made = document(step_ms, name) | {"lineage": lineage(project, commits[not is_first])}
        (folder / "final_summary.json").write_text(json.dumps(made))
        write_manifest(folder, Manifest(name, time.time(), COMMAND, str(project)))


def run() -> list[Figure]:
    """Two runs, two groups of runs, and a file that is far too large."""
    with tempfile.TemporaryDirectory() as place:
        project = Path(place)
        make_runs(project)
        large = project / "large.json"
        large.write_text(large_document(20.0))
        groups = ["--a", "a-*", "--b", "b-*"]
        return [
            _timed(f"compare two of {RUNS} runs", "≤ 0.3 s", project, ["a-0", "b-0"], REPEATS),
            _timed(f"compare 2 × {GROUP} runs", "≤ 1.5 s", project, groups, REPEATS),
            _timed(
                f"compare with a summary of {LARGE_BYTES // 10**6} MB",
                "≤ 1.5 s",
                project,
                [str(large), "b-0"],
                LARGE_REPEATS,
            ),
        ]


def _commit(project: Path, content: str) -> str:
    """Write the script and commit it; the first time, make the repository."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    (project / "train.py").write_text(content)
    for words in (["init", "--quiet"], ["add", "train.py"], ["commit", "--quiet", "-m", "change"]):
        subprocess.run(["git", *identity, *words], cwd=project, check=True)
    asked = ["git", "rev-parse", "HEAD"]
    return subprocess.run(asked, cwd=project, check=True, capture_output=True, text=True).stdout[
        :40
    ]


def _timed(what: str, target: str, project: Path, words: list[str], repeats: int) -> Figure:
    _seconds(project, words)  # the files are in memory from here on
    before_s = commands.children_cpu_s()
    middle, low, high = median_interval([_seconds(project, words) for _ in range(repeats)])
    cpu_s = (commands.children_cpu_s() - before_s) / repeats
    spread = f"95 % interval of the median, {repeats}"
    return Figure(what, target, middle, "s", low, high, spread, f"of which {cpu_s:.2f} s on a core")


def _seconds(project: Path, words: list[str]) -> float:
    """How long one comparison takes for somebody who stands in the project."""
    command = [*commands.traceml(), "compare", *words]
    began_s = time.monotonic()
    subprocess.run(
        command, cwd=project, env=commands.environment(), check=True, capture_output=True
    )
    return time.monotonic() - began_s
