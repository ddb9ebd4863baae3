"""`traceml compare` as people and CI type it: what is printed, and the exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from processes import TRACEML
from processes import run as run_process
from traceml.cli import main
from traceml.cli.compare import _parser
from traceml.compare.many_record import ManyComparison
from traceml.compare.record import Comparison, ComparisonVerdict, Delta
from traceml.compare.terms import ENDPOINTS

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference.md").read_text()
SEED = Path(__file__).parents[1] / "data" / "seed"
SLOW, FAST = str(SEED / "compare_slow.json"), str(SEED / "compare_fast.json")


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three runs of 100 ms (`base-*`), three of 105 ms (`cand-*`) and one empty."""
    monkeypatch.chdir(tmp_path)
    for group, step_ms in (("base", 100.0), ("cand", 105.0)):
        for number in range(3):
            time_ms = step_ms * (1 + number / 1000)
            step_time = {"global": {"average": {"step_time_ms": time_ms}}}
            steps = {"count": 400, "stdev_ms": 0.5, "effective_count": 100}
            add(tmp_path, f"{group}-{number}", {"step_time": step_time, "steps": steps})
    add(tmp_path, "empty", {"system": {}})
    return tmp_path / "logs"


def add(folder: Path, name: str, sections: dict[str, object]) -> None:
    place = folder / "logs" / name
    place.mkdir(parents=True)
    document = {"producer": {"name": "traceml-insight"}, "meta": {"run_name": name}, **sections}
    (place / "final_summary.json").write_text(json.dumps(document))


GROUPS = ["--a", "base-*", "--b", "cand-*"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        pytest.param(["base-0", "cand-0"], 0, id="compared"),
        pytest.param(GROUPS, 0, id="a regression without a gate"),
        pytest.param([*GROUPS, "--fail-on", "regression"], 1, id="fails on a regression"),
        pytest.param([*GROUPS, "--fail-on=inconclusive"], 0, id="fails on something else"),
        pytest.param(
            [*GROUPS, "--fail-on", "regression", "--max-regression", "10%"], 0, id="allowed"
        ),
        pytest.param(
            [*GROUPS, "--fail-on", "regression", "--metric", "step_time", "--max-regression=3%"],
            1,
            id="more than allowed",
        ),
        pytest.param(
            ["base-0", "base-1", "--fail-on", "regression,inconclusive"], 1, id="inconclusive"
        ),
        pytest.param(["base-0", "base-1", "--fail-on", "regression"], 0, id="not a regression"),
        pytest.param(["base-0", "base-0", "--fail-on", "regression,inconclusive"], 0, id="itself"),
        pytest.param([FAST, SLOW, "--fail-on", "regression"], 1, id="two files"),
        pytest.param(["base-0", "base-1", "cand-0", "--fail-on", "regression"], 1, id="the third"),
        pytest.param(["base-0", "empty"], 3, id="nothing in common"),
        pytest.param(["base-0", "empty", "--fail-on", "inconclusive"], 3, id="and a gate"),
        pytest.param(
            ["base-0", "cand-0", "--fail-on", "regression", "--metric", "throughput"],
            3,
            id="nothing to judge by",
        ),
        pytest.param(["base-0", "gone"], 2, id="no such run"),
        pytest.param(["base-0", "cand-0", "--metric", "speed"], 2, id="no such metric"),
        pytest.param(["base-0"], 2, id="one run"),
        pytest.param([], 2, id="no run"),
        pytest.param(["--a", "base-0"], 2, id="one group"),
        pytest.param(["base-0", *GROUPS], 2, id="runs and groups"),
        pytest.param(["--a", "base-*", "--b", "base-0"], 2, id="a run on both sides"),
    ],
)
def test_the_exit_status(words: list[str], status: int) -> None:
    assert main(["compare", *words]) == status


@pytest.mark.parametrize(
    "words",
    [
        *(["--max-regression", "much"], ["--tolerance", "-1%"], ["--tolerance", "nan"]),
        *(["--fail-on", "improvement"], ["--better", "speed"], ["--format", "xml"]),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "base-0", "cand-0", *words]) == 2
    assert capsys.readouterr().err.startswith(f"traceml compare: {words[0]}: ")


