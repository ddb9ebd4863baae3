"""Registers a run's checkpoint as a version of a model in MLflow's registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from traceml.model.artifact import ArtifactKind, kind_of_file
from traceml.model.errors import UsageError
from traceml.model.printable import printable
from traceml.store.mlflow_names import shortened
from traceml.store.mlflow_runs import FOLDER
from traceml.store.mlflow_server import MlflowServer, NotAtServer, RefusedByServer

MAX_DESCRIPTION_CHARS = 5000
ARTIFACT_TAG = "traceml.artifact"
HASH_TAG = "traceml.sha256"
EVIDENCE = "promotions"
"""The folder of the run's files that holds comparisons."""
MAX_LISTED = 1000


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a run at the server that can become a model's version."""

    name: str
    """As the script logged it, or its path at the server."""
    source: str
    """The path of what is registered, among the run's artifacts."""
    size_bytes: int | None = None
    sha256: str | None = None
    is_model: bool = True
    """Whether it is a checkpoint by its kind; other files are registered only when named."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a model."""

    model: str
    version: str
    is_new: bool
    link: str


def checkpoints_there(server: MlflowServer, run_id: str) -> dict[str, ModelFile]:
    """Returns the checkpoints among the artifacts of a run that TraceML did not send, by path."""
    found: dict[str, ModelFile] = {}
    for path, size in _files(server, run_id, None):
        if kind_of_file(path, b"") is ArtifactKind.CHECKPOINT:
            found[path] = ModelFile(path, path, size)
        if len(found) == MAX_LISTED:
            break
    return found


def artifact_there(server: MlflowServer, run_id: str, path: str) -> ModelFile | None:
    """Returns a file or a folder among a run's artifacts; `None` where there is none."""
    above = PurePosixPath(path).parent.as_posix()
    with server.said_plainly("listing the run's files"):
        listed = server.client.list_artifacts(run_id, None if above == "." else above)
    for each in listed:
        if each.path == path:
            return ModelFile(path, path, each.file_size)
    return None


def _files(server: MlflowServer, run_id: str, path: str | None) -> Iterator[tuple[str, int | None]]:
    with server.said_plainly("listing the run's files"):
        listed = server.client.list_artifacts(run_id, path)
    for each in listed:
        if each.is_dir:
            yield from _files(server, run_id, each.path)
        else:
            yield each.path, each.file_size


def attach_evidence(server: MlflowServer, run_id: str, base: str, files: Mapping[str, str]) -> str:
    """Writes the comparison to the run's artifacts; returns the folder there."""
    place = f"{FOLDER}/{EVIDENCE}/{base}"
    for name, content in files.items():
        with server.said_plainly(f"attaching {name}"):
            server.client.log_text(run_id, content, f"{place}/{name}")
    return place


def register(
    server: MlflowServer,
    model: str,
    run_id: str,
    checkpoint: ModelFile,
    tags: Mapping[str, str],
    description: str,
    alias: str | None = None,
) -> Registered:
    """Registers a checkpoint; one that is registered already gets the new tags.

    Raises UsageError where the name is no model's name.
    """
    client = server.client
    _make_model(server, model)
    described = shortened(description, MAX_DESCRIPTION_CHARS)
    version = _existing(server, model, run_id, checkpoint)
    is_new = version is None
    if version is None:
        with server.said_plainly(f"registering a version of {printable(model)}"):
            root = client.get_run(run_id).info.artifact_uri
            version = client.create_model_version(
                model,
                source=f"{root.rstrip('/')}/{checkpoint.source}",
                run_id=run_id,
                tags=dict(tags),
                description=described,
            )
    else:
        with server.said_plainly(f"describing version {version.version} of {printable(model)}"):
            client.update_model_version(model, version.version, described)
            for name, value in tags.items():
                client.set_model_version_tag(model, version.version, name, value)
    if alias is not None:
        with server.said_plainly(f"setting the alias {printable(alias)}"):
            client.set_registered_model_alias(model, alias, version.version)
    return Registered(model, str(version.version), is_new, _link(server, model, version.version))


def _make_model(server: MlflowServer, model: str) -> None:
    shown = printable(model)
    try:
        with server.said_plainly(f"looking for the model {shown}"):
            server.client.get_registered_model(model)
            return
    except (NotAtServer, RefusedByServer):
        pass  # none yet, or no name, which is said next
    try:
        with server.said_plainly(f"making the model {shown}"):
            server.client.create_registered_model(model)
    except RefusedByServer as error:
        try:  # somebody else has made it a moment ago
            with server.said_plainly(f"looking for the model {shown}"):
                server.client.get_registered_model(model)
        except (NotAtServer, RefusedByServer):
            raise UsageError(
                f"{error}; a model's name has no slash and no colon: write --to mlflow:MODEL"
            ) from None


def _existing(server: MlflowServer, model: str, run_id: str, checkpoint: ModelFile) -> Any | None:
    """Returns the version that is this checkpoint already; `None` without one."""
    with server.said_plainly(f"listing versions of {printable(model)}"):
        versions = server.client.search_model_versions(f"run_id = '{run_id}'")
    for each in versions:
        is_same = each.name == model and each.source.rstrip("/").endswith(checkpoint.source)
        if is_same and each.tags.get(HASH_TAG) in (checkpoint.sha256, None):
            return each
    return None


def _link(server: MlflowServer, model: str, version: str) -> str:
    if server.uri.startswith(("http://", "https://")):
        return f"{server.shown}/#/models/{printable(model)}/versions/{version}"
    return f"models:/{printable(model)}/{version}"
