"""The report: legend, verdict, why, what moved, next; at most a hundred columns."""

from __future__ import annotations

from pathlib import Path

import msgspec

from traceml.compare.pair import compare
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary
from traceml.text.comparison import WIDTH, comparison_text

DATA = Path(__file__).parents[1] / "data"

SEED_TEXT = """\
- A: compare_slow
- B: compare_fast
- Format: A -> B | delta = B - A

Verdict: IMPROVEMENT
Why: Step time fell by 520.8 ms (-92.5%): input -529.3 ms, compute +7.9 ms, rest +0.60 ms.
Noise: two runs alike may differ by ±3%; one run per side does not measure it.
Diagnosis: INPUT-BOUND -> COMPUTE-BOUND

                        A         B  Delta
Duration           34.6 s    3.30 s  -31.3 s (-90.5%)
Total step       563.1 ms   42.3 ms  -520.8 ms (-92.5%)
  Input          531.6 ms    2.3 ms  -529.3 ms (-99.6%)
  Compute         31.0 ms   38.9 ms  +7.9 ms (+25.5%)
GPU utilization      6.8%     49.8%  +42.9 pp
Step memory      BALANCED  BALANCED  same

Next: B is COMPUTE-BOUND: Try mixed precision.
"""


def text_of(a: Summary, b: Summary, names: tuple[str, str] = ("a", "b")) -> str:
    return comparison_text(compare(a, b, names))


def summary(document: dict[str, object]) -> Summary:
    return msgspec.convert(document, Summary)


def test_the_seeds_example() -> None:
    slow, fast = (read_summary(DATA / "seed" / f"compare_{name}.json") for name in ("slow", "fast"))
    assert text_of(slow, fast, ("compare_slow", "compare_fast")) == SEED_TEXT


def test_the_peer_files_show_what_moved_alone() -> None:
    slow, fast = (
        read_summary(DATA / "peer" / f"{name}_input_cpu.json") for name in ("slow", "fast")
    )
    text = text_of(slow, fast)
    assert "Total step" in text and "Process CPU" in text
    assert "GPU" not in text.replace("NO GPU", "")
    assert "Optimizer" not in text
    assert "Process memory" not in text


def test_what_was_not_measured_is_shown_as_such() -> None:
    a = summary({"step_time": {"global": {"average": {"step_time_ms": 4.0}}}})
    text = text_of(a, summary({"system": {}}))
    row = next(line for line in text.splitlines() if line.startswith("Total step"))
    assert row.split() == ["Total", "step", "4.0", "ms", "n/a", "n/a"]
    assert "Diagnosis: n/a -> n/a" in text


def test_warnings_are_shown() -> None:
    a, b = (summary({"system": {}, "meta": {"world_size": size}}) for size in (1, 8))
    assert "Note: World size differs: 1 -> 8." in text_of(a, b)


def test_no_name_moves_the_cursor_and_no_line_is_too_long() -> None:
    hostile = {"kind": "X", "status": "evil\x1b[2J\n" + "y" * 500, "action": "z " * 900}
    a = summary({"primary_diagnosis": hostile, "step_memory": {"diagnosis": hostile}})
    text = text_of(a, a, ("n\x1b[31m\r" + "m" * 400, "o\n- B: forged"))
    assert all(line.isprintable() for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.splitlines()[1] == "- B: o - B: forged"
