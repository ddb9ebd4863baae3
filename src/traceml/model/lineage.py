"""Where a run comes from: its code, command, environment, machine and data.

The names are those of `lineage.json` and of the summary; `None` is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file that differs from the commit; a binary one has no lines to count."""

    path: str
    added: int | None = None
    removed: int | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What was not committed; the text itself is in the run folder."""

    sha256: str
    files: tuple[ChangedFile, ...] = ()
    """The first hundred."""
    file_count: int = 0
    added: int = 0
    removed: int = 0
    truncated: bool = False
    """The text was too long to keep all of it; the hash is that of what was kept."""
    masked: bool = False
    """Something that looked like a token was taken out of the text."""


@dataclass(frozen=True, slots=True)
class Code:
    """The git repository that holds the script."""

    repository: str | None = None
    remote: str | None = None
    commit: str | None = None
    branch: str | None = None
    """`None` for a commit checked out without one."""
    dirty: bool | None = None
    """Whether tracked files differ from the commit."""
    changes: Changes | None = None
    untracked: tuple[str, ...] | None = None
    """Source files that git does not know: named, not kept; the first hundred."""


@dataclass(frozen=True, slots=True)
class Command:
    """What was run, without secrets."""

    words: tuple[str, ...] = ()
    script: str | None = None
    arguments: tuple[str, ...] | None = None
    folder: str | None = None
    script_sha256: str | None = None
    """Of the script's content, whether git knows it or not."""
    script_path: str | None = None
    """Of the script's file, without symbolic links."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the script ran on."""

    python: str | None = None
    executable: str | None = None
    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the machine."""

    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine, and how much of it the job may use."""

    hostname: str | None = None
    system: str | None = None
    kernel: str | None = None
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    usable_cores: float | None = None
    """By affinity and by quota."""
    ram_bytes: int | None = None
    memory_limit_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    container: str | None = None
    """What kind of container this is; `None`: none that can be seen."""
    virtual: bool | None = None
    """Whether it is a virtual machine, whose neighbours on the physical one cannot be seen."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A file or folder, known by what can be seen without reading it all."""

    files: int
    size_bytes: int
    newest_unix_s: int | None = None
    sha256: str | None = None
    """Of a single small file's content."""
    complete: bool = True
    """Whether everything was looked at before the time for it was over."""


@dataclass(frozen=True, slots=True)
class Data:
    """Which version of the data."""

    dvc: Mapping[str, str] = field(default_factory=dict)
    """What DVC tracks in the repository: hash by path."""
    paths: Mapping[str, Fingerprint] = field(default_factory=dict)
    """What the arguments or the logged parameters name."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """All that is known about where a run comes from."""

    captured_unix_s: float | None = None
    code: Code | None = None
    command: Command | None = None
    environment: Environment | None = None
    packages: Mapping[str, str] | None = None
    """Version by name."""
    hardware: Hardware | None = None
    data: Data | None = None
    variables: Mapping[str, str] | None = None
