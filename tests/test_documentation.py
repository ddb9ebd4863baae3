"""The documentation cannot lie: what the code has is in it, and what it links to is there."""

from __future__ import annotations

import argparse
import ast
import re
import runpy
from dataclasses import fields, is_dataclass
from pathlib import Path

import msgspec
import pytest

import traceml
from traceml.cli import COMMANDS, bench, history, ui
from traceml.cli.run import _parser
from traceml.diagnose import between_steps, host_time
from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.rule import Symptom
from traceml.diagnose.rules import (
    compute_bound,
    cpu_starved,
    gpu_throttled,
    h2d_bound,
    host_bound,
    host_sync,
    incomplete_data,
    input_bound,
    slowdown,
    wait_heavy,
    warmup,
)
from traceml.model import environment, interpreter, lineage, record_layout
from traceml.model.finding import Kind, Section
from traceml.model.metric import in_summary
from traceml.summaries import host_time_record, layer_record, record, step_traces
from traceml.tui import help as terminal_help

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "traceml"
MAP = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where is what")[2].partition("\n## ")[0]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
SUMMARY = (ROOT / "docs" / "summary.md").read_text()
DIAGNOSES = (ROOT / "docs" / "diagnoses.md").read_text()
VIEWS = (ROOT / "docs" / "views.md").read_text()
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/**/*.md")]
)


def rows(text: str) -> set[str]:
    """What stands in the first cell of every table row, without its code marks."""
    return {line.split("|")[1].strip().strip("`") for line in text.splitlines() if line[:2] == "| "}


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {title!r}"
    return found[1]


def _walk() -> list[str]:
    """The numbered items that follow one input wait through the program."""
    text = (ROOT / "docs" / "explanation.md").read_text()
    found = text.partition("### Follow one input wait")[2].partition("\n## ")[0]
    return re.split(r"^\d+\. ", found, flags=re.MULTILINE)[1:]


