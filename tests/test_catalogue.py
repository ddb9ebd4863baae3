"""A phase or metric stands in its catalogue, and by that on every surface; nobody else lists it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalogue_surfaces import surfaces
from traceml.model import record_layout
from traceml.model.metric import METRICS
from traceml.model.phase import MEASURED, PHASES, Colour, Phase, PhaseEntry, Within

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "traceml"

Surfaces = dict[str, Any]


def expected(key: str, entry: PhaseEntry) -> dict[str, tuple[object, ...]]:
    """What each surface has to hold of a measured phase."""
    label, metric = entry.label, entry.metric
    return {
        "record": (f"{key}_ns", f"gpu_{key}_ns", f"{key}_ns_sum"),
        "step of events": (f"{key}_ns", f"gpu_{key}_ns"),
        "summary": (metric,),
        "summary, rank": (metric,),
        "summary, blocks": (key,),
        "account of lost time": (key,),
        "browser's history": (key,),
        "text": (f"─ {label.lower()} ", f" {entry.column}"),
        "page, stack": ([label, key],),
        "page, tree": (f'"name":"{label.lower()}"', f'"colour":"{key}"'),
        "page, bars": ([label, key],),
        "page, step table": (entry.label,),
        "page, rank table": (entry.label,),
        "terminal": (f"■ {label}",),
        "colours of the viewer": (f'"{key}": {{ light: "{entry.colour.light}"',),
        "words of --metric": (key,),
        "comparison, metrics": (metric,),
        "comparison, waterfall": (key,),
        "comparison, rows": (entry.short.capitalize(),),
        "docs/summary.md": (f"| `{metric}` | {entry.doc} |", f"`{key}`"),
        "docs/reference.md": (f"| `{key}` | {entry.doc} |"),
    }


def lacking(found: Surfaces, wanted: dict[str, tuple[object, ...]]) -> list[tuple[str, object]]:
    return [
        (name, each)
        for name, all_of in wanted.items()
        for each in all_of
        if each not in found[name]
    ]


@pytest.fixture(scope="module")
def today() -> Surfaces:
    return surfaces()


@pytest.mark.parametrize("phase", MEASURED)
def test_every_surface_has_the_phase(today: Surfaces, phase: Phase):
    assert lacking(today, expected(phase.value, PHASES[phase])) == []


def test_the_rest_is_on_every_surface_that_adds_up_to_the_step(today: Surfaces):
    key, entry = Phase.RESIDUAL.value, PHASES[Phase.RESIDUAL]
    wanted = expected(key, entry)
    for name in (
        "record",
        "step of events",
        "page, step table",
        "page, rank table",
        "comparison, rows",
    ):
        del wanted[name]  # it is not measured, and a comparison's is named with what it holds
    assert lacking(today, wanted) == []


PLANTED = PhaseEntry(
    within=Within.BODY,
    label="Augmentation",
    column="augm.",
    colour=Colour("#00a0a0", "#00d0d0"),
    metric="augment_ms",
    doc="augmenting a batch on the device",
)
PLANTED_METRICS = {
    "gpu_busiest_percent": ("gpu_use.busy_peak", "GPU at its busiest"),
    "counted_intervals": ("gpu_use.samples", "Intervals"),
    "counted_bytes_per_s": ("gpu_use.samples", "Bytes a second"),
    "counted_per_s": ("gpu_use.samples", "Samples a second"),
}
"""By key: where its value is from, and its row in a comparison; one of each unit."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Surfaces:
    """The surfaces of a copy in whose catalogues, and nowhere else, two lines of data are new."""
    copy = tmp_path_factory.mktemp("planted") / "traceml"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("viewer", "static", "__pycache__"))
    version = max(record_layout.HISTORY) + 1
    _insert(copy / "model/record_layout.py", '    1: "first",\n', f'    {version}: "augmenting",\n')
    entry = (
        f"Phase.AUGMENT: PhaseEntry(within=Within.BODY, label={PLANTED.label!r}, "
        f"column={PLANTED.column!r}, colour={PLANTED.colour!r}, metric={PLANTED.metric!r}, "
        f"doc={PLANTED.doc!r}, since={version}, gpu_since={version}),\n"
    )
    phases = copy / "model/phase.py"
    _insert(phases, '    RESIDUAL = "residual"\n', '    AUGMENT = "augment"\n')
    _insert(phases, "        Phase.RESIDUAL: PhaseEntry(\n", f"        {entry}")
    for key, (source, row) in PLANTED_METRICS.items():
        metric = f"    _system({key!r}, {source!r}, 'planted', row={row!r}),\n"
        _insert(copy / "model/metric.py", '    _system("cpu_peak_percent"', metric)
    done = subprocess.run(
        [sys.executable, str(TESTS / "catalogue_surfaces.py")],
        env={**os.environ, "PYTHONPATH": f"{copy.parent}{os.pathsep}{TESTS}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Surfaces = json.loads(done.stdout)
    return found


def _insert(path: Path, before: str, new: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, f"{path.name} no longer has {before!r} once"
    path.write_text(text.replace(before, new + before))


def test_a_phase_that_is_planted_in_the_catalogue_is_on_every_surface(planted: Surfaces):
    assert lacking(planted, expected("augment", PLANTED)) == []


@pytest.mark.parametrize("key", PLANTED_METRICS)
def test_a_metric_that_is_planted_in_the_catalogue_is_on_every_surface(planted: Surfaces, key: str):
    _, row = PLANTED_METRICS[key]
    wanted = {
        "summary, system": (key,),
        "comparison, rows": (row,),
        "docs/summary.md": (f"| `{key}` | planted |",),
    }
    assert lacking(planted, wanted) == []


MAX_PHASES, MAX_METRICS = 2, 3
"""In one literal: with more of them it is a list that a new one would be missing from."""
CHOICES = {
    "agent/gpu_counters.py": "what NVML calls each counter",
    "compare/blocks.py": "formulas: what follows from a step's blocks",
    "diagnose/late_ranks.py": "phases with a kind of straggler, or words, of their own",
    "figures/colours.py": "the order of colours for ranks, which are borrowed from phases",
    "figures/comparison_page.py": "the percentiles, which are a table of their own",
    "figures/exported_timeline.py": "the few sensors that are drawn over time",
    "figures/layer_tree.py": "the columns of a layer, some of them called as phases are",
    "figures/nodes.py": "the few columns of a machine",
    "figures/step_memory.py": "each peak beside its own rise",
    "model/exported_metric.py": "which metrics monitoring systems get; a phase comes by itself",
    "summaries/foreign.py": "names of older and foreign files",
    "summaries/sections.py": "the few measurements of a machine",
    "text/nodes.py": "the few columns of a machine",
    "text/summary.py": "the one line about the machine",
    "trace/failure.py": "the hooks' own functions, by phase",
}
"""Files that name several by hand, and why a new one need not be there."""
CATALOGUES = ("model/phase.py", "model/metric.py")


def _said(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
        elif isinstance(each, ast.Attribute) and getattr(each.value, "id", None) == "Phase":
            yield each.attr.lower()


def _by_hand() -> Iterator[tuple[str, int]]:
    """Literals that name more phases or metrics than a choice does, by file and line."""
    phases = {phase.value: phase for phase in Phase}
    phases |= {f"{phase.value}_{unit}": phase for phase in Phase for unit in ("ns", "s", "ms")}
    phases |= {
        name: phase for phase, entry in PHASES.items() for name in (entry.label, entry.metric)
    }
    keys = {metric.key for metric in METRICS}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set):
                said = set(_said(node))
                named = {phases[name] for name in said if name in phases}
                if len(named) > MAX_PHASES or len(said & keys) > MAX_METRICS:
                    yield path.relative_to(PACKAGE).as_posix(), node.lineno


def test_nobody_else_lists_phases_or_metrics_by_hand():
    found = dict(_by_hand())
    new = {file: line for file, line in found.items() if file not in (*CHOICES, *CATALOGUES)}
    assert new == {}, "derive it from model/phase.py or model/metric.py, or say why not in CHOICES"
    assert CHOICES.keys() <= found.keys(), "a file that lists none any more need not be excused"


def test_the_viewer_knows_no_phase_by_name():
    sources = [
        path
        for path in (PACKAGE / "web/viewer/src").rglob("*")
        if path.suffix in (".ts", ".tsx", ".css") and path.name != "schema.ts"
    ]
    assert len(sources) > 20
    names = "|".join(
        re.escape(name) for phase, entry in PHASES.items() for name in (phase.value, entry.label)
    )
    named = [
        path.name for path in sources if re.search(rf"""["'`]({names})["'`]""", path.read_text())
    ]
    assert named == []


def test_every_phase_has_an_entry_in_the_order_of_the_step():
    assert list(PHASES) == list(Phase)


def test_every_metric_has_a_key_of_its_own_in_its_section():
    keys = [(metric.section, metric.key) for metric in METRICS]
    assert len(keys) == len(set(keys))


def test_what_can_be_judged_by_has_a_name_for_the_verdict():
    first_of = {metric.word: metric for metric in reversed(METRICS) if metric.word}
    assert [word for word, metric in first_of.items() if not metric.label] == []