def test_two_runs_without_a_step_have_nothing_in_common(tmp_path: Path) -> None:
    sampled = {"global": {"average": {"cpu_percent": 12.0, "ram_bytes": 1e9}}}
    for name in ("idle-0", "idle-1"):
        add(tmp_path, name, {"system": sampled, "process": sampled, "duration_s": 1.5})
    assert main(["compare", "idle-0", "idle-1"]) == 3


def test_runs_without_a_step_are_compared_by_what_they_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("eval-0", 0.9), ("eval-1", 0.5)):
        add(tmp_path, name, {"system": {}, "metrics": {"accuracy": {"count": 1, "last": value}}})
    assert main(["compare", "eval-0", "eval-1"]) == 0
    capsys.readouterr()
    gate = ["--metric", "accuracy", "--fail-on", "regression"]
    assert main(["compare", "eval-0", "eval-1", *gate, "--format=json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["metric"] == "accuracy"


def test_the_json_is_all_there_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", *GROUPS, "--format", "json", "--fail-on", "regression"])
    printed = capsys.readouterr()
    document = json.loads(printed.out, parse_constant=pytest.fail)
    assert document["verdict"]["status"] == "REGRESSION"
    gate = document["gate"]
    assert (gate["fail_on"], gate["failed"], gate["unmeasured"]) == (["regression"], True, [])
    assert document["a_runs"] == ["base-0", "base-1", "base-2"]
    assert "Written to" in printed.err


def test_three_runs_are_one_document_with_each_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["compare", "base-0", "base-1", "cand-0", "--format=json", "--output", "out/x"])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [entry["name"] for entry in found["entries"]] == ["base-0", "base-1", "cand-0"]
    assert found == json.loads(Path("out/x.json").read_text())
    documents = found["comparisons"]
    assert [(each["a"], each["b"]) for each in documents] == [
        ("base-0", "base-1"),
        ("base-0", "cand-0"),
    ]
    assert json.loads(Path("out/x_2.json").read_text()) == documents[1]


def test_three_runs_as_text_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "base-0", "base-1", "cand-0"])
    text = capsys.readouterr().out
    assert "3 runs, compared with A:" in text and "A -> C: REGRESSION." in text
    assert "Written to compare/base-0_and_2_more-" in text
    main(["compare", "base-0", "base-1", "cand-0", "--format=markdown"])
    comment = capsys.readouterr().out
    assert comment.startswith("    3 runs, compared with A:") and comment.count("### ") == 2


def test_three_runs_by_their_paths_and_their_code(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(logs / name) for name in ("base-0", "base-1", "cand-0")]
    assert main(["compare", *runs, "--code-diff", "--logs-dir", "elsewhere"]) == 0
    assert capsys.readouterr().err.count("the code cannot be compared") == 2


def test_a_pattern_by_itself_lists_its_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "base-*"]) == 0
    assert "3 runs, compared with A:" in capsys.readouterr().out
    assert main(["compare", "base-0*"]) == 2  # one run alone


@pytest.mark.parametrize("pattern", ["base-*", "base-[01]"])
def test_a_run_before_a_pattern_that_it_is_among_is_the_baseline(
    pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "base-1", pattern]) == 0
    shown = capsys.readouterr().out
    assert "runs, compared with A:" in shown
    assert "A: base-1 " in shown and "B: base-0 " in shown
    assert main(["compare", "base-1", "cand-*"]) == 0  # not among them: the other side
    assert "B: cand-* (3 runs)" in capsys.readouterr().out


def test_one_run_named_three_times_is_nothing_to_compare() -> None:
    assert main(["compare", "base-0", "base-0", "base-0"]) == 2
    assert main(["compare", "base-0", "base-1", "--reach", "1"]) == 2


