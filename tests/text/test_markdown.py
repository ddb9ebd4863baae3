"""The comment: verdict first, bounded, and nothing a run is called can format it."""

from __future__ import annotations

import msgspec
import pytest

from compared_runs import run
from traceml.compare.pair import compare, compare_groups
from traceml.compare.record import Comparison
from traceml.summaries.record import Summary
from traceml.text.markdown import MAX_BYTES, all_markdown, comparison_markdown, escaped


def compared(names: tuple[str, str] = ("a", "b")) -> Comparison:
    return compare(run({"step_time_ms": 100}), run({"step_time_ms": 130}), names)


def test_the_verdict_comes_first_and_the_details_are_folded() -> None:
    lines = comparison_markdown(compared()).splitlines()
    assert lines[0] == "### 🔴 TraceML: REGRESSION"
    assert lines[2] == "Step time rose by 30.0 ms (+30.0%)."
    fold = lines.index("<details><summary>What changed</summary>")
    assert lines.index("| Total step | 100.0 ms | 130.0 ms | +30.0 ms (+30.0%) |  |") > fold
    assert lines.count("</details>") == sum(line.startswith("<details>") for line in lines)


@pytest.mark.parametrize(
    "hostile",
    [
        *("</details><script>alert(1)</script>", "a|b|c", "**bold** _it_ `code`", "[x](http://y)"),
        *("@somebody #12", "line\nbreak\r# title", "https://evil.example www.evil.example"),
        *("![image](x)", "~~gone~~ <!-- hidden", "&lt;script&gt;"),
    ],
)
def test_what_a_run_is_called_formats_nothing(hostile: str) -> None:
    text = comparison_markdown(compared((hostile, hostile)))
    lines = text.splitlines()
    assert len(lines) == len(comparison_markdown(compared()).splitlines())
    named = "".join(line for line in lines if line.startswith(("A: ", "B: ")))
    for mark in ("<", "|", "*", "_", "`", "[", "@", "~", "://", "www."):
        assert mark not in named
    assert "#" not in named.replace("&#", "")


def test_phases_stay_below_what_they_are_part_of_and_the_mark_is_explained() -> None:
    a, b = (
        [run({"step_time_ms": ms, "forward_ms": ms}) for ms in (mean, mean + 0.1, mean - 0.1)]
        for mean in (100.0, 110.0)
    )
    comment = comparison_markdown(compare_groups(a, b, ("a", "b")))
    assert "| Total step | 100.0 ms |" in comment
    assert "| &emsp;&emsp;Forward | 100.0 ms |" in comment
    assert "\n\n&#42; shown by the runs: p &#60; 0.05" in comment


def test_plain_words_stay_readable() -> None:
    assert escaped("run-1 (fast): 3.5%") == "run-1 (fast): 3.5%"


def test_a_comment_stays_below_its_limit() -> None:
    long = {"kind": "X", "status": "|" * 5000, "action": "&" * 50_000}
    a, b = (
        msgspec.convert(
            {
                "primary_diagnosis": long,
                "params": {f"{'<' * 200}{n}": f"{side}{'>' * 500}" for n in range(500)},
                "step_time": {"global": {"average": {"step_time_ms": ms}}, "diagnosis": long},
            },
            Summary,
        )
        for side, ms in (("a", 1.0), ("b", 2.0))
    )
    comparison = compare(a, b, ("<" * 1000, ">" * 1000))
    assert len(comparison_markdown(comparison).encode()) < MAX_BYTES
    assert len(all_markdown([comparison] * 40).encode()) < MAX_BYTES
    assert len(all_markdown([comparison] * 150).encode()) < MAX_BYTES


def test_details_give_way_and_every_verdict_stays() -> None:
    long = {f"{n}{'<' * 200}": "x" for n in range(12)}
    a = run({"step_time_ms": 100}, params=long)
    several = [compare(a, run({"step_time_ms": 300}), (f"a{n}", f"b{n}")) for n in range(60)]
    text = all_markdown(several)
    assert len(text.encode()) < MAX_BYTES
    assert text.count("### 🔴 TraceML: REGRESSION") == text.count("Step time rose by") == 60
    assert text.count("What is different about the runs") < 60
    assert all(f"A: a{n}  \nB: b{n}\n" in text for n in range(60))
    assert text.count("<details>") == text.count("</details>") > 0
    assert text.endswith(
        "Details have no room here; they are in the files that the comparison wrote.\n"
    )


def test_several_comparisons_are_one_comment() -> None:
    assert all_markdown([compared(), compared()]).count("### 🔴 TraceML: REGRESSION") == 2
