"""The one-file report, as a file and as a command."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from processes import run, run_traceml
from traceml.figures.page import ComparisonPage, Head, RunPage, Verdict
from traceml.web.assets import ViewerMissing, inline
from traceml.web.report import report

HOSTILE = "</script><script>alert(1)</script><!--<script>&amp;\u2028\u2029'\"`${x}"


def enclosed(document: str) -> list[Any]:
    """What the viewer finds in a report."""
    found = re.findall(
        r'<script type="application/json" (?:id="page"|data-page)>(.*?)</script>', document
    )
    return [json.loads(each) for each in found]


def page(name: str) -> RunPage:
    head = Head(name, "finished", name, name, name, name, name, name, name)
    return RunPage(head, Verdict("warn", name, name), (), (), output=(name,), notes=(name,))


def comparison(b: str) -> ComparisonPage:
    return ComparisonPage("a", b, (b,), Verdict("info", "NO CHANGE", b), None, ())


def test_whatever_a_user_called_something_stays_text() -> None:
    document = report([page(HOSTILE)])
    assert enclosed(document)[0]["page"]["head"]["name"] == HOSTILE
    (data,) = re.findall(r'<script type="application/json" id="page">(.*)</script>\n', document)
    assert not set("<>&\u2028\u2029") & set(data)
    assert document.count("alert(1)</script>") == 0
    (title,) = re.findall(r"<title>(.*?)</title>", document)
    assert html.unescape(title) == f"{HOSTILE} · TraceML"


def test_a_report_asks_for_nothing_and_runs_nothing_but_the_viewer() -> None:
    document = report([page("a")])
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', document)
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy).split("; "))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]+='", rules["script-src"])
    assert "connect-src" not in rules
    assert re.findall(r'(?:src|href)="(?!data:)', document.partition("<body>")[0]) == []


def test_several_comparisons_are_offered_by_name() -> None:
    document = report([comparison("b"), comparison(HOSTILE)])
    assert [each["page"]["b"] for each in enclosed(document)] == ["b", HOSTILE]
    links = re.findall(r'<a href="(#comparison-\d)">(.*?)</a>', document)
    assert [(place, html.unescape(words)) for place, words in links] == [
        ("#comparison-1", "a vs b"),
        ("#comparison-2", f"a vs {HOSTILE}"),
    ]


def test_code_that_would_end_its_element_is_kept_from_it() -> None:
    assert inline("x='</script>'", "script") == "x='<\\/script>'"
    with pytest.raises(ViewerMissing, match="build it again"):
        inline("'<!-- <script'", "script")


@pytest.mark.parametrize("word", ["a", "logs/a", "logs/a/final_summary.json"])
def test_the_report_of_a_run_is_in_its_folder(logs: Path, tmp_path: Path, word: str) -> None:
    shutil.copytree(logs, tmp_path / "logs")
    done = run_traceml(["report", word], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    path = tmp_path / "logs/a/report.html"
    assert str(Path("logs/a/report.html")) in done.stdout
    assert path.stat().st_size < 2e6
    (data,) = enclosed(path.read_text())
    assert data["page"]["head"]["name"] == "a"
    assert (data["live"], data["base"]) == (False, "")


def test_the_report_of_two_runs_is_their_comparison(logs: Path, tmp_path: Path) -> None:
    done = run_traceml(["report", logs / "a", logs / "b"], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    assert [path.name for path in (tmp_path / "compare").iterdir()] == ["a_vs_b.html"]
    (data,) = enclosed((tmp_path / "compare/a_vs_b.html").read_text())
    assert (data["page"]["type"], data["page"]["a"], data["page"]["b"]) == ("comparison", "a", "b")


def test_further_runs_are_compared_with_the_first(logs: Path, tmp_path: Path) -> None:
    shutil.copytree(logs, tmp_path / "logs")
    other = tmp_path / "logs/c/final_summary.json"
    shutil.copytree(logs / "b", other.parent)
    other.write_text(other.read_text().replace('"duration_s":', '"duration_s": 1.5, "was":', 1))
    done = run_traceml(["report", "a", "b", "c", "a"], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    (report,) = (tmp_path / "compare").glob("a_and_2_more-*.html")
    many, *pairs = (each["page"] for each in enclosed(report.read_text()))
    assert (many["type"], many["title"]) == ("many", "a and 2 more")
    assert [(pair["a"], pair["b"]) for pair in pairs] == [("a", "b"), ("a", "c")]


def test_a_run_that_is_named_twice_counts_once(logs: Path, tmp_path: Path) -> None:
    words = [logs / "a", logs / "b", logs / "a"]
    done = run_traceml(["report", *words, "-o", "pair.html"], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    (data,) = enclosed((tmp_path / "pair.html").read_text())
    assert (data["page"]["a"], data["page"]["b"]) == ("a", "b")


def test_a_comparison_can_be_printed_as_the_same_file(logs: Path, tmp_path: Path) -> None:
    done = run_traceml(["compare", logs / "a", logs / "b", "--format", "html"], tmp_path)
    assert done.status == 0
    assert "Written to compare/a_vs_b.json" in done.stderr
    assert run_traceml(["report", logs / "a", logs / "b", "-o", "b.html"], tmp_path).status == 0
    assert enclosed(done.stdout) == enclosed((tmp_path / "b.html").read_text())
    refused = run_traceml(["compare", "--arms", "x.csv", "--format", "html"], tmp_path)
    assert (refused.status, "--format html is for runs" in refused.stderr) == (2, True)


def test_a_comparison_that_was_written_can_be_reported(logs: Path, tmp_path: Path) -> None:
    assert run_traceml(["compare", logs / "a", logs / "b"], tmp_path).status == 0
    done = run_traceml(["report", "compare/a_vs_b.json"], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    (data,) = enclosed((tmp_path / "compare/a_vs_b.html").read_text())
    assert data["page"]["type"] == "comparison"


def test_a_summary_under_any_name_can_be_reported(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "data/peer/fast_input_cpu.json"
    shutil.copy(source, tmp_path / "theirs.json")
    done = run_traceml(["report", "theirs.json"], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    (data,) = enclosed((tmp_path / "theirs.html").read_text())
    assert data["page"]["head"]["name"] == "theirs"


def test_a_report_may_go_to_standard_output(logs: Path, tmp_path: Path) -> None:
    done = run_traceml(["report", logs / "a", "-o", "-"], tmp_path)
    assert done.stdout.startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone"], "no run 'gone'"),
        (["gone", "a"], "no run 'gone'"),
        (["a", "-o", "."], "is a folder or names no file"),
        (["a", "-o", "a/final_summary.json/x.html"], "choose another place with -o"),
        (["note.json"], "note.json is not a run summary"),
        (["x" * 5000], "cannot be looked up"),
    ],
)
def test_what_cannot_be_reported_is_one_line(
    logs: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    shutil.copytree(logs / "a", tmp_path / "a")
    (tmp_path / "note.json").write_text("{}")
    done = run_traceml(["report", *words, "--logs-dir", "."], tmp_path)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith("traceml report: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_report_needs_no_server(logs: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(starlette=None, uvicorn=None);"
        "from traceml.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["python", "-c", code]
    done = run([*words, "report", logs / "a", "-o", "r.html"], tmp_path)
    assert (done.status, done.stderr) == (0, "")
    done = run([*words, "ui"], tmp_path)
    assert done.status == 2
    assert "pip install 'traceml-insight[web]'" in done.stderr
    assert done.stderr.count("\n") == 1
