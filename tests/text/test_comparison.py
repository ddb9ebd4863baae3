"""The report: legend, verdict, why, what moved, next; at most a hundred columns."""

from __future__ import annotations

from pathlib import Path

import msgspec

from compared_runs import run
from traceml.compare.pair import compare, compare_groups
from traceml.compare.terms import Terms
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary
from traceml.text.changes import rows
from traceml.text.comparison import WIDTH, comparison_text

DATA = Path(__file__).parents[1] / "data"

SEED_TEXT = """\
- A: compare_slow
- B: compare_fast
- Format: A -> B | delta = B - A

Verdict: IMPROVEMENT
Why: Step time fell by 520.8 ms (-92.5%): input -529.3 ms, compute +7.9 ms, rest +0.6 ms.
Diagnosis: INPUT-BOUND -> COMPUTE-BOUND
Noise: one run per side; assuming ±25% run-to-run noise.

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


def test_phases_are_called_as_on_the_page_of_a_run() -> None:
    def row_labels(h2d_ms: float | None) -> set[str]:
        a, b = (
            run(
                {
                    "step_time_ms": 100.0 + wait,
                    "wait_ms": wait,
                    "h2d_ms": h2d_ms,
                    "residual_ms": wait - (h2d_ms or 0.0),
                }
            )
            for wait in (20.0, 40.0)
        )
        return {row.label.strip() for row in rows(compare(a, b, ("a", "b")))}

    for h2d_ms in (None, 5.0):
        labels = row_labels(h2d_ms)
        assert "Rest" in labels
        assert not [label for label in labels if label.startswith("Wait")]


def test_the_gpus_counters_are_context_in_percent() -> None:
    def counted(**average: float) -> Summary:
        return run({"step_time_ms": 10.0}, system={"global": {"average": average}})

    comparison = compare(
        counted(sm_share=0.96, tensor_share=0.035, fp32_share=0.62, dram_share=0.44),
        counted(sm_share=0.88, tensor_share=0.32, fp32_share=0.02, dram_share=0.43),
        ("A", "B"),
    )
    shown = {row.label: (row.lhs, row.rhs, row.delta) for row in rows(comparison)}
    assert shown["GPU tensor cores"] == ("3.5%", "32.0%", "+28.5 pp")
    assert shown["GPU FP32 units"] == ("62.0%", "2.0%", "-60.0 pp")
    assert shown["GPU SMs at work"] == ("96.0%", "88.0%", "-8.0 pp")
    assert "GPU bandwidth" not in shown  # it hardly moved
    assert comparison.sections["system"].metrics["dram_share"].delta is not None


def test_long_values_are_shown_where_they_begin_to_differ() -> None:
    files = [f"package/module_{number}.py" for number in range(20)]
    a, b = (run({"step_time_ms": 1.0}, params={"files": each}) for each in (files, files[:-1]))
    text = comparison_text(compare(a, b, ("a", "b")))
    assert "params: files: … package/module_18.py, package/module_19.py -> …" in text


def test_warnings_are_shown() -> None:
    a, b = (summary({"system": {}, "meta": {"world_size": size}}) for size in (1, 8))
    text = text_of(a, b)
    assert "What is different about the runs:\n  World size differs: 1 -> 8.\n" in text


def test_no_name_moves_the_cursor_and_no_line_is_too_long() -> None:
    hostile = {"kind": "X", "status": "evil\x1b[2J\n" + "y" * 500, "action": "z " * 900}
    a = summary({"primary_diagnosis": hostile, "step_memory": {"diagnosis": hostile}})
    text = text_of(a, a, ("n\x1b[31m\r" + "m" * 400, "o\n- B: forged"))
    assert all(line.isprintable() for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.splitlines()[1] == "- B: o - B: forged"


def test_intervals_without_room_stand_below() -> None:
    creep = {"kind": "CREEP_EARLY", "status": "MEMORY CREEP (EARLY)"}
    a, b = (
        [
            summary(
                {
                    "step_memory": {"diagnosis": creep},
                    "step_time": {"global": {"average": {"step_time_ms": ms + n * 100}}},
                }
            )
            for n in range(3)
        ]
        for ms in (12_345_678.0, 92_345_678.0)
    )
    text = comparison_text(compare_groups(a, b, ("a", "b")))
    assert max(map(len, text.splitlines())) <= WIDTH
    lines = text.splitlines()
    row = next(place for place, line in enumerate(lines) if line.startswith("Total step"))
    assert lines[row + 1].startswith("      95% CI: +")


def test_an_absurd_number_does_not_widen_the_table() -> None:
    a, b = (
        summary({"step_time": {"global": {"average": {"step_time_ms": ms}}}})
        for ms in (1e-300, 1e300)
    )
    for text in (text_of(a, b), text_of(b, a)):
        assert max(map(len, text.splitlines())) <= WIDTH


def test_what_was_asked_for_is_in_the_table() -> None:
    a, b = (
        summary({"step_time": {"global": {"average": {"step_time_p95_ms": ms}}}})
        for ms in (4.0, 5.0)
    )
    text = comparison_text(compare(a, b, ("a", "b"), Terms(metric="step_time_p95")))
    assert "\nStep time p95  4.0 ms  5.0 ms  +1.0 ms (+25.0%)\n" in text


def test_work_that_moved_is_said() -> None:
    a, b = (
        summary({"step_time": {"global": {"average": {"step_time_ms": 100.0, **parts}}}})
        for parts in (
            {"input_wait_ms": 50.0, "compute_ms": 40.0},
            {"input_wait_ms": 10.0, "compute_ms": 80.0},
        )
    )
    assert "Work was moved rather than removed: some phases lost 40.0 ms" in text_of(a, b)


def test_a_gate_says_what_nobody_measured() -> None:
    a = summary({"step_time": {"global": {"average": {"step_time_ms": 4.0}}}})
    terms = Terms(fail_on=("regression",))
    text = comparison_text(compare(a, summary({"system": {}}), ("a", "b"), terms))
    assert "Gate: FAILED (step_time not measured on both sides; fails on regression)\n" in text


def test_only_a_verdict_is_coloured() -> None:
    a = summary({"system": {}})
    text = comparison_text(compare(a, a, ("a", "b")), colour=True)
    assert text.count("\x1b[") == 2 and "Verdict: \x1b[1;32mNO CHANGE\x1b[0m\n" in text


def test_what_is_on_record_as_the_same_is_named_and_what_is_not_too() -> None:
    known = {"packages": {"torch": "2"}, "command": {"script": "train.py"}}
    run = msgspec.convert({"lineage": known, "settings": {"num_workers": 4}}, Summary)
    text = text_of(run, run)
    same = "No recorded differences; the same in both: command, settings, packages.\n"
    assert same in text
    assert "Not recorded in either: code, environment, hardware, data, variables.\n" in text


def test_a_difference_leaves_no_claim_of_sameness() -> None:
    a, b = (msgspec.convert({"lineage": {"packages": {"torch": v}}}, Summary) for v in "12")
    text = text_of(a, b)
    assert "packages: torch: 1 -> 2" in text and "the same in both" not in text


def test_no_label_is_cut_in_the_middle_of_a_word() -> None:
    average = {"step_time_ms": 100.0, "traced_step_time_ms": 90.0, "compute_ms": 40.0}
    a = run({**average, "h2d_ms": 5.0, "residual_ms": 45.0, "communication_ms": 30.0})
    b = run({**average, "h2d_ms": 5.0, "residual_ms": 65.0, "communication_ms": 40.0})
    assert "  Rest + communication  " in text_of(a, b)
