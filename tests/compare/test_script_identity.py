"""Runs of different scripts are told from runs of one script that has several places."""

from __future__ import annotations

import pytest
from msgspec import structs

from compared_runs import run
from traceml.compare.pair import compare
from traceml.compare.script_identity import (
    ScriptIdentity,
    are_different,
    one_name_per_script,
    script_of,
)
from traceml.model.lineage import Code, Command, Environment, Lineage

HTTPS, SSH = "https://host/acme/nets.git", "git@host:me/nets.git"
OTHER = "https://host/acme/vision"


def ran(
    script: str | None,
    folder: str | None = "/home/u/one",
    content: str | None = None,
    repository: str | None = None,
    remote: str | None = None,
) -> Lineage:
    return Lineage(
        command=Command(script=script, folder=folder, script_sha256=content),
        code=None if repository is None else Code(repository=repository, remote=remote),
        environment=Environment(executable="/venv/bin/python"),
    )


@pytest.mark.parametrize(
    ("lineage", "name"),
    [
        (ran("train.py"), "/home/u/one/train.py"),
        (ran("../two/train.py"), "/home/u/two/train.py"),
        (ran("/data/train.py", folder=None), "/data/train.py"),
        (ran("src/train.py", repository="/home/u/one"), "src/train.py"),
        (ran("train.py", folder="/home/u/one/src", repository="/home/u/one"), "src/train.py"),
        (ran("/data/train.py", repository="/home/u/one"), "/data/train.py"),
        (ran("/venv/lib/python3.11/site-packages/nets/train.py"), "nets/train.py"),
        (ran("/venv/bin/nets-train"), "nets-train"),
    ],
)
def test_a_script_is_named_by_the_path_that_its_copies_share(lineage: Lineage, name: str):
    found = script_of(lineage)
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    "lineage",
    [
        None,
        Lineage(),
        ran(None),
        ran("-c"),
        ran("train.py", folder=None),
        ran("/venv/lib/python3.11/site-packages/ipykernel_launcher.py"),
    ],
)
def test_what_is_no_file_or_not_recorded_is_not_known(lineage: Lineage | None):
    assert script_of(lineage) is None


ONE = ran("train.py", content="1")
CHECKOUT = ran("train.py", content="1", repository="/home/u/one", remote=HTTPS)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(ONE, ran("train.py", "/home/u/two", "2"), id="folders without a repository"),
        pytest.param(ONE, ran("evaluate.py", content="2"), id="names"),
        pytest.param(ONE, ran("evaluate.py"), id="names where the content is not known"),
        pytest.param(
            CHECKOUT,
            ran("b/train.py", content="2", repository="/home/u/one", remote=HTTPS),
            id="folders of one repository",
        ),
        pytest.param(
            CHECKOUT,
            ran("train.py", "/home/u/two", "2", repository="/home/u/two", remote=OTHER),
            id="repositories",
        ),
    ],
)
def test_different_scripts_are_named_in_a_comparison(a: Lineage, b: Lineage):
    first, second = script_of(a), script_of(b)
    assert first and second and are_different(first, second) and are_different(second, first)
    one, other = (run({"step_time_ms": ms}) for ms in (50.0, 80.0))
    alone = compare(one, other, ("a", "b"))
    one, other = (
        structs.replace(each, lineage=lineage) for each, lineage in ((one, a), (other, b))
    )
    found = compare(one, other, ("a", "b"))
    (warning,) = found.warnings
    names = (first.name, second.name) if first.name != second.name else (first.path, second.path)
    assert warning == f"The runs are of different scripts: {names[0]} -> {names[1]}."
    assert found.verdict.status == alone.verdict.status == "REGRESSION"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(ONE, ran("train.py", content="2"), id="edited"),
        pytest.param(ONE, ran("train.py", "/home/u/two", "1"), id="moved"),
        pytest.param(ONE, ran("fit.py", content="1"), id="renamed"),
        pytest.param(ONE, ran("train.py", "/home/u/two"), id="content not known"),
        pytest.param(ONE, ran(None), id="script not known"),
        pytest.param(ONE, Lineage(), id="nothing known"),
        pytest.param(
            CHECKOUT,
            ran("train.py", "/ci/7", "2", repository="/ci/7", remote=SSH),
            id="a checkout of a fork",
        ),
        pytest.param(
            CHECKOUT,
            ran("train.py", "/tmp/tree", "2", repository="/tmp/tree"),
            id="a checkout without a remote",
        ),
        pytest.param(
            ran("/venv/lib/python3.11/site-packages/nets/train.py", content="1"),
            ran("/other/lib/python3.12/site-packages/nets/train.py", content="2"),
            id="installed twice",
        ),
    ],
)
def test_one_script_with_several_places_is_no_remark(a: Lineage, b: Lineage):
    same = run({"step_time_ms": 50.0})
    one, other = (structs.replace(same, lineage=each) for each in (a, b))
    assert compare(one, other, ("a", "b")).warnings == ()
    assert compare(other, one, ("b", "a")).warnings == ()


def test_a_moved_script_keeps_the_name_that_it_has_now():
    names, contents = ["/new/t.py", "/new/t.py", "/old/t.py", "/else/t.py"], ["2", "1", "1", "9"]
    found = one_name_per_script(["t"] * 4, names, contents)
    assert found == ["/new/t.py", "/new/t.py", "/new/t.py", "/else/t.py"]


def test_a_run_of_an_unknown_script_is_of_the_only_one_that_its_command_has():
    assert one_name_per_script(["t", "t", "e"], ["/a/t.py", None, None], [None] * 3) == [
        "/a/t.py",
        "/a/t.py",
        None,
    ]
    names = ["/a/t.py", None, "/b/t.py"]
    assert one_name_per_script(["t"] * 3, names, [None] * 3) == names


def test_nothing_is_shown_of_a_script_that_is_not_known():
    assert not are_different(None, ScriptIdentity("/a/t.py"))
