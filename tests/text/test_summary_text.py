"""The text leads with the verdict, fits a terminal, and shows nothing that was not measured."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories import idle_gpu, make_rank, make_run, map_steps, place_ranks, spend, stall
from failing import failed, report
from traceml.model.rank import Region
from traceml.model.settings import Settings
from traceml.store.records import LoggedMetric, RunRecords, TracerHealth
from traceml.summaries.build import build
from traceml.summaries.record import Summary
from traceml.text.phases import step_tree
from traceml.text.settings import LABELS
from traceml.text.summary import summary_text


def text_of(run: RunRecords) -> str:
    return summary_text(build(run, 0.0, "0"))


def line_with(text: str, words: str) -> str:
    (line,) = [line for line in text.splitlines() if words in line]
    return line


def test_verdict_why_and_next_come_first() -> None:
    lines = text_of(make_run(input_ms=80, workers=0)).splitlines()
    assert lines[0] == "TraceML · made · 1 rank · 200 steps · 1 min 2 s"
    assert lines[3] == "  Verdict  INPUT-BOUND (critical)"
    assert lines[4].startswith("  Why      Waiting for data takes 69% of a mean step")
    assert lines[5].startswith("  Next     Batches are made in the training process itself")


def test_what_a_fix_would_bring_stands_beside_the_verdict() -> None:
    text = text_of(make_run(input_ms=540, noise=0))
    expected = "  If fixed 576.0 ms → 36.0 ms per step (16.0×) without the input wait"
    assert line_with(text, "If fixed") == expected
    assert "If fixed" not in text_of(make_run())


def test_logged_parameters_and_the_scripts_own_arguments_are_told_apart() -> None:
    run = replace(
        make_run(), params={"seed": 1, "lr": 0.1, "epochs": 3}, param_sources={"lr": "argparse"}
    )
    text = text_of(run)
    assert line_with(text, "Params").split() == ["Params", "seed=1,", "epochs=3"]
    assert line_with(text, "Args").split() == ["Args", "lr=0.1"]
    assert "Args" not in text_of(replace(run, param_sources={}))


def test_the_phase_tree_accounts_for_the_step() -> None:
    text = text_of(make_run(noise=0, h2d_ms=2, input_ms=6, rest_ms=2, gpu=True))
    lines = text.splitlines()
    tree = lines[lines.index("  Where a step goes (mean of 200 steps, GPU clock)") :][:10]
    assert [line[2:37].strip() for line in tree[1:-1]] == [
        "step time",
        "├─ input wait",
        "├─ copies to device",
        "├─ compute",
        "│  ├─ forward",
        "│  ├─ backward",
        "│  └─ optimizer",
        "└─ rest",
    ]
    assert tree[0] == "  Where a step goes (mean of 200 steps, GPU clock)"
    assert tree[-1] == "  p50 45.0 ms · p95 45.0 ms · p99 45.0 ms"
    assert "45.0 ms   100%" in line_with(text, "step time")
    assert "6.0 ms    13%" in line_with(text, "├─ input wait")
    assert "◀" in line_with(text, "├─ input wait")
    assert "2.0 ms   4.4%" in line_with(text, "└─ rest")


def test_what_the_gpu_was_idle_for_stands_below_the_tree() -> None:
    run = make_run(noise=0, input_ms=6, rest_ms=20, gpu=True)
    assert "GPU idle" not in text_of(run)
    told = idle_gpu(spend(run, "sync", 8), rest=0.5, launching=0.2)
    text = text_of(told)
    place = text.splitlines().index(line_with(text, "GPU idle"))
    assert text.splitlines()[place : place + 2] == [
        "  GPU idle 8.0 ms after waits for the device, 6.0 ms for input, 6.0 ms during",
        "           the script's own code, at most 7.0 ms during launches",
    ]
    assert "for input" not in text_of(idle_gpu(make_run(noise=0, input_ms=0.1, gpu=True)))


def test_what_was_not_measured_has_no_line() -> None:
    text = text_of(replace(make_run(input_ms=None, optimizer_ms=None, samples=-1), samples=()))
    for absent in ("input wait", "copies to device", "├─ compute", "samples/s", "n/a"):
        assert absent not in text
    for absent in ("Memory", "System", "Process", "Ranks", "Tracer", "between"):
        assert absent not in text
    assert "rest, with optimizer" in text


def test_replays_of_cuda_graphs_are_compute_beside_the_rest() -> None:
    times: dict[str, float | None] = {
        "step_time_ms": 37.0,
        "input_wait_ms": 1.0,
        "compute_ms": 35.0,
    }
    whole = step_tree(times)
    assert [(part.name, part.ms) for part in whole.parts] == [
        ("input wait", 1.0),
        ("compute", 35.0),
        ("rest", 1.0),
    ]
    partial = step_tree(times | {"optimizer_ms": 5.0})
    assert [part.name for part in partial.parts] == ["input wait", "compute", "rest"]
    inside = [(part.name, part.ms) for part in partial.parts[1].parts]
    assert inside == [("optimizer", 5.0), ("CUDA graph replays", 30.0)]


def test_evaluation_and_checkpoints_appear_when_there_were_any() -> None:
    run = make_run(between_ms=5, noise=0)
    for rank in run.ranks:
        rank.steps["evaluation_ns"] = 3_000_000
    text = text_of(run)
    assert "5.0 ms" in line_with(text, "between steps")
    assert "3.0 ms" in line_with(text, "└─ evaluation")
    assert "checkpoint" not in text


def test_a_run_without_steps_is_short_and_says_why() -> None:
    text = text_of(replace(make_run(steps=0), samples=()))
    assert "Verdict  NO DATA" in text
    assert "No complete training step was recorded." in text
    assert "Where a step goes" not in text


def test_a_large_world_shows_its_slowest_ranks() -> None:
    text = text_of(make_run(ranks=20, steps=20, slow_rank=13))
    assert "the slowest 8 of 20" in text
    table = text.split("Ranks")[1].split("\n\n")[0].splitlines()
    assert len(table) == 2 + 8 + 1
    assert table[-1].startswith("  own time in ms: fastest")
    assert table[2].split()[0] == "13"


def test_slowdown_regions_and_logged_values_are_told() -> None:
    run = make_run(slowdown_at=100)
    rank = make_rank(run.ranks[0].steps, regions=[Region("augment", 10, 1.5, 0.3, None)])
    metric = LoggedMetric("loss", 10, 0.12345, 0.1, 2.0, 1.0, 0, 9)
    text = text_of(replace(run, ranks=(rank,), params={"lr": 0.1}, metrics=(metric,)))
    assert "slower from step 101 on: 1.50 times as long as before" in text
    assert line_with(text, "augment").split() == ["augment", "10", "150.0", "ms", "1.50", "s"]
    assert "Params   lr=0.1" in text
    assert "Metrics  loss 0.1235" in text


def test_of_segments_the_lowest_and_the_highest_are_told() -> None:
    logged = {"accuracy": 0.9, "accuracy[cat]": 0.95, "accuracy[dog]": 0.7, "accuracy[bird]": 0.8}
    metrics = tuple(LoggedMetric(name, 1, v, v, v, v, 0, 9) for name, v in logged.items())
    text = text_of(replace(make_run(), metrics=metrics))
    assert "Metrics  accuracy 0.9 · accuracy 0.7 (dog) to 0.95 (cat) in 3 segments" in text


def test_other_findings_follow() -> None:
    text = text_of(make_run(input_ms=80, rest_ms=30))
    assert "Verdict  INPUT-BOUND" in text
    assert "Also     WAIT-HEAVY (critical)" in text


def test_what_to_do_is_said_once() -> None:
    """A cause and what it makes slow have the same remedy."""
    run = spend(make_run(input_ms=80, rest_ms=0.5, noise=0), "logging", 30)
    text = " ".join(text_of(run).split())
    assert "Also LOGGING" in text and "Also WAIT-HEAVY" in text
    issues = build(run, 0.0, "0").step_time.issues
    action = next(issue.action for issue in issues if issue.kind == "LOGGING_HEAVY")
    assert text.count(action) == 1


@pytest.mark.parametrize(
    ("evaluation_ms", "is_told"),
    [
        pytest.param(1_000, False, id="a fifth of the wall time"),
        pytest.param(1_600, True, id="three tenths"),
    ],
)
def test_evaluation_that_takes_much_of_the_wall_time_is_told(
    evaluation_ms: int, is_told: bool
) -> None:
    """Though it is no bottleneck of the step."""

    def evaluate(steps: Any, rank: int) -> None:
        steps["evaluation_ns"][::100] = evaluation_ms * 1_000_000
        steps["wall_ns"][::100] += evaluation_ms * 1_000_000

    text = text_of(map_steps(make_run(), evaluate))
    assert ("Also     EVALUATION HEAVY: Evaluation took" in text) is is_told


def test_tracer_problems_appear_only_when_there_are_any() -> None:
    (rank,) = make_run().ranks
    health = TracerHealth(steps_lost=5, failures=1, last_failure="E", values_refused=2)
    troubled = replace(rank, health=health)
    text = text_of(replace(make_run(), ranks=(troubled,), notes=("The disk was full.",)))
    assert "Tracer   5 steps lost · 1 tracer failure (last: E) · 2 logged values not" in text
    assert "Note     The disk was full." in text


def test_an_empty_foreign_summary_still_has_a_text() -> None:
    assert "Verdict  n/a" in summary_text(Summary())


names = st.text(min_size=1, max_size=200)


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(1, 12),
    input_ms=st.none() | st.floats(0.001, 1e6),
    forward_ms=st.none() | st.floats(0.001, 1e6),
    backward_ms=st.none() | st.floats(0.001, 1e6),
    between_ms=st.floats(0, 1e5),
    gpu=st.booleans(),
    name=names,
    word=names,
)
def test_any_run_fits_80_columns_and_moves_no_cursor(
    ranks: int,
    input_ms: float | None,
    forward_ms: float | None,
    backward_ms: float | None,
    between_ms: float,
    gpu: bool,
    name: str,
    word: str,
) -> None:
    run = make_run(
        ranks,
        5,
        input_ms=input_ms,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        between_ms=between_ms,
        communication_ms=3.0,
        gpu=gpu,
    )
    rank = make_rank(run.ranks[0].steps, regions=[Region(word, 3, 1e5, 5e4, None)])
    run = replace(
        run,
        manifest=replace(run.manifest, run_name=name),
        ranks=(rank, *run.ranks[1:]),
        params={word: word},
        metrics=(LoggedMetric(word, 1, 1e300, 0, 0, 0, None, None),),
        notes=(word,),
    )
    text = text_of(run)
    assert max(map(len, text.split("\n"))) <= 80
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert "None" not in text or "None" in name + word


def test_a_failure_is_the_verdict_and_an_end_that_was_asked_for_is_not() -> None:
    lines = text_of(failed(report(step=57), input_ms=80)).splitlines()
    assert lines[3] == "  Verdict  EXCEPTION (critical)"
    assert lines[4].startswith("  Why      Rank 0 failed at step 57 in forward, module block.1:")
    assert any(line.startswith("  Also     INPUT-BOUND (critical)") for line in lines)
    asked = text_of(failed(status=143, input_ms=80))
    assert "Verdict  INPUT-BOUND" in asked
    assert "Also     KILLED: The run was ended by SIGTERM at step 201." in asked


def test_a_traceback_is_shown_as_far_as_a_terminal_bears_it() -> None:
    frames = [f'  File "train.py", line {n}, in f{n}\n    f{n + 1}({"x" * n})' for n in range(200)]
    long = "\n".join(["Traceback (most recent call last):", *frames, "ValueError: b\x1b[2Jad"])
    text = text_of(failed(report(traceback=long)))
    shown = text.split("  Traceback\n")[1].split("\n\n")[0].splitlines()
    assert shown[0] == "    Traceback (most recent call last):"
    assert "387 lines left out" in shown[1]
    assert shown[-1] == "    ValueError: b?[2Jad"
    assert len(shown) == 16
    assert all(len(line) <= 80 for line in shown)


def test_a_short_traceback_is_shown_whole() -> None:
    text = text_of(failed(report(traceback="Traceback (most recent call last):\nValueError: bad")))
    assert "    Traceback (most recent call last):\n    ValueError: bad\n" in text
    assert "Traceback" not in text_of(failed(status=137))


@pytest.mark.parametrize("begin", ["", "  | "], ids=["plain", "of an exception group"])
def test_a_long_path_in_a_traceback_does_not_hide_the_line_number(begin: str) -> None:
    path = "/home/someone/" + "deeply/nested/" * 8 + "examples/run_classification.py"
    frame = f'{begin}  File "{path}", line 515, in main'
    text = text_of(failed(report(traceback=f"Traceback (most recent call last):\n{frame}\nE: x")))
    shown = next(line for line in text.splitlines() if "File" in line)
    assert shown.startswith(f'    {begin}  File "…')
    assert shown.endswith('/examples/run_classification.py", line 515, in main')
    assert len(shown) == 80


def test_marks_under_code_that_is_cut_off_are_left_out() -> None:
    code = "    loss = " + "f(" * 60
    for indent, is_shown in ((8, True), (70, True), (90, False)):
        found = f'Traceback\n  File "t.py", line 1, in f\n{code}\n{" " * indent}^^^^\nE: x'
        text = text_of(failed(report(traceback=found)))
        assert ("^" in text, text.count("…")) == (is_shown, 1)


def test_a_path_with_a_hyphen_is_not_broken_at_it() -> None:
    where = "/home/someone/frameworks/examples/text-classification/run.py:515 in main"
    text = text_of(failed(report(where=where)))
    assert where.split()[0] in text


def test_a_name_too_long_for_a_traceback_line_is_cut_itself() -> None:
    frame = f'  File "/a/train.py", line 7, in {"f" * 200}'
    text = text_of(failed(report(traceback=f"Traceback (most recent call last):\n{frame}\nE: x")))
    shown = next(line for line in text.splitlines() if "File" in line)
    assert shown.startswith('      File "…", line 7, in ffff')
    assert len(shown) == 80


def test_the_settings_are_one_line_and_nothing_where_none_is_known() -> None:
    run = make_run(workers=2)
    known = Settings(
        parameter_dtype="float32",
        autocast_dtype="float16",
        has_grad_scaler=True,
        compile_mode="reduce-overhead",
        optimizer="AdamW",
        optimizer_is_fused=True,
        batch_size=8,
        accumulation_steps=4,
        num_workers=2,
        pin_memory=True,
        parallelism="",
    )
    ranks = tuple(replace(rank, settings=known) for rank in run.ranks)
    text = " ".join(text_of(replace(run, ranks=ranks)).split())
    assert (
        "Settings float32 parameters · float16 autocast with GradScaler · compiled "
        "(reduce-overhead) · AdamW (fused) · batches of 8 × 4 · 2 workers, pinned" in text
    )
    assert "Settings" not in text_of(run)


def test_every_setting_has_a_label() -> None:
    assert set(LABELS) == {*Settings._fields, "differs_between_ranks"}


@pytest.mark.parametrize("phase", ["rest", "input", "forward"])
def test_one_long_stall_is_told_as_one_step_and_never_as_the_typical_one(phase: str) -> None:
    """70 s in one of 200 steps of 24 ms were once "51% of a typical step (506.7 of 996.4 ms)"."""
    run = make_run(input_ms=1, forward_ms=8, backward_ms=10, optimizer_ms=3, rest_ms=1.9)
    text = " ".join(text_of(stall(run, phase, 70, 120)).split())
    assert "One step (number 120) took 1 min 10 s" in text
    assert "without it a mean step takes 23.9 ms" in text
    assert "typical" not in text and "(critical)" not in text


def test_ranks_are_told_with_their_places_in_the_mesh() -> None:
    text = text_of(place_ranks(make_run(ranks=4, communication_ms=2), dp=2, tp=2))
    assert line_with(text, "3 (dp 1, tp 1)")
    assert max(map(len, text.splitlines())) <= 80


def test_of_many_ranks_those_that_share_a_coordinate_are_shown_together() -> None:
    run = make_run(ranks=16, communication_ms=2, h2d_ms=1, steps=20, slow_rank=3)
    text = text_of(place_ranks(run, pp=2, dp=4, tp=2))
    assert "the slowest 8 of 16" in text
    for words in ("pp 0", "pp 1", "dp 0", "dp 3", "tp 0", "tp 1"):
        assert any(line.strip().startswith(f"{words} ") for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 80
    assert "pp 0" not in text_of(place_ranks(make_run(ranks=4), dp=4))


def test_a_dimension_with_many_coordinates_is_not_a_table_of_its_own() -> None:
    text = text_of(place_ranks(make_run(ranks=20, steps=20), dp=20))
    assert not any(line.strip().startswith("dp 1 ") for line in text.splitlines())
