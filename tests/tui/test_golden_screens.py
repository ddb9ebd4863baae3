"""Whole screens, kept: whoever changes one sees what users will see.

They are kept as text: a picture holds the same and, besides, whatever a version of textual writes
into its frame. `python tests/tui/test_golden_screens.py` writes them again.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tui_pilot import seen, shown

GOLDEN = Path(__file__).parent / "__snapshots__"
SCREENS = {
    "80x24": (80, 24),
    "120x40": (120, 40),
    "160x50": (160, 50),
    "200x60": (200, 60),
    "160x50-without-colours": (160, 50),
}


async def drawn(size: tuple[int, int]) -> str:
    async with shown(size=size) as (app, _):
        return seen(app)


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if name.endswith("without-colours"):
        monkeypatch.setenv("NO_COLOR", "1")
    expected = (GOLDEN / f"{name}.txt").read_text()
    assert asyncio.run(drawn(SCREENS[name])) == expected


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, size in SCREENS.items():
        os.environ.pop("NO_COLOR", None)
        if name.endswith("without-colours"):
            os.environ["NO_COLOR"] = "1"
        (GOLDEN / f"{name}.txt").write_text(asyncio.run(drawn(size)))
