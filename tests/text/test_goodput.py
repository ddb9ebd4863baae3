"""Goodput is one short line, with the rest where it is not nearly all."""

from factories import STARTED_UNIX_S, make_run
from restarted_runs import Start, restarted
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.record import AttemptSummary, GoodputSummary
from traceml.text.goodput import MAX_ATTEMPTS, attempt_lines, goodput_words
from traceml.text.summary import summary_text


def text_of(run: RunRecords) -> str:
    return summary_text(build(run, STARTED_UNIX_S + 60, "1.0"))


def test_a_run_that_mostly_trains_has_one_short_line():
    goodput = GoodputSummary(wall_s=3600.0, share=0.97, parts_s={"steps": 3492.0, "start_up": 108})
    assert goodput_words(goodput) == "97% of 1 h in productive steps"


def test_what_the_rest_went_to_is_told_the_largest_first():
    goodput = GoodputSummary(
        wall_s=100.0,
        share=0.5,
        parts_s={"steps": 50.0, "start_up": 10.0, "restarts": 39.5, "rest": 0.5},
    )
    assert goodput_words(goodput).endswith("; restarts 40%, start-up 10%")


def test_gpu_hours_are_told_where_there_are_gpus():
    goodput = GoodputSummary(wall_s=7200.0, share=0.98, gpu_hours=16.0)
    assert "(16 GPU-hours)" in goodput_words(goodput)


def test_gpus_that_were_productive_for_another_share_than_the_wall_time_are_told():
    goodput = GoodputSummary(
        wall_s=148.0,
        share=0.55,
        parts_s={"steps": 81.4, "shut_down": 66.6},
        gpu_hours=0.37,
        productive_gpu_hours=0.333,
    )
    assert goodput_words(goodput) == (
        "55% of 2 min 28 s (0.37 GPU-hours, 90% of them productive) in productive steps; "
        "after the last step 45%"
    )


def test_nothing_is_said_of_what_is_not_known():
    assert goodput_words(None) == ""
    assert goodput_words(GoodputSummary(wall_s=5.0)) == ""


def test_the_summary_tells_the_attempts():
    text = " ".join(text_of(restarted(Start(45), Start(20, resumed=40, status=0))).split())
    assert "Attempts 1: 45 steps on 2 ranks; rank 1: ValueError: bad at train.py:7 in main" in text
    assert "6.00 s lost; 5 steps done again. 2: 20 steps on 2 ranks, from step 40 on." in text


def test_a_plain_run_tells_no_attempts():
    text = text_of(make_run())
    assert "Goodput" in text
    assert "Attempts" not in text


def test_of_many_attempts_the_first_and_the_last_are_told():
    attempts = tuple(AttemptSummary(number) for number in range(1, 22))
    lines = attempt_lines(attempts)
    assert len(lines) == MAX_ATTEMPTS + 1
    assert lines[3] == "… 15 attempts left out …"
    assert lines[-1].startswith("21: ")


def test_an_attempt_says_what_is_not_known_of_it():
    (line,) = attempt_lines((AttemptSummary(1, lost_s=3.0, redone_steps=None),))
    assert line == (
        "1: no step; it is not known why it ended; 3.00 s lost; steps done again: not measured."
    )


def test_the_longest_line_fits_the_width():
    run = restarted(Start(45, error="A" * 300), Start(20, resumed=40, status=0))
    assert all(len(line) <= 80 for line in text_of(run).splitlines())
