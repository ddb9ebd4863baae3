"""Versions of libraries, as far as their major and minor numbers say, and the ranges of versions
that TraceML is tested with. The training process loads this: it knows no `packaging`."""

from __future__ import annotations

import re
from typing import NamedTuple


def version_numbers(text: str) -> tuple[int, ...]:
    """Returns major and minor number of a version: (1, 11) for `1.11.0rc1`."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def installed_version(*distributions: str) -> str | None:
    """Returns the version of the first of these packages, as pip calls them, that is installed;
    `None` where none is, or where it runs from a source tree."""
    from importlib.metadata import PackageNotFoundError, version  # not before it is asked: slow

    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


class VersionRange(NamedTuple):
    """The versions of a library that TraceML is tested with."""

    library: str
    """As people call it."""
    oldest: str
    """The first version of the range."""
    first_untested: str
    """The first version after the range: the next minor or major one."""

    def holds(self, version: str) -> bool:
        """Returns whether a version is in the range."""
        numbers = version_numbers(version)
        return version_numbers(self.oldest) <= numbers < version_numbers(self.first_untested)

    def warning(self, version: str | None) -> str | None:
        """Returns a sentence about an installed version that is not tested; `None` for one that is,
        and where the version is not known."""
        if version is None or self.holds(version):
            return None
        return (
            f"{self.library} {version} is outside the versions that TraceML is tested with "
            f"({self.oldest} or newer, before {self.first_untested})"
        )
