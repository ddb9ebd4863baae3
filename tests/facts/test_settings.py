"""The settings of a run are its lowest rank's, completed from the steps."""

from dataclasses import replace

import pytest

from factories import make_run, map_steps, with_settings
from traceml.facts.gather import gather
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.records import RunRecords


def with_micro_batches(run: RunRecords, number: int) -> RunRecords:
    def change(steps, rank):
        steps["micro_batches"] = number

    return map_steps(run, change)


def test_without_a_word_from_any_rank_nothing_is_known() -> None:
    facts = gather(make_run(ranks=2))
    assert facts.settings == NOT_RECORDED
    assert facts.uneven_settings == ()


def test_the_lowest_rank_that_said_something_counts_and_differences_are_named() -> None:
    run = make_run(ranks=3)
    said = (None, Settings(pin_memory=True, optimizer="SGD"), Settings(pin_memory=False))
    ranks = tuple(replace(rank, settings=each) for rank, each in zip(run.ranks, said, strict=True))
    facts = gather(replace(run, ranks=ranks))
    assert (facts.settings.pin_memory, facts.settings.optimizer) == (True, "SGD")
    assert facts.uneven_settings == ("pin_memory",)


@pytest.mark.parametrize(
    ("backwards", "samples", "batch", "accumulated"),
    [
        pytest.param(4, 32, 8, 4, id="four batches, four backward passes"),
        pytest.param(3, 8, 8, 1, id="a GAN: three backward passes of one batch"),
        pytest.param(1, 16, 8, 1, id="two loaders, one backward pass"),
        pytest.param(4, 32, None, 4, id="batches of unknown size"),
        pytest.param(0, 32, 8, None, id="no backward pass was seen"),
    ],
)
def test_accumulation_is_counted_in_the_steps(backwards, samples, batch, accumulated) -> None:
    run = with_micro_batches(make_run(samples=samples), backwards)
    assert gather(with_settings(run, batch_size=batch)).settings.accumulation_steps == accumulated


@pytest.mark.parametrize(("batch", "accumulated"), [(None, None), (32, 1)])
def test_two_optimizers_with_a_backward_pass_each_are_no_accumulation(batch, accumulated) -> None:
    def change(steps, rank):
        steps["optimizer_steps"] = 2

    run = map_steps(with_micro_batches(make_run(samples=32), 2), change)
    assert gather(with_settings(run, batch_size=batch)).settings.accumulation_steps == accumulated


def test_the_loader_of_training_counts_though_another_was_noted_later() -> None:
    run = make_run(workers=1)  # what the ring was told last, by a validation loader
    facts = gather(with_settings(run, num_workers=2, pin_memory=True))
    assert (facts.loader.workers, facts.loader.pinned) == (2, True)
