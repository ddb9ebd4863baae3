"""Makes small git repositories with a history."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as a user of no settings; what it answers."""
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def make_repository(folder: Path, **files: str) -> str:
    """A repository with one commit; `train="…"` is the content of train.py. Its commit."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    return commit(folder, **files)


def commit(folder: Path, **files: str) -> str:
    """Write files and commit everything that is there; the new commit."""
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a change")
    return git(folder, "rev-parse", "HEAD")
