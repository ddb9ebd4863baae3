"""Runs pair up by seed or fold where every run has its partner, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from traceml.compare.sides import pair_up
from traceml.model.lineage import Command, Lineage
from traceml.summaries.record import Summary


def runs(*params: dict[str, Any]) -> list[Summary]:
    return [Summary(params=each) for each in params]


def test_runs_stand_beside_their_partners() -> None:
    a = runs({"seed": 1}, {"seed": 2}, {"seed": 3})
    b = runs({"seed": 3, "lr": 1}, {"seed": 1, "lr": 1}, {"seed": 2, "lr": 1})
    sides = pair_up(a, b)
    assert sides.paired_by == "seed"
    assert [run.params["seed"] for run in sides.b] == [1, 2, 3]


def test_a_nested_name_and_a_fold_pair_too() -> None:
    a = runs(*({"trainer.Seed": 0, "fold": n} for n in range(3)))
    assert pair_up(a, a).paired_by == "fold and trainer.Seed"


def test_a_seed_on_the_command_line_pairs_too() -> None:
    a, b = (
        [
            Summary(lineage=Lineage(command=Command(arguments=("--seed", str(seed)))))
            for seed in seeds
        ]
        for seeds in ((1, 2, 3), (3, 1, 2))
    )
    sides = pair_up(a, b)
    assert sides.paired_by == "seed"
    assert [run.lineage for run in sides.a] == [run.lineage for run in sides.b]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param([1, 2], [1, 2], id="two pairs are too few"),
        pytest.param([1, 2, 3], [1, 2, 4], id="another seed"),
        pytest.param([1, 2, 3], [1, 2, 2], id="a seed twice"),
        pytest.param([1, 2, 3], [1, 2], id="a run without partner"),
        pytest.param([1, 1, 1], [1, 1, 1], id="the same seed everywhere"),
    ],
)
def test_runs_without_partners_are_two_groups(a: list[int], b: list[int]) -> None:
    sides = pair_up(runs(*({"seed": n} for n in a)), runs(*({"seed": n} for n in b)))
    assert sides.paired_by is None


def test_runs_without_a_seed_are_two_groups() -> None:
    assert pair_up(runs({}, {}, {}), runs({}, {}, {})).paired_by is None
    mixed = runs({"seed": 1}, {"seed": 2}, {})
    assert pair_up(mixed, mixed).paired_by is None
