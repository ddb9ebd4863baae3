"""The head: how far the run is, how fast it goes, and what is left of it where that is known."""

from dataclasses import replace
from typing import Any

import pytest

from drawn_runs import STARTED, history_of, standing_of
from factories import make_run
from traceml.facts.history import History
from traceml.figures.head import run_head
from traceml.figures.page import Head
from traceml.summaries.build import build


def head(state: str = "live", params: dict[str, Any] | None = None, *words: str) -> Head:
    run = replace(make_run(), params=params or {})
    manifest = replace(STARTED, command=("python", "train.py", *words))
    exit_status = None if state == "live" else 0
    standing = standing_of(state, exit_status, manifest=manifest)
    return run_head(build(run, 0.0, "0"), standing, history_of(run))


def test_a_run_that_goes_on_shows_how_long_it_has_lasted() -> None:
    found = head()
    assert found.elapsed == "1 min 2 s"
    assert found.steps == "200 steps"
    assert found.throughput == "27.0 steps/s · 865 samples/s"
    assert found.started == "2027-01-15 07:59:58 UTC"
    assert (found.remaining, found.progress) == (None, None)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_steps": 1000}, ()),
        ({"trainer": {"num_training_steps": 1000.0}}, ()),
        ({"trainer.total_steps": "1_000"}, ()),
        (None, ("--max-steps", "1000")),
        (None, ("--steps=1,000",)),
        ({"max_steps": -1}, ("--total_steps=1000", "--lr", "0.1")),
    ],
)
def test_the_total_is_known_from_parameters_or_the_command(
    params: dict[str, Any] | None, words: tuple[str, ...]
) -> None:
    found = head("live", params, *words)
    assert found.steps == "200 of 1,000 steps"
    assert found.progress == 0.2
    assert found.remaining == "about 30.0 s left"


@pytest.mark.parametrize(
    "params", [{"steps": 50}, {"max_steps": None}, {"max_steps": True}, {"steps": "many"}]
)
def test_what_cannot_be_the_total_is_not_taken_for_it(params: dict[str, Any]) -> None:
    assert head("live", params).steps == "200 steps"


def test_nothing_is_left_of_a_run_that_is_over() -> None:
    assert head("finished", {"max_steps": 1000}).remaining is None


def test_a_run_without_numbers_says_so() -> None:
    found = run_head(None, standing_of("live", None), History())
    assert (found.steps, found.throughput) == ("no steps yet", "n/a")
    assert found.ranks == "1 rank on 1 node"


def test_ranks_are_told_with_their_gpus() -> None:
    run = make_run(ranks=8, gpu=True)
    found = run_head(build(run, 0.0, "0"), standing_of(), history_of(run))
    assert found.ranks == "8 ranks on 1 node, 8 × NVIDIA H200"
    without = run_head(build(run, 0.0, "0"), standing_of(), History())
    assert without.ranks == "8 ranks on 1 node, 8 GPUs"


@pytest.mark.parametrize(
    ("state", "exit_status", "words"),
    [
        ("live", None, "live"),
        ("finished", 0, "finished"),
        ("failed", 1, "failed with status 1"),
        ("failed", 130, "interrupted with status 130"),
        ("failed", None, "failed"),
        ("lost", None, "lost: its end was not recorded"),
    ],
)
def test_the_state_is_told_in_words(state: str, exit_status: int | None, words: str) -> None:
    found = run_head(None, standing_of(state, exit_status), History())
    assert found.state_words == words
