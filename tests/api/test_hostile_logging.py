"""Whatever a script logs, a real run keeps it apart, and says what it does not keep."""

from __future__ import annotations

import math
import pickle
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from processes import Finished, read_summary, run_traceml
from traceml.api.compare import compare_sides, find_changes
from traceml.api.query_runs import RunQuery, RunSearch
from traceml.text.comparison import comparison_text

NAMES = (
    *("val/loss", "a.b.c", "日本/精度", "emoji 🎉", "x" * 200, "with [brackets] inside"),
    *("y" * 300 + "1", "y" * 300 + "2", "tab\tand\nline", "", "metrics.loss", "loss.min"),
    *("quote\"'s", "__proto__", "and", "params.lr"),
)
SCRIPT = f"""\
import math, os, subprocess, sys, traceml
NAMES = {NAMES!r}
traceml.log_params({{"big": "x" * 1_000_000, "ünï/cödé": "日本", "which": os.environ["WHICH"]}})
for place, name in enumerate(NAMES):
    for _ in range(2):  # the second time as packed numbers
        traceml.log_metrics({{name: float(place)}}, step=1)
traceml.log_metrics({{f"m{{n}}": float(n) for n in range(10_000)}}, step=2)
for step, value in ((1, 1.0), (3, 3.0), (2, 2.0), (3, 33.0), (-5, 0.5)):
    traceml.log_metrics({{"order": value}}, step=step)
for value in (1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324):
    traceml.log_metrics({{"odd": value}}, step=7)
traceml.log_metrics({{"word": "high", "fine": 1.0}}, step=8)
CHILD = '''
import traceml
traceml.log_params({{"from_child": 1}})
for n in range(500):
    traceml.log_metrics({{"child": float(n), "shared": 1000.0 + n}}, step=n)
'''
child = subprocess.Popen([sys.executable, "-c", CHILD])
for n in range(500):
    traceml.log_metrics({{"shared": float(n)}}, step=n)
assert child.wait() == 0
for name in ("model.pt", "notes.txt"):
    traceml.log_artifact(name)
"""


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return (os.system, (self._command,))


@dataclass
class Made:
    folder: Path
    runs: dict[str, Finished]
    mark: Path
    """A file that a malicious checkpoint would make."""

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_summary(self.logs / "a")

    @property
    def said(self) -> str:
        return self.runs["a"].stderr

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = self.summary["metrics"]
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("hostile")
    mark = folder / "unpickled"
    runs = {}
    for name in "ab":
        (folder / "notes.txt").write_text(f"of run {name}")
        with ZipFile(folder / "model.pt", "w") as file:  # as torch.save makes one
            file.writestr("model/data.pkl", pickle.dumps({"w": Evil(f"touch {mark} # {name}")}))
            file.writestr("model/version", "3\n")
        words = ["run", "--run-name", name, "train.py"]
        done = run_traceml(words, folder, SCRIPT, env={"WHICH": name})
        assert done.status == 0
        runs[name] = done
    return Made(folder, runs, mark)


@pytest.fixture(scope="module")
def search(made: Made) -> RunSearch:
    return RunSearch(made.logs, max_age_s=3600.0)


def test_every_name_has_its_own_values(made: Made) -> None:
    metrics = made.metrics()
    for place, name in enumerate(NAMES):
        if len(name) <= 256:
            found = metrics[name or "(no name)"]
            assert (found["count"], found["last"], found["last_step"]) == (2, float(place), 1)
    long = {each: found["last"] for each, found in metrics.items() if each.startswith("y" * 200)}
    assert sorted(long.values()) == [6.0, 7.0]
    assert all(len(each) == 256 for each in long)
    assert all(metrics[f"m{n}"]["last"] == n for n in range(10_000))


def test_values_that_are_odd_are_kept_or_refused_and_said(made: Made) -> None:
    odd = made.metrics()["odd"]
    assert (odd["count"], odd["last"], odd["min"], odd["max"]) == (7, 5e-324, -1e308, 1e308)
    assert "word" not in made.metrics() and made.metrics()["fine"]["last"] == 1.0
    assert "'word' was not recorded: str is not a number" in made.said


def test_steps_in_any_order_are_all_counted_and_the_last_call_is_the_last_value(made: Made) -> None:
    order = made.metrics()["order"]
    assert (order["count"], order["last"], order["last_step"]) == (5, 0.5, -5)
    assert (order["min"], order["max"]) == (0.5, 33.0)


def test_two_processes_log_into_one_run_and_lose_nothing(made: Made) -> None:
    metrics = made.metrics()
    assert (metrics["child"]["count"], metrics["child"]["last"]) == (500, 499.0)
    shared = metrics["shared"]
    assert (shared["count"], shared["min"], shared["max"]) == (1000, 0.0, 1499.0)
    assert shared["mean"] == pytest.approx((sum(range(500)) + sum(range(1000, 1500))) / 1000)
    assert made.summary["params"]["from_child"] == 1
    assert made.summary["tracer"]["messages_lost"] == 0


def test_a_parameter_of_a_megabyte_is_cut_and_that_is_said(made: Made) -> None:
    params = made.summary["params"]
    assert len(params["big"]) == 4096 and params["big"].endswith("…")
    assert params["ünï/cödé"] == "日本"
    assert "the value of 'big' was cut to 4,096 characters" in made.said


@pytest.mark.parametrize(
    "text",
    [
        *("val/loss = 0", "a.b.c = 1", "日本/精度 = 2", 'metrics."emoji 🎉" = 3'),
        *(f"metrics.{'x' * 200} = 4", 'metrics."with [brackets] inside" = 5'),
        *('metrics."(no name)" = 9', "metrics.metrics.loss = 10", 'metrics."loss.min" = 11'),
        *('metrics."quote\\"\'s" = 12', "metrics.__proto__ = 13", "m9999 = 9999"),
        *('metrics."and" = 14', "metrics.params.lr = 15", "odd < 1e-300", 'big contains "xxx"'),
        'params."ünï/cödé" = "日本" and which = "a"',
    ],
)
def test_what_was_logged_can_be_asked_for(search: RunSearch, text: str) -> None:
    assert "a" in search.search(RunQuery(text)).names


def test_a_malicious_checkpoint_is_refused_with_a_reason_and_never_run(made: Made) -> None:
    compared, _ = compare_sides(["a"], ["b"], made.logs, str(made.folder / "out"))
    (model,) = [each for each in compared.artifacts if each.name == "model.pt"]
    assert model.details is None
    assert model.not_compared is not None and "system" in model.not_compared
    assert "model.pt" in comparison_text(compared)
    assert not made.mark.exists()


def test_artifacts_that_were_deleted_behind_our_back_are_told(made: Made, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(made.logs, logs)
    shutil.rmtree(logs / "a" / "artifacts")
    compared, _ = compare_sides(["a"], ["b"], logs, str(tmp_path / "out"))
    said = {each.name: each.not_compared or "" for each in compared.artifacts}
    assert set(said) == {"model.pt", "notes.txt"}
    assert all("copy is gone" in each for each in said.values())


def test_the_two_runs_are_compared_without_any_of_it_in_the_way(made: Made) -> None:
    compared, _ = find_changes(["a"], ["b"], made.logs)
    deltas = compared.sections["logged"].metrics
    assert len(deltas) == len(made.metrics())
    assert all(delta.delta == 0 for name, delta in deltas.items() if name != "odd")
    assert math.isfinite(deltas["odd"].delta or 0.0)
    assert len(comparison_text(compared).splitlines()) < 60
