"""An exception is named with rank, step, phase, module and line; what follows from it is not."""

from dataclasses import replace

import pytest

from factories import make_run
from failing import failed, report, said_goodbye, with_deaths
from traceml.diagnose.rules import exception
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Severity
from traceml.model.phase import Phase
from traceml.store.records import RunRecords

LOST_PEER = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:14745"


@pytest.mark.parametrize(
    ("run", "rank"),
    [
        pytest.param(failed(report()), 0, id="one rank"),
        pytest.param(failed(report(), status=None), 0, id="nobody saw the status"),
        pytest.param(
            failed(report(1), report(0, "RuntimeError", LOST_PEER), ranks=2),
            1,
            id="the other lost its peer",
        ),
        pytest.param(
            failed(report(0, "RuntimeError", LOST_PEER, unix_s=1.0), report(1), ranks=2),
            1,
            id="the other said so first",
        ),
        pytest.param(
            with_deaths(failed(report(1), ranks=2), (1, 1), (0, 143)),
            1,
            id="the launcher ended the other",
        ),
        pytest.param(
            said_goodbye(failed(report(is_handled=True)), 0), 0, id="caught, then a bad status"
        ),
        pytest.param(failed(report(is_handled=True)), 0, id="caught, then os._exit"),
        pytest.param(
            said_goodbye(failed(report(0, "RuntimeError", LOST_PEER)), 0),
            0,
            id="a peer elsewhere has gone",
        ),
    ],
)
def test_must_fire(run: RunRecords, rank: int) -> None:
    finding = exception.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.EXCEPTION, Severity.CRITICAL)
    assert finding.ranks == (rank,)


@pytest.mark.parametrize(
    ("deaths", "is_named"),
    [
        pytest.param([(1, 1), (0, 1)], True, id="it left first"),
        pytest.param([(0, 1), (1, 1)], True, id="its death was seen later"),
        pytest.param([(1, 143), (0, 1)], False, id="the launcher ended it"),
        pytest.param([(1, 0), (0, 1)], False, id="it ended well"),
        pytest.param([(0, 1)], False, id="nothing is known of it"),
    ],
)
def test_a_rank_that_left_without_an_exception_is_named(
    deaths: list[tuple[int, int]], is_named: bool
) -> None:
    """`sys.exit(1)` on one rank: the others only see that it has gone."""
    lost = report(0, "RuntimeError", LOST_PEER)
    run = said_goodbye(with_deaths(failed(lost, ranks=2), *deaths), 1)
    finding = exception.check(gather(run))
    assert finding is not None
    named = "rank 1 ended with exit status 1 by itself, with no exception"
    assert (named in finding.action) == is_named
    assert ("none of the traced ranks failed before" in finding.action) != is_named


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="ended well"),
        pytest.param(failed(report(is_handled=True), status=0), id="caught, and ended well"),
        pytest.param(failed(report(), status=0), id="in a process that did not matter"),
        pytest.param(
            failed(report(is_handled=True, unix_s=1.0)), id="caught, and training went on"
        ),
        pytest.param(said_goodbye(failed(status=3), 0), id="sys.exit(3)"),
        pytest.param(failed(status=9), id="os._exit(9)"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert exception.check(gather(run)) is None


def test_the_claim_says_where_and_the_action_what_to_look_at() -> None:
    finding = exception.check(gather(failed(report(step=57, worker=2))))
    assert finding is not None
    assert finding.phase is Phase.FORWARD
    expected = "Rank 0 failed at step 57 in forward, module block.1, DataLoader worker 2: "
    assert finding.claim == expected + "ValueError: bad."
    assert "train.py:7 in forward" in finding.action


def test_known_texts_get_their_hint() -> None:
    text = "CUDA error: device-side assert triggered"
    finding = exception.check(gather(failed(report(0, "RuntimeError", text))))
    assert finding is not None
    assert "CUDA_LAUNCH_BLOCKING=1" in finding.action


def test_a_missing_module_is_not_said_to_depend_on_the_current_folder() -> None:
    """Python looks into the script's folder from wherever it is started."""
    text = "No module named 'pygcn'"
    finding = exception.check(gather(failed(report(0, "ModuleNotFoundError", text))))
    assert finding is not None
    assert "PYTHONPATH" in finding.action
    assert "from its folder" not in finding.action


@pytest.mark.parametrize(
    ("message", "end"),
    [
        pytest.param("no such file", "ValueError: no such file.", id="no full stop"),
        pytest.param("\x1b[1mStop\x1b[0m!", "ValueError: Stop!", id="one of its own, and bold"),
        pytest.param("word " * 200, "…", id="too long"),
    ],
)
def test_the_message_ends_like_a_sentence(message: str, end: str) -> None:
    finding = exception.check(gather(failed(report(0, "ValueError", message))))
    assert finding is not None
    assert finding.claim.endswith(end)


def test_ranks_that_failed_alike_before_their_first_step_are_told_together() -> None:
    said = [report(rank, "ImportError", "no boto3", step=None) for rank in (0, 1)]
    run = failed(*said, ranks=2)
    run = replace(run, ranks=tuple(replace(rank, steps=rank.steps[:0]) for rank in run.ranks))
    finding = exception.check(gather(run))
    assert finding is not None
    both = "Ranks 0 and 1 both failed before their first training step"
    assert finding.claim.startswith(both)
