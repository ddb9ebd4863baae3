"""Which script a run ran: whether two runs are of one script, also where its file was moved or its
repository is checked out twice."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from traceml.model.lineage import Code, Command, Environment, Lineage

_PACKAGES = re.compile(r".*/(?:site|dist)-packages/(?=.)")
_NO_SCRIPT = frozenset({"ipykernel_launcher.py", "colab_kernel_launcher.py"})
"""What started a notebook: every notebook has the same one."""


@dataclass(frozen=True, slots=True)
class ScriptIdentity:
    """What is known of the file that a run ran."""

    path: str
    """Absolute, and without symbolic links where the run recorded that."""
    inner: str | None = None
    """The path within its git repository or its Python environment, of which there may be several
    copies."""
    repository: str | None = None
    """What the repository is called by its remote."""
    content: str | None = None
    """The hash of the content."""

    @property
    def name(self) -> str:
        """The path that stays the same in every checkout; the absolute one where there is none."""
        return self.inner or self.path


def script_of(lineage: Lineage | None) -> ScriptIdentity | None:
    """Returns which script a run ran; `None` where that is not known: there is no record of it, it
    is no file (`python -c`), or a notebook."""
    lineage = lineage or Lineage()
    command, code = lineage.command or Command(), lineage.code or Code()
    script, folder = command.script, command.folder or ""
    if not script or script.startswith("-") or not posixpath.join(folder, script).startswith("/"):
        return None
    named = posixpath.normpath(posixpath.join(folder, script))
    path = command.script_path or named
    if posixpath.basename(path) in _NO_SCRIPT:
        return None
    environment = lineage.environment or Environment()
    inner = _in_environment(named, environment) or _in_environment(path, environment)
    if inner is not None:
        return ScriptIdentity(path, inner, content=command.script_sha256)
    if code.repository and path.startswith(f"{code.repository.rstrip('/')}/"):
        inner = posixpath.relpath(path, code.repository)
        return ScriptIdentity(path, inner, _repository_name(code.remote), command.script_sha256)
    return ScriptIdentity(path, content=command.script_sha256)


def _in_environment(path: str, environment: Environment) -> str | None:
    """Returns the path of an installed script (`python -m package`, or a command beside the
    interpreter) within the Python environment; `None` for any other."""
    within = _PACKAGES.sub("", path, count=1)
    if within != path:
        return within
    folder, name = posixpath.split(path)
    beside = posixpath.dirname(environment.executable or "")
    return name if beside and folder == beside else None


def _repository_name(remote: str | None) -> str | None:
    """Returns the last part of a remote: that is the same for a fork and for other protocols."""
    return re.split(r"[/:]", (remote or "").rstrip("/").removesuffix(".git"))[-1] or None


def are_different(a: ScriptIdentity | None, b: ScriptIdentity | None) -> bool:
    """Returns whether two runs are shown to be of different scripts: by the place and the content,
    or by the name. What is not known shows nothing."""
    if a is None or b is None or a.path == b.path:
        return False
    if a.content is not None and b.content is not None:
        if a.content == b.content:
            return False  # moved, or copied
    elif posixpath.basename(a.path) == posixpath.basename(b.path):
        return False
    if a.inner is None or b.inner is None or a.inner != b.inner:
        return True
    return None not in (a.repository, b.repository) and a.repository != b.repository


def one_name_per_script(
    commands: Sequence[str | None],
    names: Sequence[str | None],
    contents: Sequence[str | None],
) -> list[str | None]:
    """Returns a name for the script of each run, newest first: the same for runs of one script.

    A script that was moved keeps the name that it has now. A run of which the script is not known
    is of the script that its command has in the other runs, unless they have several.
    """
    newest = dict[str, str]()
    of_content = dict[str, str]()
    for name, content in zip(names, contents, strict=True):
        if name is None:
            continue
        moved_to = None if content is None else of_content.get(content)
        newest.setdefault(name, moved_to or name)
        if content is not None:
            of_content.setdefault(content, newest[name])
    found = [None if name is None else newest[name] for name in names]
    by_command = defaultdict[str | None, set[str]](set)
    for command, script in zip(commands, found, strict=True):
        if script is not None:
            by_command[command].add(script)
    return [
        script or (next(iter(known)) if len(known := by_command[command]) == 1 else None)
        for command, script in zip(commands, found, strict=True)
    ]
