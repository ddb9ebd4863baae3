"""Lists the packages an interpreter finds, by the names of their folders.

Reading every package's metadata takes milliseconds each; the folder's name has the version in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

_VERSIONED = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(?:-py[\d.]+)?\.(?:dist|egg)-info")


def packages_on(path: Iterable[str], folder: str) -> dict[str, str]:
    """Version by name; as for imports, the first on the path counts.

    A relative entry is meant from `folder`, where the script runs.
    """
    found: dict[str, str] = {}
    for entry in dict.fromkeys(str(Path(folder, entry)) for entry in path):
        for name, version in _in_folder(Path(entry)):
            found.setdefault(name, version)
    return dict(sorted(found.items()))


def _in_folder(folder: Path) -> Iterator[tuple[str, str]]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone: no paths are made of thousands
    except OSError:  # an archive, or nothing at all
        return
    for name in sorted(names):
        if not name.endswith((".dist-info", ".egg-info")):
            continue
        versioned = _VERSIONED.fullmatch(name)
        if versioned is not None:
            yield _normal(versioned["name"]), versioned["version"].replace("_", "-")
        elif version := _written_version(folder / name):
            yield _normal(name.rpartition(".")[0]), version


def _normal(name: str) -> str:
    """The one name that stands for all its spellings."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _written_version(folder: Path) -> str | None:
    """A checkout installed in place has its version only in a file."""
    try:
        return PathDistribution(folder).version
    except (OSError, KeyError, UnicodeDecodeError):
        return None
