"""Takes what a training prints whose launcher is gone: a terminal nobody reads would stop it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from traceml.store.folder import OUTPUT


def keep_output(terminal: int, folder: Path) -> None:
    """Copy what is printed there into the run's output until nobody has it open any more."""
    with suppress(OSError):  # its other side is closed
        while content := os.read(terminal, 1 << 16):
            with (
                suppress(OSError),
                (folder / OUTPUT).open("ab") as file,
            ):  # a full disk stops nobody
                file.write(content)
