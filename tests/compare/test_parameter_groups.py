"""Which runs repeat each other, and which differ in one parameter alone."""

from __future__ import annotations

from compared_runs import run
from traceml.compare.parameter_groups import (
    CODE,
    Varied,
    group_by,
    one_at_a_time,
    params_of,
    repetitions,
    varying,
)

SWEEP = [{"lr": lr, "width": width, "seed": 0} for lr in (0.1, 0.2) for width in (8, 16)]


def test_only_what_differs_is_listed() -> None:
    assert varying(SWEEP) == ["lr", "width"]
    assert varying([{"a": 1}, {"a": 1.0}]) == []
    assert varying([{"a": 1}, {}]) == ["a"]


def test_runs_are_grouped_by_any_parameters() -> None:
    assert group_by(SWEEP, ["lr"]) == [(0, 1), (2, 3)]
    assert group_by(SWEEP, []) == [(0, 1, 2, 3)]


def test_runs_that_differ_in_their_seed_alone_are_repetitions() -> None:
    runs = [{"lr": lr, "trainer.seed": seed} for seed in (0, 1) for lr in (0.1, 0.2)]
    assert repetitions(runs) == [(0, 2), (1, 3)]


def test_the_same_seed_twice_is_no_repetition() -> None:
    assert repetitions(
        [{"lr": 0.1, "seed": 3}, {"lr": 0.1, "seed": 3}, {"lr": 0.1, "seed": 4}]
    ) == [
        (0,),
        (1,),
        (2,),
    ]
    assert repetitions([{"lr": 0.1}, {"lr": 0.1}]) == [(0,), (1,)]


def test_a_folders_name_tells_no_runs_apart() -> None:
    runs = [{"seed": seed, "output_dir": f"out/{seed}"} for seed in range(3)]
    assert repetitions(runs) == [(0, 1, 2)]


def test_each_parameter_is_found_where_it_alone_differs() -> None:
    found = list(one_at_a_time(SWEEP))
    assert found == [
        Varied("lr", {0.1: (0,), 0.2: (2,)}),
        Varied("lr", {0.1: (1,), 0.2: (3,)}),
        Varied("width", {8: (0,), 16: (1,)}),
        Varied("width", {8: (2,), 16: (3,)}),
    ]


def test_two_parameters_that_change_together_are_no_single_difference() -> None:
    assert list(one_at_a_time([{"lr": 0.1, "width": 8}, {"lr": 0.2, "width": 16}])) == []


def from_command(arguments: str, **params: object) -> dict[str, object]:
    words = ("python", "train.py", *arguments.split())
    command = {"words": words, "script": "train.py", "arguments": tuple(arguments.split())}
    return {"params": params, "lineage": {"command": command}}


def test_arguments_that_no_logged_parameter_holds_count_too() -> None:
    runs = [
        run(**from_command("7 --lr 0.1 --batch-size 32", lr=0.1, extra=7.0)),
        run(**from_command("8 --lr 0.2 --batch-size 64", lr=0.2, extra=8.0)),
    ]
    first, second = params_of(runs)
    assert first == {"lr": 0.1, "extra": 7.0, "batch_size": "32"}
    assert second == {"lr": 0.2, "extra": 8.0, "batch_size": "64"}


def test_the_version_of_the_code_is_a_parameter() -> None:
    runs = [
        run(lineage={"code": {"commit": commit}}, params={"seed": seed})
        for seed, commit in enumerate(("a" * 40, "b" * 40))
    ]
    params = params_of(runs)
    assert varying(params) == ["seed", CODE]
    assert repetitions(params) == [(0,), (1,)]