def test_a_copied_folder_is_no_repetition(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = logs / "base-0" / "final_summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "duration_s": 61.5}))
    (logs / "copied").mkdir()
    (logs / "copied" / "final_summary.json").write_bytes(summary.read_bytes())
    assert main(["compare", "--a", "base-0", "copied", "--b", "cand-*"]) == 2
    assert "copied is a copy of base-0" in capsys.readouterr().err
    assert main(["compare", "--a", "base-*", "--b", "cand-*"]) == 0
    assert main(["compare", "base-0", "copied"]) == 0  # two runs are said to be identical


def test_text_json_and_status_follow_one_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    for allowed, status, verdict in (("3%", 1, "REGRESSION"), ("8", 0, "NO CHANGE")):
        words = [*GROUPS, "--fail-on", "regression", "--max-regression", allowed, "--output", "x"]
        assert main(["compare", *words]) == status
        assert f"Verdict: {verdict}\n" in capsys.readouterr().out
        assert json.loads(Path("x.json").read_text())["verdict"]["status"] == verdict


def test_a_threshold_without_a_gate_is_remarked_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *GROUPS, "--max-regression", "3%"]) == 0
    assert "nothing fails without --fail-on" in capsys.readouterr().err


def test_the_markdown_is_all_there_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", SLOW, FAST, "--format", "markdown"])
    assert capsys.readouterr().out.startswith("### 🟢 TraceML: IMPROVEMENT\n")


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [
        pytest.param(True, {"TERM": "xterm"}, True, id="a terminal"),
        pytest.param(False, {"TERM": "xterm"}, False, id="a file"),
        pytest.param(True, {"TERM": "xterm", "NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param(True, {"TERM": "dumb"}, False, id="a dumb terminal"),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    terminal: bool,
    variables: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    main(["compare", SLOW, FAST])
    assert ("\x1b[" in capsys.readouterr().out) is coloured
    assert "\x1b[" not in Path("compare/compare_slow_vs_compare_fast.txt").read_text()


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[" * 100_000, b'{"step_time": {"glob'])
def test_a_file_that_is_no_summary_is_one_line(
    content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.json").write_bytes(content)
    assert main(["compare", "base-0", "bad.json"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "bad.json" in said


def test_two_files_are_compared_without_scipy(tmp_path: Path) -> None:
    python = Path(TRACEML).with_name("python")
    code = (
        "import sys; from traceml.cli import main; "
        f"main(['compare', {SLOW!r}, {FAST!r}]); print('loaded', *sys.modules)"
    )
    done = run_process([str(python), "-c", code], tmp_path)
    loaded = set(re.search("loaded (.*)", done.stdout)[1].split())
    assert not loaded & {"scipy", "numpy", "torch", "subprocess"}


def section(title: str) -> str:
    """One section of the reference."""
    return REFERENCE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_reference_has_every_option_and_no_other() -> None:
    options = {
        word
        for action in _parser()._actions
        for word in action.option_strings
        if word.startswith("--") and word != "--help"
    }
    documented = re.findall(r"^\| `(--[a-z-]+)", section("Options of `compare`"), re.MULTILINE)
    assert options == set(documented) and len(documented) == len(options) + 1  # `--metric` twice


def test_the_reference_has_every_metric_and_no_other() -> None:
    documented = re.findall(r"^\| `([a-z0-9_]+)` \|", section("Options of `compare`"), re.MULTILINE)
    assert documented == list(ENDPOINTS)


@pytest.mark.parametrize(
    "part", [Comparison, ComparisonVerdict, Delta, ManyComparison], ids=lambda part: part.__name__
)
def test_every_key_of_the_file_has_a_row(part: type[msgspec.Struct]) -> None:
    keys = [field.encode_name for field in msgspec.structs.fields(part)]
    page = (DOCS / "comparison.md").read_text()
    assert [key for key in keys if f"| `{key}` |" not in page] == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["base-0", "cand-0", "--output", "."], id="a folder"),
        pytest.param(["base-0", "cand-0", "--output", "/"], id="the root"),
        pytest.param(["base-0", "cand-0", "base-1", "--output", "."], id="a folder for several"),
        pytest.param(["base-0", "cand-0", "--output", "a/.."], id="the folder above"),
        pytest.param(["base-0", "cand-0", "--output", "a\0b"], id="a null byte"),
        pytest.param(["--a", "base**", "--b", "cand-0"], id="a pattern that is none"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words, "--fail-on", "regression"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("traceml compare: ")


def test_a_terminal_without_our_signs_gets_others(tmp_path: Path) -> None:
    words = [TRACEML, "compare", "base-0", "base-1"]
    done = run_process(words, tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert done.status == 0, done.stderr
    assert "Noise: " in done.stdout and "Traceback" not in done.stderr


def test_a_bug_of_ours_is_no_regression(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("traceml.cli.compare.compare_sides", fail)
    assert main(["compare", "base-0", "cand-0", "--fail-on", "regression"]) == 2
    assert "ZeroDivisionError: a bug" in capsys.readouterr().err


def of_commit(folder: Path, name: str, commit: str, patch: str = "") -> None:
    """A run of 100 ms with code on record."""
    changes = {"sha256": patch} if patch else None
    code = {"commit": commit * 40, "dirty": bool(patch), "changes": changes}
    step_time = {"global": {"average": {"step_time_ms": 100.0}}}
    add(folder, name, {"step_time": step_time, "lineage": {"code": code}})
    if patch:
        (folder / "logs" / name / "diff.patch").write_text(patch)


@pytest.mark.slow
def test_code_that_was_not_committed_is_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_commit(tmp_path, "one", "a", "+lr = 1\n")
    of_commit(tmp_path, "two", "a", "+lr = 2\n")
    main(["compare", "one", "two", "--code-diff", "--output", "x"])
    printed = capsys.readouterr()
    assert "one => two" in printed.out and "Written to x.diff" in printed.err
    assert "++lr = 2" in Path("x.diff").read_text()


@pytest.mark.slow
def test_code_that_is_the_same_writes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_commit(tmp_path, "one", "a")
    of_commit(tmp_path, "two", "a")
    of_commit(tmp_path, "other", "b")
    main(["compare", "one", "two", "--code-diff", "--output", "x"])
    assert "the same; nothing to write" in capsys.readouterr().err
    main(["compare", "one", "other", "--code-diff", "--output", "x"])
    assert "cannot be compared" in capsys.readouterr().err
    assert not Path("x.diff").exists()


def samples(path: str, shift: float) -> str:
    rows = [f"{n},{(n * 37 % 100) / 100 + shift},{'ab'[n % 2]}" for n in range(60)]
    noise = [f"{n},{(n * 37 % 100) / 100 + shift + n % 3 / 100},{'ab'[n % 2]}" for n in range(60)]
    Path(path).write_text("\n".join(["id,accuracy,segment", *(noise if shift else rows)]))
    return path


def test_two_files_of_one_test_set(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = samples("a.csv", 0.0), samples("b.csv", -0.1)
    assert main(["compare", a, b]) == 0
    text = capsys.readouterr().out
    assert "On the same 60 samples" in text and "REGRESSION" in text
    assert main(["compare", a, b, "--fail-on", "regression", "--format=json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(Path("compare/a_vs_b.json").read_text())
    assert set(found["scores"]["accuracy"]["segments"]) == {"a", "b"}
    assert main(["compare", a, b, "--metric", "loss"]) == 2
    assert main(["compare", a, "base-0"]) == 2
    Path("other.csv").write_text("id,accuracy\nx,1\n")
    assert main(["compare", a, "other.csv"]) == 3


def test_arms_of_live_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"2026-11-{day:02d} 10:00,{arm},{int(n % 10 < rate)}"
        for day in (1, 2, 3)
        for n in range(500)
        for arm, rate in (("new", 5), ("control", 2))
    ]
    Path("traffic.csv").write_text("\n".join(["time,arm,converted", *rows]))
    assert main(["compare", "--arms", "traffic.csv", "--better", "higher"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "compared with control:" in text and "it is better, shown since 2026-11-01" in text
    words = ["--better", "lower", "--fail-on", "regression", "--format=json"]
    assert main(["compare", "--arms", "traffic.csv", *words]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["differences"]["new"]["looks"][0]["day"] == "2026-11-01"
    assert main(["compare", "--arms", "traffic.csv", "--metric", "arm"]) == 2
    assert main(["compare", "--arms", "traffic.csv", "--range", "2", "3"]) == 2
    Path("one.csv").write_text("arm,outcome\na,1\n")
    assert main(["compare", "--arms", "one.csv"]) == 2


def test_a_gate_needs_to_know_which_way_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    """A proven drop of a score that nobody knows to be good or bad must not pass in silence."""
    for path, share in (("a.csv", 9), ("b.csv", 3)):
        rows = [f"{n},{int(n % 10 < share)},{n}" for n in range(300)]
        Path(path).write_text("\n".join(["id,outcome", *(row.rpartition(",")[0] for row in rows)]))
        Path(f"two-{path}").write_text("\n".join(["id,outcome,size", *rows]))
    arms = [f"{arm},{int(n % 10 < s)}" for n in range(999) for arm, s in (("control", 9), ("x", 3))]
    Path("traffic.csv").write_text("\n".join(["arm,outcome", *arms]))
    for words in (["a.csv", "b.csv"], ["--arms", "traffic.csv"]):
        gate = ["compare", *words, "--fail-on", "regression"]
        assert main(gate) == 2
        assert "whether more or less of 'outcome' is better: add" in capsys.readouterr().err
        assert main([*gate, "--better", "higher"]) == 1
        assert "Gate: FAILED (" in capsys.readouterr().out
        assert main([*gate, "--better", "lower"]) == 0
        assert "Gate: passed (" in capsys.readouterr().out
        assert main(["compare", *words]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "Whether more of outcome is better is not known: add --better" in said
    several = ["compare", "two-a.csv", "two-b.csv", "--better", "higher", "--fail-on", "regression"]
    assert main(several) == 2
    assert "name it with --metric" in capsys.readouterr().err
    assert main([*several, "--metric", "outcome"]) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--arms", "x.csv", "--reach", "1"], "--reach is for three or more runs"),
        (["--arms", "x.csv", "--artifacts"], "--artifacts is for two runs"),
        (["--arms", "x.csv", "--code-diff"], "--code-diff is for two runs"),
        (["a.csv", "b.csv", "--reach", "0"], "--reach is for three or more runs"),
        (["base-0", "base-1", "--range", "0", "1"], "--range is for --arms"),
        (["base-0", "base-1", "base-2", "--artifacts"], "--artifacts is for two runs"),
        (["base-0", "base-1", "--better", "lower"], "name it with --metric"),
        (["base-0", "base-1", "base-2", "--reach", "nan"], "'nan' is not a finite number"),
        (["--arms", "x.csv", "--range", "0", "inf"], "'inf' is not a finite number"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    assert why in capsys.readouterr().err


def test_two_runs_that_logged_samples(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, shift in (("base-0", 0), ("cand-0", 1)):
        scores = [float((n + shift) % 3 > 0) for n in range(90)]
        line = {"name": "test", "ids": list(range(90)), "scores": {"correct": scores}}
        (logs / name / "logged-samples-1.jsonl").write_text(json.dumps(line))
    assert main(["compare", "base-0", "cand-0", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)["samples"]["test"]
    assert (found["paired"], found["scores"]["correct"]["whole"]["test"]) == (90, "mcnemar")
    main(["compare", "base-0", "cand-0"])
    assert "On the same 90 samples (test):" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "report"),
    [
        (["base-0", "cand-0"], "REGRESSION"),
        (["base-0", "base-1", "cand-0"], "3 runs, compared with A:"),
        (["a.csv", "b.csv"], "- A: a"),
    ],
)
def test_where_nothing_can_be_written_the_report_is_shown_before_the_error(
    words: list[str], report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("compare").write_text("a file where the folder would be")
    for name, score in (("a", 0.5), ("b", 0.75)):
        rows = "".join(f"{number},{score + number / 1000}\n" for number in range(30))
        Path(f"{name}.csv").write_text(f"id,accuracy\n{rows}")
    assert main(["compare", *words]) == 2
    shown = capsys.readouterr()
    assert report in shown.out and "Written to" not in shown.out
    assert "the comparison cannot be written to compare/" in shown.err
