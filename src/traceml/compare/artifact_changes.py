"""Which logged files differ between two runs; how they differ is found by their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from traceml.compare.artifact_details import Details
from traceml.model.artifact import ArtifactKind
from traceml.summaries.record import ArtifactSummary

MAX_COMPARED = 200
"""Files whose contents are compared; of more it is only said that they differ."""


class ArtifactSide(Struct, frozen=True):
    """A logged file in one of the two runs."""

    size_bytes: int | None = None
    sha256: str | None = None
    version: int | None = None
    """How many contents had been logged under its name; `None` for a file of a folder."""


class ArtifactChange(Struct, frozen=True):
    """A logged file that differs; `None` on the side that does not have it."""

    name: str
    """Of a file in a folder, with its path in it."""
    kind: str
    lhs: ArtifactSide | None = None
    rhs: ArtifactSide | None = None
    details: Details | None = None
    """How the contents differ; `None` where one is missing, or nobody knows how to compare them."""
    not_compared: str | None = None
    """Why the contents were not compared, in words."""


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A logged file, or a file of a logged folder."""

    kind: str
    size_bytes: int | None
    sha256: str | None
    version: int | None
    stored: str | None
    """Its path in the run's folder; `None` where it was not kept."""
    note: str | None

    @property
    def side(self) -> ArtifactSide:
        """Returns what the comparison says of it."""
        return ArtifactSide(self.size_bytes, self.sha256, self.version)


CompareContents: TypeAlias = Callable[
    [str, LoggedFile, LoggedFile], tuple[Details | None, str | None]
]
"""Returns how two files of a name differ, or why that cannot be said."""


def compare_artifacts(
    a: Mapping[str, ArtifactSummary], b: Mapping[str, ArtifactSummary], compare: CompareContents
) -> tuple[ArtifactChange, ...]:
    """Returns the logged files that differ, by name; a folder file by file."""
    lhs_files, rhs_files = dict(_files(a)), dict(_files(b))
    changes: list[ArtifactChange] = []
    for name in sorted(lhs_files.keys() | rhs_files.keys()):
        lhs, rhs = lhs_files.get(name), rhs_files.get(name)
        if lhs is not None and rhs is not None and _is_same(lhs, rhs):
            continue
        changes.append(_change(name, lhs, rhs, compare, len(changes)))
    return tuple(changes)


def _change(
    name: str,
    lhs: LoggedFile | None,
    rhs: LoggedFile | None,
    compare: CompareContents,
    before: int,
) -> ArtifactChange:
    found = rhs or lhs
    kind = found.kind if found else ArtifactKind.OTHER.value
    if lhs is None or rhs is None:
        return ArtifactChange(
            name, kind, None if lhs is None else lhs.side, None if rhs is None else rhs.side
        )
    if before < MAX_COMPARED:
        details, why = compare(name, lhs, rhs)
    else:
        details, why = None, f"only the first {MAX_COMPARED} files are"
    return ArtifactChange(name, kind, lhs.side, rhs.side, details, why)


def _files(artifacts: Mapping[str, ArtifactSummary]) -> Iterator[tuple[str, LoggedFile]]:
    """Yields the files of a run; those of a folder with their paths in it."""
    for name, found in artifacts.items():
        kind = found.kind or ArtifactKind.OTHER.value
        if not found.files:
            yield (
                name,
                LoggedFile(
                    kind, found.size_bytes, found.sha256, found.version, found.stored, found.note
                ),
            )
        for path, file in found.files.items():
            stored = None if found.stored is None else f"{found.stored}/{path}"
            inner = file.kind or ArtifactKind.OTHER.value
            known = LoggedFile(inner, file.size_bytes, file.sha256, None, stored, found.note)
            yield f"{name}/{path}", known


def _is_same(lhs: LoggedFile, rhs: LoggedFile) -> bool:
    if lhs.sha256 is not None and rhs.sha256 is not None:
        return lhs.sha256 == rhs.sha256
    return lhs.size_bytes is None and rhs.size_bytes is None  # addresses, or nothing is known