def _defined_in(path: Path) -> set[str]:
    """The functions and classes of a file, methods with their class, and its constants."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    found.add(f"{node.name}.{each.name}")
                elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    found.add(f"{node.name}.{each.target.id}")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize("item", _walk(), ids=lambda item: " ".join(item.split()[:5]))
def test_the_walk_of_one_input_wait_names_what_there_is(item: str):
    marked = re.findall(r"`([^`]+)`", item)
    files = {name for name in marked if name.endswith(".py")}
    missing = {name for name in files if not (PACKAGE / name).is_file()}
    assert not missing, "files that are not there"
    known = {name for file in files for name in _defined_in(PACKAGE / file)}
    known |= {name for name, _ in record_layout.STEP}
    known |= {metric.key for metric in in_summary(Section.STEP_TIME)}
    names = {name for name in marked if re.fullmatch(r"[A-Za-z_]+(\.[A-Za-z_]+)?", name)}
    assert names, "an item that names nothing"
    assert names <= known, f"not in {', '.join(sorted(files))}"


@pytest.mark.parametrize("question", re.findall(r"^\| (.+\?) \| (.+) \|$", MAP, re.MULTILINE))
def test_the_map_of_where_is_what_names_what_there_is(question: tuple[str, str]):
    """What `CONTRIBUTING.md` says of a file is to be found in it."""
    marked = re.findall(r"`([^`]+)`", question[1])
    files = [name for name in marked if "/" in name]
    assert files and not [name for name in files if not (PACKAGE / name).exists()]
    sources = [PACKAGE / name for name in files if name.endswith(".py")]
    known = {name for path in sources for name in _defined_in(path)}
    assert {name for name in marked if "/" not in name} <= known


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_reference(command: str):
    assert re.search(rf"^\| `traceml {command}\b", section(REFERENCE, "Commands"), re.MULTILINE)


RUN_OPTIONS = [
    word
    for action in _parser()._actions
    for word in action.option_strings
    if word.startswith("--") and word != "--help"
]


@pytest.mark.parametrize("option", RUN_OPTIONS)
def test_every_option_of_run_is_in_the_reference(option: str):
    assert re.search(rf"^\| `{option}\b", section(REFERENCE, "Options of `run`"), re.MULTILINE)


def test_the_reference_has_no_option_that_run_has_not():
    documented = re.findall(
        r"^\| `(--[a-z-]+)", section(REFERENCE, "Options of `run`"), re.MULTILINE
    )
    assert set(documented) == set(RUN_OPTIONS)


def test_every_option_of_ui_is_in_the_reference_and_no_other():
    shown = [action for action in ui._parser()._actions if action.help != argparse.SUPPRESS]
    options = {action.option_strings[-1] for action in shown} - {"--help"}
    documented = re.findall(
        r"^\| `(--[a-z-]+)", section(REFERENCE, "Options of `ui`"), re.MULTILINE
    )
    assert set(documented) == options


def test_every_option_of_bench_is_in_the_reference_and_no_other():
    options = {action.option_strings[-1] for action in bench._parser()._actions} - {"--help"}
    documented = re.findall(
        r"^\| `(--[a-z-]+)", section(REFERENCE, "Options of `bench`"), re.MULTILINE
    )
    assert set(documented) == options


def test_every_option_of_history_is_in_the_reference_and_no_other():
    shown = [action for action in history._parser()._actions if action.option_strings]
    options = {action.option_strings[-1] for action in shown} - {"--help"}
    documented = re.findall(
        r"^\| `(--[a-z-]+)", section(REFERENCE, "Options of `history`"), re.MULTILINE
    )
    assert set(documented) == options


def test_every_address_of_the_server_is_in_the_reference():
    server = (PACKAGE / "web" / "server.py").read_text()
    paths = re.findall(r'Route\("(/[^"]*)"', server)
    documented = section(REFERENCE, "Options of `ui`")
    assert len(paths) > 20
    missing = [each for each in paths if each.replace("{name}", "NAME") not in documented]
    assert missing == ["/static/{name}"]


def test_every_key_of_the_terminal_is_in_views():
    keys = {key for key, _ in (*terminal_help._KEYS, *terminal_help._ATTACHED)}
    assert keys <= rows(section(VIEWS, "The live terminal"))


def test_every_key_of_the_viewer_is_in_views():
    viewer = (ROOT / "src/traceml/web/viewer/src/pieces/help.tsx").read_text()
    keys = set(re.findall(r'^  \["(.+?)", "', viewer, re.MULTILINE))
    assert len(keys) > 4
    assert keys <= rows(section(VIEWS, "The dashboard"))


@pytest.mark.parametrize("name", traceml.__all__)
def test_every_public_name_is_in_the_reference(name: str):
    assert re.search(rf"^\| `traceml\.{name}\b", section(REFERENCE, "Python"), re.MULTILINE)


def test_every_variable_is_in_the_reference():
    variables = {
        value
        for value in vars(environment).values()
        if isinstance(value, str) and value.startswith("TRACEML_")
    }
    assert rows(section(REFERENCE, "Environment variables")) >= variables


def test_the_sizes_in_the_reference_are_those_of_the_layout():
    text = section(REFERENCE, "Record format")
    for size in (
        record_layout.step_slots_offset(64),
        record_layout.STEP_BYTES,
        record_layout.BLOCK_BYTES,
    ):
        assert f"{size:,} bytes" in text
    versions = {int(row) for row in rows(text) if row.isdigit()}
    assert versions == set(range(1, record_layout.VERSION + 1))


def test_every_key_at_the_top_of_the_summary_has_a_row():
    keys = {field.encode_name for field in msgspec.structs.fields(record.Summary)}
    assert rows(section(SUMMARY, "Top level")) - {"key", "---"} == keys


STRUCTS = [
    record.Producer,
    record.Meta,
    record.FactSummary,
    record.Issue,
    record.PrimaryDiagnosis,
    record.Window,
    record.RankValue,
    record.Global,
    record.Identity,
    record.RankRow,
    record.Groups,
    record.SectionMetadata,
    record.SectionSummary,
    record.SystemSummary,
    record.GpuRow,
    record.StepSeries,
    record.KindScore,
    record.WhatIfSummary,
    record.FailureSummary,
    record.GoodputSummary,
    record.AttemptSummary,
    record.RegionSummary,
    record.CodeSummary,
    record.PhaseCodeSummary,
    record.UserTimeSummary,
    record.MetricSummary,
    record.ArtifactFileSummary,
    record.ArtifactVersion,
    record.ArtifactSummary,
    record.NodeSummary,
    record.TracerSummary,
    record.KinetoSummary,
    step_traces.StepTraceSummary,
    record.LayersSummary,
    layer_record.LayerSummary,
    layer_record.ActivitySummary,
    layer_record.KernelSummary,
    record.HostTimeSummary,
    host_time_record.HostPhaseSummary,
    host_time_record.HostPlaceSummary,
    host_time_record.HostCallSummary,
]


def test_no_part_of_the_summary_is_forgotten_here():
    parts = {
        part
        for part in vars(record).values()
        if isinstance(part, type)
        and issubclass(part, msgspec.Struct)
        and part is not msgspec.Struct
    }
    for module in (layer_record, host_time_record, step_traces):
        parts |= {part for part in vars(module).values() if part in STRUCTS}
    assert parts == {*STRUCTS, record.Summary, record.RunLabels}  # labels: an excerpt of it


@pytest.mark.parametrize("part", STRUCTS, ids=lambda part: part.__name__)
def test_every_key_of_every_part_is_named(part: type[msgspec.Struct]):
    missing = [
        field.encode_name
        for field in msgspec.structs.fields(part)
        if f"`{field.encode_name}`" not in SUMMARY
    ]
    assert missing == []


@pytest.mark.parametrize(
    "part",
    [part for part in vars(lineage).values() if isinstance(part, type) and is_dataclass(part)],
    ids=lambda part: part.__name__,
)
def test_every_key_of_the_lineage_is_named(part: type):
    text = section(SUMMARY, "`lineage`")
    assert [field.name for field in fields(part) if f"`{field.name}`" not in text] == []


def test_every_variable_of_the_lineage_is_named():
    text = section(SUMMARY, "`lineage`")
    names = (*interpreter.VARIABLES, *interpreter.VARIABLE_FAMILIES)
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_tables_of_metrics_are_what_the_catalogues_declare(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    write_pages = runpy.run_path(str(ROOT / "docs" / "write_catalogues.py"))["pages"]
    stale = [path.name for path, text in write_pages().items() if path.read_text() != text]
    assert not stale, (
        "a phase or a metric has changed: run `make docs`, which writes the pages anew"
    )


@pytest.mark.parametrize("part", [each for each in Section if in_summary(each)])
def test_every_metric_has_a_row_and_every_row_a_metric(part: Section):
    keys = {metric.key for metric in in_summary(part)}
    assert rows(section(SUMMARY, f"Metrics of `{part.value}`")) - {"metric", "---"} == keys


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_row_and_a_section(kind: Kind):
    assert kind.value in rows(DIAGNOSES)
    assert f"| {kind.status} |" in DIAGNOSES
    text = section(DIAGNOSES, kind.value)
    for word in ("*Meaning.*", "*Evidence.*", "*Thresholds.*", "*What to do.*"):
        assert word in text


def test_the_page_of_diagnoses_is_what_the_rules_declare():
    write_page = runpy.run_path(str(ROOT / "docs" / "write_diagnoses.py"))["page"]
    is_up_to_date = write_page(DIAGNOSES, all_rules().rules) == DIAGNOSES
    assert is_up_to_date, "a rule's text has changed: run `make docs`, which writes the page anew"


def test_every_diagnosis_of_something_wrong_can_be_found_by_what_people_see():
    documented = runpy.run_path(str(ROOT / "docs" / "write_diagnoses.py"))["documented"]
    docs = documented(all_rules().rules)
    without = {kind for kind, doc in docs.items() if not doc.symptoms}
    assert without == {Kind.BALANCED, Kind.STABLE, Kind("NORMAL")}
    assert {symptom for doc in docs.values() for symptom in doc.symptoms} == set(Symptom)
    table = DIAGNOSES.partition("<!-- table of symptoms: begin -->")[2].partition("<!--")[0]
    assert set(re.findall(r"\(#(\w+)\)", table)) == {
        kind.value.lower() for kind in docs if kind not in without
    }


BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize(
    ("question", "target", "measured", "title"),
    re.findall(r"^\| (.+\?) \| (.+) \| (.+) \| \[(.+)\]\(#.+\) \|$", BENCHMARKS, re.MULTILINE),
)
def test_the_benchmarks_begin_with_figures_of_their_own_tables(
    question: str, target: str, measured: str, title: str
):
    below = [line.split("|") for line in section(BENCHMARKS, title).splitlines() if line[:1] == "|"]
    found = [cells for cells in below if target in cells[2] and measured.strip("*") in cells[3]]
    assert found, f"{question}: {measured} is in no table of {title!r}"


def test_figures_against_peers_are_those_of_the_tables():
    compared = re.findall(
        r"^\| (.+) \| (.+) \| (.+) \((.+)\) \| \[(.+)\]\(#.+\) \|$",
        section(BENCHMARKS, "Against peers"),
        re.MULTILINE,
    )
    assert compared
    for _, ours, theirs, peer, title in compared:
        measured = section(BENCHMARKS, title).splitlines()
        assert [line for line in measured if f"| {ours} |" in line]
        assert [line for line in measured if peer in line and f"| {theirs} |" in line]


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


@pytest.mark.parametrize(
    ("title", "words"),
    [
        *(
            (kind, words)
            for kind, rule, critical in (
                ("INPUT_BOUND", input_bound, input_bound.CRITICAL[0]),
                ("H2D_BOUND", h2d_bound, h2d_bound.CRITICAL),
                ("WAIT_HEAVY", wait_heavy, wait_heavy.CRITICAL),
            )
            for words in (
                f"A share of {_percent(rule.WARN.share)} warns from {rule.WARN.min_s * 1e3:g} ms",
                f"{_percent(critical.share)} is critical from {critical.min_s * 1e3:g} ms on",
            )
        ),
        *(
            (kind, f"{_percent(host_time.WARN.share)} of the step")
            for kind in ("GC_PAUSES", "LOGGING_HEAVY", "RECOMPILING")
        ),
        ("HOST_SYNC", f"{_percent(host_sync.WARN.share)} of the step warns"),
        ("INPUT_BOUND", f"and {_percent(input_bound.CRITICAL[1].share)} from 1 ms on"),
        ("INPUT_BOUND", f"busy {_percent(input_bound.BUSY_DISK)} of the time"),
        ("INPUT_BOUND", f"less than {_percent(input_bound.SELDOM_EMPTY)} of the fetches"),
        ("INPUT_BOUND", f"{input_bound.BUSY_WORKER} of a core"),
        ("INPUT_BOUND", f"more than {input_bound.MAX_WORKERS} would be needed"),
        ("WAIT_HEAVY", f"if it is {_percent(wait_heavy.MAIN_PART)} of the rest"),
        ("COMPUTE_BOUND", f"{_percent(compute_bound.SHARE)} of the step"),
        ("HOST_BOUND", f"dry in {_percent(host_bound.DRY_SHARE)} of the watched steps"),
        ("HOST_BOUND", f"needs {_percent(host_bound.HOST_SHARE)} of the GPU's step"),
        ("HOST_BOUND", f"less than {_percent(host_bound.LOW_UTILISATION)} of the time"),
        ("CPU_STARVED", f"by the quota {_percent(cpu_starved.THROTTLED_SHARE)} of the time"),
        ("CPU_STARVED", f"without a core {_percent(cpu_starved.RUNQUEUE_SHARE)} of the time"),
        ("CPU_STARVED", f"{cpu_starved.SWAP_BYTES_PER_S >> 20} MiB swapped per second"),
        ("GPU_THROTTLED", f"in {_percent(gpu_throttled.WARN_SHARE)} of the samples"),
        ("GPU_THROTTLED", f"below {_percent(gpu_throttled.LOW_CLOCK)} of"),
        ("CHECKPOINT_HEAVY", f"from {_percent(between_steps.REMARK_SHARE)} of the wall time on"),
        ("EVALUATION_HEAVY", f"from {_percent(between_steps.REMARK_SHARE)} of the wall time on"),
        ("SLOWDOWN", f"from {slowdown.WARN_RATIO:g} times"),
        ("WARMUP", f"Fewer than {warmup.MIN_STEPS} steps"),
        ("INCOMPLETE_DATA", f"fewer than {_percent(incomplete_data.SHARED_SHARE)} of the steps"),
    ],
)
def test_the_thresholds_in_the_text_are_those_of_the_rules(title: str, words: str):
    assert words in " ".join(section(DIAGNOSES, title).split())


def _anchor(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_resolves(page: Path):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        where = page if not name else (page.parent / name).resolve()
        if not where.exists():
            broken.append(target)
        elif anchor:
            titles = re.findall(r"^#+ (.*)$", where.read_text(), re.MULTILINE)
            if anchor not in map(_anchor, titles):
                broken.append(target)
    assert broken == []


def test_every_picture_is_shown_somewhere_and_loads_at_once():
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    text = "".join(page.read_text() for page in PAGES)
    assert [path.name for path in pictures if f"images/{path.name}" not in text] == []
    assert [path.name for path in pictures if path.stat().st_size > 300_000] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_page_is_left_unfinished(page: Path):
    assert not re.search(r"\b(TODO|FIXME|TBD|XXX)\b", page.read_text())


def test_the_version_is_in_the_changelog():
    assert f"{traceml.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_package_has_a_row_for_contributors():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    packages = {path.parent.name for path in (ROOT / "src/traceml").glob("*/__init__.py")}
    assert {f"{package}/" for package in packages} <= rows(section(text, "Packages"))


def test_contributors_find_what_the_table_names():
    """Each line names files or folders, and the names in front of a file are defined in it."""
    table = section((ROOT / "CONTRIBUTING.md").read_text(), "Where is what")
    answers = [line.split(" | ")[1] for line in table.splitlines() if "? | " in line]
    assert len(answers) >= 10
    for answer in answers:
        names: list[str] = []
        for quoted in re.findall(r"`([^`]+)`", answer):
            path = ROOT / "src/traceml" / quoted
            if "/" not in quoted:
                names.append(quoted)
                continue
            assert path.exists(), quoted
            for name in names:
                *_, last = name.split(".")
                assert re.search(rf"(def|class) {last}\b|^ +{last}:", path.read_text(), re.M), name
            names = []
        assert names == [], f"{names} without a file"
