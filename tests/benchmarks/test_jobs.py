"""The jobs train the same plain and traced here as well, and their judge sees what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.jobs.catalog import JOBS, SCRIPTS, Job
from benchmarks.jobs.run import Run, differences, judge, run_plain, run_traced, wrong_words

OUTPUT = "step 1 loss 2.0\nstep 2 loss 1.0\nsteps 2\n"


def summary(kind: str, steps: int = 2, **more: object) -> dict[str, object]:
    finding = {"kind": kind, "section": "step_time", "severity": "warn", "summary": "in get_batch"}
    return {
        "primary_diagnosis": finding,
        "step_time": {"issues": [finding], "metadata": {"training_total_steps": steps}},
        **more,
    }


PLAIN = Run(0, OUTPUT, 1.0)
TRACED = replace(PLAIN, summary=summary("WAIT_HEAVY"))
JOB = Job("made up", "none", (), ("WAIT_HEAVY",), mentions="get_batch")


def test_nothing_is_wrong_with_equal_runs_and_the_right_verdict() -> None:
    assert judge(JOB, PLAIN, TRACED).complaints == ()


@pytest.mark.parametrize(
    ("plain", "traced", "said"),
    [
        (PLAIN, replace(TRACED, status=1), "exit status 1 for 0"),
        (PLAIN, replace(TRACED, output=OUTPUT.replace("steps 2", "steps 3")), "3 steps for 2"),
        (PLAIN, replace(TRACED, output=OUTPUT.replace("1.0", "1.2")), "loss 1.2 for 1.0"),
        (PLAIN, replace(TRACED, output="steps 2\n"), "0 losses for 2"),
        (PLAIN, replace(TRACED, summary=summary("WAIT_HEAVY", 1)), "1 steps seen of 2"),
        (replace(PLAIN, status=1), replace(TRACED, status=1), "plain exit status 1"),
    ],
)
def test_a_training_that_differs_is_seen(plain: Run, traced: Run, said: str) -> None:
    assert any(complaint.startswith(said) for complaint in differences(plain, traced))


def test_what_we_say_of_a_loss_is_no_loss_of_the_scripts() -> None:
    ours = "traceml: the loss is not finite from step 2 on\nLoss: the loss went from 2 to 1\n"
    assert replace(PLAIN, output=OUTPUT + ours).losses == [2.0, 1.0]


@pytest.mark.parametrize(
    ("published", "said"),
    [
        (replace(JOB, kinds=("INPUT_BOUND",)), "said WAIT_HEAVY, not INPUT_BOUND"),
        (replace(JOB, also=("HOST_SYNC",)), "HOST_SYNC not named"),
        (replace(JOB, never=("WAIT_HEAVY",)), "WAIT_HEAVY warned of"),
        (replace(JOB, mentions="collate"), "collate not named"),
    ],
)
def test_a_wrong_verdict_is_seen(published: Job, said: str) -> None:
    assert said in list(wrong_words(published, TRACED))


def test_a_prediction_that_is_far_off_is_seen() -> None:
    what_if = [{"kind": "WAIT_HEAVY", "predicted_step_time_ms": 5.0}]
    measured = {"step_time": {"global": {"average": {"step_time_ms": 10.0}}}}
    traced = replace(TRACED, summary=summary("WAIT_HEAVY", what_if=what_if))
    judged = judge(JOB, PLAIN, traced, replace(PLAIN, summary=measured))
    assert judged.what_if_error == 0.5
    assert judged.complaints == ("predicted step time 50% off",)


@pytest.mark.parametrize(("predicted_ms", "error"), [(15.0, 0.5), (8.0, 0.2)])
def test_a_prediction_that_says_or_less_is_measured_like_any_other(
    predicted_ms: float, error: float
) -> None:
    what_if = [
        {"kind": "WAIT_HEAVY", "predicted_step_time_ms": predicted_ms, "is_upper_bound": True}
    ]
    measured = {"step_time": {"global": {"average": {"step_time_ms": 10.0}}}}
    traced = replace(TRACED, summary=summary("WAIT_HEAVY", what_if=what_if))
    judged = judge(JOB, PLAIN, traced, replace(PLAIN, summary=measured))
    assert judged.what_if_error == pytest.approx(error)


@pytest.mark.parametrize("reason", [None, "the counters do not show it"])
def test_a_prediction_that_was_not_made_is_wrong_unless_it_is_said_why(reason: str | None) -> None:
    told = summary("WAIT_HEAVY")
    told["primary_diagnosis"] |= {"evidence": {"not_predicted": reason}}
    judged = judge(JOB, PLAIN, replace(TRACED, summary=told), PLAIN)
    assert judged.what_if_error is None
    assert judged.not_predicted == (reason or "")
    assert judged.complaints == (() if reason else ("no step time predicted",))


def test_every_job_has_its_script() -> None:
    assert len(JOBS) >= 12
    assert all((SCRIPTS / f"{job.script}.py").is_file() for job in JOBS)


def test_training_is_the_same_without_a_gpu(tmp_path: Path) -> None:
    """Those with a framework are in tests/integrations."""
    job = Job("images", "resnet_few_workers", ("--tiny",), ())
    traced = run_traced(job, tmp_path)
    assert list(differences(run_plain(job), traced)) == []


def test_the_step_at_which_a_loss_is_lost_is_held_against_the_scripts_own_word(
    tmp_path: Path,
) -> None:
    job = Job("diverging", "diverging", ("--tiny",), ("NON_FINITE_LOSS",))
    traced = run_traced(job, tmp_path)
    assert list(wrong_words(job, traced)) == []
    assert [str(loss) for loss in traced.losses][1:2] == ["nan"]
    moved = replace(traced, output=traced.output.replace("at step 153", "at step 99"))
    (complaint,) = wrong_words(job, moved)
    assert complaint == "non-finite between 152 and 153, truly at 99"
