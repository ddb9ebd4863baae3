"""What the flags and counters say about loaders and the GPU's queue."""

from dataclasses import replace

import pytest

from factories import flag_steps, make_run, map_steps
from traceml.facts.gather import gather
from traceml.facts.loader import NO_LOADER
from traceml.model.record_layout import StepFlag

LOADER = (StepFlag.LOADER_WATCHED, StepFlag.LOADER_EMPTY)
QUEUE = (StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY)


def test_shares_are_of_the_steps_that_were_watched() -> None:
    def watch_some(steps, rank):
        for flag, first in ((LOADER[0], 50), (LOADER[1], 20), (QUEUE[0], 100), (QUEUE[1], 10)):
            steps["flags"][:first] |= int(flag)

    facts = gather(map_steps(make_run(), watch_some))
    assert facts.loader.empty_share == pytest.approx(0.4)
    assert facts.queue_dry_share == pytest.approx(0.1)


def test_aborted_steps_are_not_counted() -> None:
    def abort(steps, rank):
        steps["flags"][:100] |= int(StepFlag.ABORTED)

    facts = gather(map_steps(flag_steps(make_run(), *LOADER, 0.5), abort))
    assert facts.loader.empty_share == 0.0


def test_all_ranks_count() -> None:
    run = make_run(ranks=2)
    dry, calm = flag_steps(run, *QUEUE, 1.0), flag_steps(run, *QUEUE, 0.0)
    facts = gather(replace(run, ranks=(dry.ranks[0], calm.ranks[1])))
    assert facts.queue_dry_share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("pinned", "expected"),
    [
        pytest.param((None, None), None, id="nobody knows"),
        pytest.param((True, None), True, id="one rank knows"),
        pytest.param((True, False), False, id="one rank does not"),
        pytest.param((True, True), True, id="every rank does"),
    ],
)
def test_batches_are_pinned_where_every_rank_pins_them(
    pinned: tuple[bool | None, bool | None], expected: bool | None
) -> None:
    run = make_run(ranks=2)
    ranks = tuple(replace(r, loader_pinned=p) for r, p in zip(run.ranks, pinned, strict=True))
    assert gather(replace(run, ranks=ranks)).loader.pinned is expected


def test_the_longest_waits_are_told_from_the_others() -> None:
    def one_in_twenty(steps, rank):
        steps["input_ns"] = 1_000_000
        steps["input_ns"][::20] = 81_000_000

    assert gather(make_run(noise=0)).loader.rare_share == pytest.approx(0.1)
    rare = gather(map_steps(make_run(), one_in_twenty)).loader.rare_share
    assert rare == pytest.approx((9 * 81 + 11) / (9 * 81 + 190), rel=0.02)


def test_a_run_without_fetches_has_no_loader() -> None:
    facts = gather(make_run(input_ms=None, workers=None))
    assert facts.loader == NO_LOADER
    assert facts.queue_dry_share is None


def test_collating_is_a_part_of_the_hosts_wait() -> None:
    def collate(steps, rank):
        steps["collate_ns"] = steps["input_ns"] // 4

    facts = gather(map_steps(make_run(input_ms=20), collate))
    assert facts.loader.collate_share == pytest.approx(0.25, rel=1e-3)


def test_shares_are_plain_numbers() -> None:
    """A number of numpy's passes for a float everywhere but in JSON."""
    watched = int(StepFlag.LOADER_WATCHED)
    run = map_steps(make_run(), lambda steps, _: steps["flags"].__ior__(watched))
    share = gather(run).loader.empty_share
    assert type(share) is float
