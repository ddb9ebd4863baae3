"""Only what differs between two runs is told, and a run never differs from itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from traceml.compare.lineage import Difference, compare_lineages
from traceml.model.lineage import (
    ChangedFile,
    Changes,
    Code,
    Command,
    Data,
    Environment,
    Fingerprint,
    Gpu,
    Hardware,
    Lineage,
)
from traceml.summaries.record import ArtifactSummary, Summary

GIB = 1 << 30
CODE = Code(
    repository="/srv/project",
    remote="https://host/project.git",
    commit="a" * 40,
    branch="main",
    dirty=True,
    changes=Changes("1" * 64, (ChangedFile("train.py", 3, 1),), 1, 3, 1),
    untracked=("new.py",),
)
COMMAND = Command(
    words=("python", "train.py", "--lr", "0.1", "--amp"),
    script="train.py",
    arguments=("--lr", "0.1", "--amp"),
    folder="/srv/project",
)
ENVIRONMENT = Environment("3.12.1", "/usr/bin/python", "2.11.0", "12.8", "9.1.0", "550.54")
HARDWARE = Hardware("node1", "Debian 12", "6.1", "EPYC", 8, 16, 8.0, 64 * GIB, None, (Gpu("H200"),))
DATA = Data(
    {"data/images": "a304"},
    {"d": Fingerprint(3, 6, 100), "c.yaml": Fingerprint(1, 9, 5, "2" * 64)},
)
LINEAGE = Lineage(
    captured_unix_s=1.0,
    code=CODE,
    command=COMMAND,
    environment=ENVIRONMENT,
    packages={"torch": "2.11.0", "numpy": "2.0"},
    hardware=HARDWARE,
    data=DATA,
    variables={"OMP_NUM_THREADS": "8"},
)


SUMMARY = Summary(
    params={"lr": 0.1, "model": {"depth": 8}},
    artifacts={"weights": ArtifactSummary("w.pt", 10, "3" * 64)},
    settings={"compile_mode": "", "num_workers": 4},
    lineage=LINEAGE,
)


def _with(**changes: Any) -> Summary:
    """The same run but for parts of its lineage."""
    return structs.replace(SUMMARY, lineage=replace(LINEAGE, **changes))


def _told(a: Summary, b: Summary) -> dict[str, list[tuple[str, Any, Any]]]:
    found = compare_lineages([a], [b])
    assert found.identical == (not found.differences)
    return {
        group: [(each.name, each.lhs, each.rhs) for each in rows]
        for group, rows in found.differences.items()
    }


def test_a_run_is_identical_to_itself() -> None:
    found = compare_lineages([SUMMARY], [SUMMARY])
    assert found.identical
    assert (found.differences, found.not_recorded) == ({}, {})


def test_what_says_nothing_of_the_run_is_no_difference() -> None:
    moved = replace(CODE, repository="/elsewhere/project")
    assert _told(SUMMARY, _with(captured_unix_s=9.0, code=moved)) == {}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"code": replace(CODE, commit="b" * 40, branch="fast")},
            {"code": [("commit", "a" * 40, "b" * 40), ("branch", "main", "fast")]},
            id="another commit",
        ),
        pytest.param(
            {"code": replace(CODE, dirty=False, changes=None)},
            {
                "code": [
                    ("dirty", True, False),
                    ("changes", "1 file, +3 -1 lines (111111111111)", None),
                ]
            },
            id="nothing uncommitted any more",
        ),
        pytest.param(
            {"command": replace(COMMAND, arguments=("--lr", "0.2", "--seed=1"))},
            {"command": [("--lr", "0.1", "0.2"), ("--amp", True, None), ("--seed", None, "1")]},
            id="other arguments",
        ),
        pytest.param(
            {"environment": replace(ENVIRONMENT, torch="2.12.0", driver=None)},
            {"environment": [("torch", "2.11.0", "2.12.0"), ("driver", "550.54", None)]},
            id="another torch",
        ),
        pytest.param(
            {"packages": {"torch": "2.11.0", "scipy": "1.1"}},
            {"packages": [("numpy", "2.0", None), ("scipy", None, "1.1")]},
            id="other packages",
        ),
        pytest.param(
            {"hardware": replace(HARDWARE, gpus=(Gpu("H100", 80 * GIB),) * 2, ram_bytes=GIB)},
            {
                "hardware": [
                    ("ram_bytes", 64 * GIB, GIB),
                    ("gpus", "H200", "2 × H100 (80.0 GiB)"),
                ]
            },
            id="another machine",
        ),
        pytest.param(
            {"data": replace(DATA, dvc={"data/images": "b415"})},
            {"data": [("data/images (DVC)", "a304", "b415")]},
            id="another version by DVC",
        ),
        pytest.param(
            {"data": replace(DATA, paths={**DATA.paths, "d": Fingerprint(4, 7, 200)})},
            {
                "data": [
                    (
                        "d",
                        "3 files, 6 B (newest 1970-01-01 00:01:40 UTC)",
                        "4 files, 7 B (newest 1970-01-01 00:03:20 UTC)",
                    )
                ]
            },
            id="a folder that looks different",
        ),
        pytest.param(
            {"variables": {}}, {"variables": [("OMP_NUM_THREADS", "8", None)]}, id="a variable less"
        ),
    ],
)
def test_a_difference_is_told_in_its_group_alone(
    changes: dict[str, Any], told: dict[str, list[tuple[str, Any, Any]]]
) -> None:
    assert _told(SUMMARY, _with(**changes)) == told
    mirrored = {group: [(n, b, a) for n, a, b in rows] for group, rows in told.items()}
    back = _told(_with(**changes), SUMMARY)
    assert {group: sorted(rows, key=str) for group, rows in back.items()} == {
        group: sorted(rows, key=str) for group, rows in mirrored.items()
    }


def test_parameters_and_artifacts_are_compared_even_without_lineage() -> None:
    a = structs.replace(SUMMARY, lineage=None)
    b = structs.replace(
        a,
        params={"lr": 0.1, "model": {"depth": 9, "sizes": [1, 2]}},
        artifacts={"weights": ArtifactSummary("w.pt", 10, "4" * 64)},
    )
    found = compare_lineages([a], [b])
    assert found.differences == {
        "params": (Difference("model.depth", 8, 9), Difference("model.sizes", None, "1, 2")),
        "artifacts": (Difference("weights", "10 B (333333333333)", "10 B (444444444444)"),),
    }


def test_a_file_moved_or_written_again_is_the_same_data() -> None:
    again = replace(DATA, paths={**DATA.paths, "c.yaml": Fingerprint(1, 9, 99, "2" * 64)})
    elsewhere = {"weights": ArtifactSummary("/other/w.pt", 10, "3" * 64)}
    assert _told(SUMMARY, structs.replace(_with(data=again), artifacts=elsewhere)) == {}


def test_data_seen_in_part_differs_only_where_as_much_was_seen() -> None:
    def seen(files: int, size_bytes: int) -> Summary:
        return _with(data=Data({}, {"d": Fingerprint(files, size_bytes, 1, complete=False)}))

    assert _told(seen(100, 5), seen(90, 4)) == {}
    assert _told(seen(100, 5), seen(100, 4)) == {
        "data": [
            (
                "d",
                "100 files, 5 B seen (newest 1970-01-01 00:00:01 UTC)",
                "100 files, 4 B seen (newest 1970-01-01 00:00:01 UTC)",
            )
        ]
    }


def test_summaries_without_lineage_are_neither_the_same_nor_different() -> None:
    found = compare_lineages([Summary()], [Summary()])
    assert not found.identical
    assert found.differences == {}
    assert found.not_recorded["code"] == ("A", "B")


def test_what_one_side_did_not_record_is_said() -> None:
    found = compare_lineages([SUMMARY], [_with(code=None)])
    assert not found.identical
    assert (found.differences, found.not_recorded) == ({}, {"code": ("B",)})
    both = compare_lineages([_with(code=None)], [_with(code=None)])
    assert both.identical and both.not_recorded == {"code": ("A", "B")}


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        pytest.param(("--sizes", "1", "-2", "3"), {"--sizes": "1 -2 3"}, id="several values"),
        pytest.param(
            ("a", "b", "--x"), {"argument 1": "a", "argument 2": "b", "--x": True}, id="places"
        ),
        pytest.param(("--x=1", "--x=2", "lr=3"), {"--x": "1 2", "lr": "3"}, id="again and again"),
    ],
)
def test_arguments_are_told_by_option(arguments: tuple[str, ...], options: dict[str, Any]) -> None:
    a = _with(command=replace(COMMAND, arguments=()))
    b = _with(
        command=replace(COMMAND, words=("python", "train.py", *arguments), arguments=arguments)
    )
    (rows,) = _told(a, b).values()
    assert {name: rhs for name, _, rhs in rows if name != "launcher"} == options


@pytest.mark.parametrize(
    ("words", "launcher"),
    [
        pytest.param("torchrun -n=2 train.py --lr 0.1 --amp", "torchrun -n=2", id="torchrun"),
        pytest.param("python -m train --lr 0.1 --amp", "python -m train", id="a module"),
    ],
)
def test_another_launcher_is_told(words: str, launcher: str) -> None:
    told = _told(SUMMARY, _with(command=replace(COMMAND, words=tuple(words.split()))))
    assert told == {"command": [("launcher", None, launcher)]}


def test_without_arguments_the_whole_command_is_told() -> None:
    a = _with(command=Command(("run.sh", "1")))
    b = _with(command=Command(("run.sh", "2")))
    assert _told(a, b) == {"command": [("command", "run.sh 1", "run.sh 2")]}


def test_it_is_strict_json_whatever_a_file_holds() -> None:
    nested: Any = 1
    for _ in range(400):
        nested = {"a": [nested]}
    strange = Data({}, {"d": Fingerprint(1, 2, 10**18)})
    a = structs.replace(SUMMARY, params={"p": nested})
    b = structs.replace(_with(data=strange), params={"p": 3})
    found = compare_lineages([a], [b])
    decoded = msgspec.json.decode(msgspec.json.encode(found), type=type(found))
    assert decoded == found


def _commits(letters: str) -> list[Summary]:
    return [_with(code=replace(CODE, commit=letter * 40)) for letter in letters]


def test_of_groups_every_run_counts() -> None:
    """The first runs are alike; what the others ran is a difference all the same."""
    found = compare_lineages(_commits("aaa"), _commits("abb"))
    assert not found.identical
    assert found.differences == {
        "code": (Difference("commit", "a" * 40, f"{'a' * 40}, {'b' * 40}"),)
    }


def test_what_varies_alike_on_both_sides_is_no_difference_but_not_identical() -> None:
    found = compare_lineages(_commits("abc"), _commits("cab"))
    assert (found.identical, found.differences) == (False, {})
    assert "code" in found.same
    assert compare_lineages(_commits("aa"), _commits("aaa")).identical


def test_many_values_of_a_side_are_counted() -> None:
    found = compare_lineages(_commits("abcdef"), _commits("g"))
    (commit,) = found.differences["code"]
    assert str(commit.lhs).endswith(f"{'d' * 40}, … 2 more") and commit.rhs == "g" * 40


def test_a_run_of_a_group_that_recorded_nothing_is_said() -> None:
    found = compare_lineages([SUMMARY, _with(code=None)], [SUMMARY, SUMMARY])
    assert (found.identical, found.differences) == (False, {})
    assert found.not_recorded == {"code": ("A",)}


def test_an_edited_script_is_a_difference_where_both_looked() -> None:
    def script(sha256: str | None) -> Summary:
        return _with(command=replace(COMMAND, script_sha256=sha256))

    told = {"command": [("script content", "1" * 12, "2" * 12)]}
    assert _told(script("1" * 64), script("2" * 64)) == told
    assert _told(script("1" * 64), script(None)) == {}


def test_data_that_no_run_names_is_not_on_record() -> None:
    empty = _with(data=Data())
    found = compare_lineages([empty], [empty])
    assert found.identical
    assert found.not_recorded == {"data": ("A", "B")} and "data" not in found.same
    assert "data" in compare_lineages([SUMMARY], [empty]).differences


def with_settings(**settings: Any) -> Summary:
    return Summary(lineage=LINEAGE, settings={"num_workers": 4, **settings})


def test_settings_that_differ_are_listed() -> None:
    found = compare_lineages(
        [with_settings(autocast_dtype="", pin_memory=True, differs_between_ranks=())],
        [with_settings(autocast_dtype="bfloat16", pin_memory=True, differs_between_ranks=("a",))],
    )
    assert found.differences == {
        "settings": (
            Difference("autocast_dtype", "", "bfloat16"),
            Difference("differs_between_ranks", "", "a"),
        )
    }


def test_a_setting_that_one_run_does_not_know_is_no_difference() -> None:
    found = compare_lineages(
        [with_settings(compile_mode=None)], [with_settings(compile_mode="default", batch_size=8)]
    )
    assert "settings" not in found.differences
    assert "settings" in found.same


def test_settings_that_one_side_did_not_record_are_said_to_be_missing() -> None:
    found = compare_lineages([Summary(lineage=LINEAGE)], [with_settings()])
    assert found.not_recorded["settings"] == ("A",)
    assert not found.identical


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        pytest.param((2048, 2048), "2 contents of 2.0 KiB", id="of one size"),
        pytest.param((4096, 2048, 3072), "3 contents of 2.0 KiB to 4.0 KiB", id="of several sizes"),
        pytest.param((None, None), "2 contents", id="of unknown size"),
    ],
)
def test_the_files_of_several_runs_are_counted(sizes: tuple[int | None, ...], shown: str) -> None:
    """Each training has weights of its own: a list of hashes told nobody anything."""
    runs = [
        Summary(artifacts={"weights": ArtifactSummary("w.pt", size, str(place) * 64)})
        for place, size in enumerate(sizes)
    ]
    found = compare_lineages(runs, [SUMMARY]).differences["artifacts"]
    assert found == (Difference("weights", shown, "10 B (333333333333)"),)


def test_an_argument_that_is_a_parameter_as_well_is_told_once() -> None:
    def given(lr: str, sleep: tuple[str, ...], params: dict[str, Any]) -> Summary:
        words = ("--lr", lr, *sleep)
        command = Command(words=("python", "train.py", *words), script="train.py", arguments=words)
        return Summary(params=params, lineage=Lineage(command=command))

    a = given("0.1", (), {"lr": 0.1, "sleep_ms": 0.0})
    b = given("0.5", ("--sleep-ms", "8"), {"lr": 0.5, "sleep_ms": 8.0})
    found = compare_lineages([a], [b])
    assert [each.name for each in found.differences["command"]] == ["--lr", "--sleep-ms"]
    assert {group: [each.name for each in told] for group, told in found.told.items()} == {
        "params": ["lr", "sleep_ms"]
    }


def test_short_options_and_places_that_are_parameters_are_told_once() -> None:
    def given(*words: str, **params: Any) -> Summary:
        command = Command(words=("python", "train.py", *words), script="train.py", arguments=words)
        return Summary(params=params, lineage=Lineage(command=command))

    a = given("cats", "-b", "8", "-k", "1", batch_size=8, data="cats", no_gpu=False)
    words = ("dogs", "-b", "16", "-k", "2", "--no-gpu", "birds")
    b = given(*words, batch_size=16, data="dogs", no_gpu=True, more="birds")
    found = compare_lineages([a], [b])
    assert {group: [each.name for each in told] for group, told in found.told.items()} == {
        "command": ["-k"],
        "params": ["batch_size", "data", "no_gpu", "more"],
    }


def test_an_argument_with_another_value_than_the_parameter_is_told_too() -> None:
    def given(lr: str, logged: float) -> Summary:
        command = Command(("python", "train.py", "--lr", lr), "train.py", ("--lr", lr))
        return Summary(params={"lr": logged}, lineage=Lineage(command=command))

    found = compare_lineages([given("0.1", 1.0)], [given("0.5", 2.0)])
    assert list(found.told) == ["command", "params"]
