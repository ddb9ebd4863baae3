"""What commands print as JSON, against the schemas that the package publishes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from factories import make_run
from node_runs import bring_to_head, write_nodes
from run_folders import write_run
from traceml.cli import COMMANDS, main
from traceml.cli.schema import SCHEMA_FOLDER, published_schema
from traceml.figures.exported_tables import TABLE_NAMES
from traceml.figures.json_documents import DOCUMENTS

ROOT = Path(__file__).parents[2]
PRINTED_AS = {
    "view": ("summary",),
    "recover": ("summary",),
    "compare": ("comparison", "many-runs", "test-set", "arms"),
    "bench": ("comparison",),
    "runs": ("runs", "run-groups", "what-mattered"),
    "history": ("history",),
    "tag": ("tags",),
    "export": tuple(f"export-{name.replace('_', '-')}" for name in TABLE_NAMES),
}
"""The documents of each command that reads runs and prints JSON."""
SENDS = ("push",)
"""They read no run for anybody: what they print is about the sending."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("logs")
    for number, forward_ms in enumerate((10.0, 12.0, 14.0)):
        run = make_run(ranks=2, gpu=number > 0, forward_ms=forward_ms, seed=number, between_ms=1.0)
        write_run(place / f"run-{number}", run)
    write_run(place / "cut-short", make_run(steps=20), is_over=False)
    write_run(place / "short", make_run(steps=1, samples=0))
    bring_to_head(*write_nodes(place / "nodes", ahead_s=1.0))
    (place / "a.csv").write_text("id,score\n" + "".join(f"{n},{n % 3}\n" for n in range(60)))
    (place / "b.csv").write_text("id,score\n" + "".join(f"{n},{n % 2}\n" for n in range(60)))
    arms = "".join(f"{'ab'[n % 2]},{n % 3 == 0:d}\n" for n in range(400))
    (place / "arms.csv").write_text("arm,outcome\n" + arms)
    return place


def strict(text: str) -> Any:
    """JSON without what Python alone accepts (NaN)."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def problems(name: str, document: Any) -> list[str]:
    schema = json.loads(published_schema(name))
    Draft202012Validator.check_schema(schema)
    return [each.message for each in Draft202012Validator(schema).iter_errors(document)]


CASES = [
    ("summary", ["view", "run-1"]),
    ("summary", ["view", "short"]),
    ("summary", ["view", "nodes/host-a/run"]),
    ("summary", ["recover", "cut-short"]),
    ("comparison", ["compare", "run-0", "run-1", "--output", "{out}"]),
    ("comparison", ["compare", "run-0", "short", "--output", "{out}"]),
    ("many-runs", ["compare", "run-0", "run-1", "run-2", "--output", "{out}"]),
    ("test-set", ["compare", "{logs}/a.csv", "{logs}/b.csv", "--output", "{out}"]),
    ("arms", ["compare", "--arms", "{logs}/arms.csv", "--output", "{out}"]),
    ("runs", ["runs"]),
    ("runs", ["runs", "--columns", "*"]),
    ("run-groups", ["runs", "--group-by", "status"]),
    ("what-mattered", ["runs", "--what-mattered", "step_time_ms"]),
    ("history", ["history"]),
    ("history", ["history", 'status = "failed"']),
    ("tags", ["tag", "run-0", "good", "--note", "fine"]),
]


@pytest.mark.parametrize(
    ("name", "words"), CASES, ids=lambda part: " ".join(part) if isinstance(part, list) else part
)
def test_what_is_printed_fits_its_schema(
    name: str, words: list[str], logs: Path, tmp_path: Path, capfd
):
    said = [word.format(logs=logs, out=tmp_path / "out") for word in words]
    status = main([*said, "--format=json", "--logs-dir", str(logs)])
    document = strict(capfd.readouterr().out)
    assert status in (0, 3)
    assert not problems(name, document)


@pytest.mark.parametrize("table", TABLE_NAMES)
def test_every_exported_line_fits_its_schema(table: str, logs: Path, capfdbinary):
    words = ["export", "run-1", "--format", "jsonl", "--table", table, "--logs-dir", str(logs)]
    assert main(words) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    name = f"export-{table.replace('_', '-')}"
    known = set(json.loads(published_schema(name))["properties"])
    for line in lines[:50]:
        row = strict(line)
        assert not problems(name, row)
        assert set(row) <= known


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("summary", lambda document: document["primary_diagnosis"].update(kind=7)),
        ("summary", lambda document: document["step_time"].update(issues={})),
        ("summary", lambda document: document.update(duration_s="long")),
    ],
    ids=["a number for a kind", "no list of findings", "a text for a time"],
)
def test_a_schema_refuses_what_is_wrong(name: str, damage: Any, logs: Path, capfd):
    main(["view", "run-1", "--format=json", "--logs-dir", str(logs)])
    document = strict(capfd.readouterr().out)
    damage(document)
    assert problems(name, document)


def test_view_prints_the_summary_that_is_on_disk(logs: Path, capfd):
    main(["view", "run-1", "--format=json", "--logs-dir", str(logs)])
    assert strict(capfd.readouterr().out) == strict(
        (logs / "run-1" / "final_summary.json").read_text()
    )


def test_view_as_markdown_begins_with_the_verdict_and_formats_nothing_else(logs: Path, capfd):
    main(["view", "run-1", "--format=markdown", "--logs-dir", str(logs)])
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "**TraceML: COMPUTE-BOUND** (run-1)"
    whole = lines[lines.index("<details><summary>Summary</summary>") + 2 : -1]
    assert len(whole) > 5 and all(not line or line.startswith("    ") for line in whole)


def test_every_published_schema_is_what_the_types_declare(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    sys.modules.pop("write_schemas", None)
    from write_schemas import schemas

    wanted = schemas()
    assert set(SCHEMA_FOLDER.glob("*.json")) >= wanted.keys()
    stale = [path.name for path, content in wanted.items() if path.read_text() != content]
    assert not stale, (
        "run make docs; where a key is gone or means something else, raise the version"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_prints_json_has_a_schema(command: str, capfd):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    usage = capfd.readouterr().out
    has_json = "--format" in usage and "json" in usage
    assert has_json == (command in (*PRINTED_AS, *SENDS))


def test_every_schema_is_of_some_command():
    assert {name for names in PRINTED_AS.values() for name in names} == set(DOCUMENTS)


def test_a_schema_is_printed_as_it_is_published(capfd):
    assert main(["schema", "summary"]) == 0
    assert capfd.readouterr().out == published_schema("summary")
    assert main(["schema"]) == 0
    assert {line.split()[0] for line in capfd.readouterr().out.splitlines()} == set(DOCUMENTS)
    assert main(["schema", "sumary"]) == 2
    assert "did you mean summary?" in capfd.readouterr().err
