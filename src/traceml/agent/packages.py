"""Lists the packages of an interpreter by the names of their metadata folders.

Reading each package's metadata takes milliseconds; the folder's name already holds the version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

_VERSIONED = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(?:-py[\d.]+)?\.(?:dist|egg)-info")


def packages_on(path: Iterable[str], folder: str) -> dict[str, str]:
    """Returns version by name; as for imports, the first on the path counts.

    A relative entry starts in `folder`, where the script runs.
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
    """Returns the normalised name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _written_version(folder: Path) -> str | None:
    """Returns the version of a checkout that is installed in place, from its metadata file."""
    try:
        return PathDistribution(folder).version
    except (OSError, KeyError, UnicodeDecodeError):
        return None
