"""Stores the output of a training whose launcher is gone; an unread terminal would block it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from traceml.store.folder import OUTPUT


def keep_output(terminal: int, folder: Path) -> None:
    """Copies what is printed there into the run's output until the terminal is closed."""
    with suppress(OSError):  # its other side is closed
        while content := os.read(terminal, 1 << 16):
            with (
                suppress(OSError),
                (folder / OUTPUT).open("ab") as file,
            ):  # a full disk stops nobody
                file.write(content)
