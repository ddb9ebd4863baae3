"""An interpreter's packages are found by the names of their folders."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

from traceml.agent.packages import packages_on


def test_every_form_of_a_package_is_found(tmp_path: Path) -> None:
    for name in (
        "torch-2.11.0+cu128.dist-info",
        "ruamel.yaml-0.18.dist-info",
        "Flask_Cors-4.0.dist-info",
        "old-1.0-py3.10.egg-info",
        "no_version.dist-info",
        "package",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "mine.egg-info").mkdir()
    (tmp_path / "mine.egg-info" / "PKG-INFO").write_text("Name: mine\nVersion: 0.3.dev1\n")
    assert packages_on([str(tmp_path)], "/") == {
        "flask-cors": "4.0",
        "mine": "0.3.dev1",
        "old": "1.0",
        "ruamel-yaml": "0.18",
        "torch": "2.11.0+cu128",
    }


def test_the_first_on_the_path_counts_and_strange_entries_none(tmp_path: Path) -> None:
    for place, version in (("a", "1"), ("b", "2")):
        (tmp_path / place / f"x-{version}.dist-info").mkdir(parents=True)
    archive = tmp_path / "python.zip"
    archive.touch()
    path = [str(archive), "b", str(tmp_path / "a"), str(tmp_path / "gone")]
    assert packages_on(path, str(tmp_path)) == {"x": "2"}


def test_our_own_interpreters_packages_are_those_it_names_itself() -> None:
    names = {
        dist.metadata["Name"].replace("_", "-").replace(".", "-").lower()
        for dist in distributions()
    }
    found = packages_on(sys.path, "/")
    assert found.keys() == names
    assert found["msgspec"] == __import__("msgspec").__version__
