"""What kinds of files a script can log, and how a file's kind is known."""

from __future__ import annotations

from enum import Enum
from pathlib import PurePath

STAGED = "staged"
"""A folder in the run's: training processes put logged files there, the agent takes them out."""
STAGED_FACTS = "staged.json"
"""Beside the staged files of one call: what was logged, and each file's size and time then."""
PART_SUFFIX = ".part"
"""The ending of a folder whose files are not all staged yet."""
HEAD_BYTES = 512
"""So much of a file's beginning tells its kind."""


class ArtifactKind(str, Enum):
    """The kinds; each is compared in its own way."""

    CHECKPOINT = "checkpoint"
    IMAGE = "image"
    TABLE = "table"
    JSON = "json"
    SAMPLES = "samples"
    """JSON lines: one record per line, such as a prompt and what was generated for it."""
    LOG = "log"
    TEXT = "text"
    ARRAY = "array"
    """A NumPy array, such as embeddings, or several (`.npz`)."""
    FOLDER = "folder"
    REFERENCE = "reference"
    """A place elsewhere (`s3://…`), of which only the address is recorded."""
    OTHER = "other"


_BY_SUFFIX = {
    ".safetensors": ArtifactKind.CHECKPOINT,
    ".pt": ArtifactKind.CHECKPOINT,
    ".pth": ArtifactKind.CHECKPOINT,
    ".ckpt": ArtifactKind.CHECKPOINT,
    ".distcp": ArtifactKind.CHECKPOINT,
    ".png": ArtifactKind.IMAGE,
    ".jpg": ArtifactKind.IMAGE,
    ".jpeg": ArtifactKind.IMAGE,
    ".csv": ArtifactKind.TABLE,
    ".tsv": ArtifactKind.TABLE,
    ".json": ArtifactKind.JSON,
    ".jsonl": ArtifactKind.SAMPLES,
    ".ndjson": ArtifactKind.SAMPLES,
    ".log": ArtifactKind.LOG,
    ".out": ArtifactKind.LOG,
    ".err": ArtifactKind.LOG,
    ".txt": ArtifactKind.TEXT,
    ".md": ArtifactKind.TEXT,
    ".yaml": ArtifactKind.TEXT,
    ".yml": ArtifactKind.TEXT,
    ".toml": ArtifactKind.TEXT,
    ".cfg": ArtifactKind.TEXT,
    ".ini": ArtifactKind.TEXT,
    ".py": ArtifactKind.TEXT,
    ".npy": ArtifactKind.ARRAY,
    ".npz": ArtifactKind.ARRAY,
    ".parquet": ArtifactKind.TABLE,
    ".pq": ArtifactKind.TABLE,
    ".arrow": ArtifactKind.TABLE,
    ".feather": ArtifactKind.TABLE,
    ".ipc": ArtifactKind.TABLE,
}
_BY_HEAD = (
    (b"\x89PNG\r\n\x1a\n", ArtifactKind.IMAGE),
    (b"\xff\xd8\xff", ArtifactKind.IMAGE),
    (b"\x93NUMPY", ArtifactKind.ARRAY),
)
_ZIP = b"PK\x03\x04"


def kind_of_file(name: str, head: bytes) -> ArtifactKind:
    """Returns a file's kind by the ending of its name, or else by how its content begins."""
    kind = _BY_SUFFIX.get(PurePath(name).suffix.lower())
    if kind is not None:
        return kind
    for beginning, found in _BY_HEAD:
        if head.startswith(beginning):
            return found
    if head.startswith(_ZIP) and b"data.pkl" in head:  # what `torch.save` writes
        return ArtifactKind.CHECKPOINT
    return ArtifactKind.OTHER
