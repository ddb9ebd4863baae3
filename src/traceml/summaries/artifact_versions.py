"""Sums up the logged files of a run: the last version of each name, and those before it.

Every rank of a job may log the same file, and a script the same content again: a content that
equals the one before it is no new version.
"""

from __future__ import annotations

from collections.abc import Iterable

from traceml.store.logged import MAX_ARTIFACT_NAMES
from traceml.store.records import Artifact
from traceml.summaries.record import ArtifactFileSummary, ArtifactSummary, ArtifactVersion

MAX_VERSIONS = 50
"""Earlier versions of a name that are listed; all are kept."""


def artifact_summaries(artifacts: Iterable[Artifact]) -> dict[str, ArtifactSummary]:
    """Returns what was logged, by name."""
    by_name: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        versions = by_name.setdefault(artifact.name, [])
        if versions and _is_same(versions[-1], artifact):
            if artifact.stored is None:
                continue
            versions.pop()
        versions.append(artifact)
    latest = sorted(by_name.items(), key=lambda each: each[1][-1].unix_s or 0.0)[
        -MAX_ARTIFACT_NAMES:
    ]
    return {name: _summary(versions) for name, versions in sorted(latest)}


def _is_same(earlier: Artifact, later: Artifact) -> bool:
    return earlier.sha256 is not None and earlier.sha256 == later.sha256


def _summary(versions: list[Artifact]) -> ArtifactSummary:
    last = versions[-1]
    return ArtifactSummary(
        path=last.path,
        size_bytes=last.size_bytes,
        sha256=last.sha256,
        kind=last.kind,
        stored=last.stored,
        logged_unix_s=last.unix_s,
        version=len(versions),
        earlier=tuple(map(_version, versions[:-1][-MAX_VERSIONS:])),
        files={
            file.path: ArtifactFileSummary(file.size_bytes, file.sha256, file.kind)
            for file in last.files
        },
        note=last.note,
    )


def _version(artifact: Artifact) -> ArtifactVersion:
    return ArtifactVersion(
        artifact.size_bytes, artifact.sha256, artifact.stored, artifact.unix_s, artifact.note
    )
