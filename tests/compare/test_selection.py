"""Groups of runs by what they were run with."""

from __future__ import annotations

import pytest

from traceml.compare.selection import (
    argument_values,
    as_filter,
    is_expression,
    is_short,
    matches,
    parse,
)
from traceml.model.errors import UsageError
from traceml.model.lineage import Command, Lineage
from traceml.store.query_language import parse_filter
from traceml.summaries.record import RunLabels, Summary

LABELS = RunLabels(
    params={"lr": 0.1, "model": "small", "amp": True, "optim.name": "adam", "data": {"shards": 4}},
    meta={"world_size": 8},
    lineage={"code": {"branch": "main", "dirty": False}},
)


@pytest.mark.parametrize(
    "word",
    [
        *("params.lr=0.1", "lr=1e-1", "model=small", "params.amp=true", "world_size=8"),
        *("optim.name=adam", "params.data.shards=4", "lineage.code.branch=main"),
        *("lr=0.1,meta.world_size=8", "code.dirty=False"),
    ],
)
def test_a_run_is_chosen_by_what_it_has(word: str) -> None:
    assert matches(LABELS, parse(word))


@pytest.mark.parametrize(
    "word",
    ["lr=0.2", "lr=fast", "model=large", "seed=1", "lr=0.1,world_size=4", "params.world_size=8"],
)
def test_a_run_that_has_something_else_is_not_chosen(word: str) -> None:
    assert not matches(LABELS, parse(word))


@pytest.mark.parametrize("word", ["=1", "lr=1,", "lr=1,model"])
def test_what_is_no_group_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="key=value"):
        parse(word)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("params.lr=0.1", 'params."lr" = 0.1'),
        ("lr=1e-1,model=small net", '"lr" = 1e-1 and "model" = "small net"'),
        ("params.amp=True", 'params."amp" = true'),
        ("meta.run_name=a", 'facts."name" = "a"'),
        ("lineage.code.branch=main", 'facts."branch" = "main"'),
        ("lr=nan", '"lr" = "nan"'),
        ("x=a\\b", '"x" = "a\\\\b"'),
    ],
)
def test_the_short_form_is_a_filter(word: str, meant: str) -> None:
    assert is_short(word)
    assert as_filter(word) == meant
    parse_filter(meant)


@pytest.mark.parametrize(
    "word", ["lr > 0.1", "lr = 1 and x = 2", "lr != 1", 'a = "b,c"', "a in (1, 2)", "a is missing"]
)
def test_what_has_more_than_keys_and_values_is_a_filter_itself(word: str) -> None:
    assert is_expression(word) and not is_short(word)


def test_labels_of_any_shape_are_no_error() -> None:
    assert not matches(RunLabels(params=[1], meta="x", lineage=None), parse("lr=1"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--seed", "3", "--lr", "0.1"), {"seed": "3"}),
        (("--fold=2", "--Random-Seed", "7"), {"fold": "2", "random_seed": "7"}),
        (("trainer.seed=5",), {"seed": "5"}),
        (("--seed", "--fast"), {}),
        (("--seedling", "3"), {}),
        (None, {}),
    ],
)
def test_a_seed_is_found_among_the_arguments(
    arguments: tuple[str, ...] | None, expected: dict[str, str]
) -> None:
    given = Summary(lineage=Lineage(command=Command(arguments=arguments)))
    assert argument_values(given, ("seed", "random_seed", "fold")) == expected
    assert argument_values(Summary(), ("seed",)) == {}
