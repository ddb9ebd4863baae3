from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from traceml.model.environment import MARKS, MESSAGES_MARK
from traceml.model.errors import UsageError
from traceml.model.tracker import (
    SAID_MARK,
    TRACKERS,
    Tracker,
    closing_messages,
    parse_trackers,
    require_installed,
)

ROOT = Path(__file__).parents[2]


def test_names_are_taken_in_order_and_once():
    assert parse_trackers("mlflow, wandb,mlflow") == ("mlflow", "wandb")


@pytest.mark.parametrize("text", ["", "wandb,", "nope", "wandb mlflow"])
def test_an_unknown_name_is_refused_with_those_that_there_are(text: str):
    with pytest.raises(UsageError) as refused:
        parse_trackers(text)
    assert all(name in str(refused.value) for name in TRACKERS)
    assert "pip install 'traceml-insight[" in str(refused.value)


def test_a_near_miss_is_named():
    with pytest.raises(UsageError, match="did you mean tensorboard"):
        parse_trackers("tensorbord")


def test_a_missing_package_is_refused_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape("'traceml-insight[wandb,trackio]'")):
        require_installed(("wandb", "trackio"))


@pytest.mark.parametrize(
    ("installed", "is_named"),
    [
        ("1.1.9", True),
        ("1.2.0", False),
        ("1.10.99", False),
        ("1.11.0rc1", True),
        ("2.0", True),
        (None, False),
    ],
)
def test_a_version_outside_the_known_ones_is_named(
    installed: str | None, is_named: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Tracker, "version", lambda self: installed)
    words = Tracker("some", ("some",), "1.2", "1.11").version_warning()
    assert (words is not None) is is_named
    if words is not None:
        assert f"some {installed}" in words and "1.2 or newer, before 1.11" in words


def test_the_version_of_a_package_that_is_not_installed_is_unknown():
    assert Tracker("none", ("no-such-distribution",), "1", "2").version() is None


def test_every_tracker_has_the_extra_of_its_name():
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert TRACKERS.keys() <= set(extras)


def test_the_closing_messages_of_a_run_are_those_of_the_agent_then_of_each_tracker(tmp_path: Path):
    assert closing_messages(tmp_path / "gone") == []
    (tmp_path / MARKS).mkdir()
    (tmp_path / MARKS / MESSAGES_MARK).write_text("first\nsecond\n")
    for name in ("trackio", "wandb"):
        (tmp_path / MARKS / f"{SAID_MARK}{name}").write_text(f"logged to {name}")
    expected = ["first", "second", "logged to wandb", "logged to trackio"]
    assert closing_messages(tmp_path) == expected


def test_a_folder_of_the_packages_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B keeps its runs in `wandb`, beside the script."""
    (tmp_path / "trackio").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with pytest.raises(UsageError, match="the package is not installed here"):
        require_installed(("trackio",))
    (tmp_path / "trackio" / "__init__.py").touch()
    importlib.invalidate_caches()
    require_installed(("trackio",))
