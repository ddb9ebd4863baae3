"""A measured figure, the machine it was measured on, and both as a table."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    what: str
    target: str
    measured: float
    unit: str
    low: float | None = None
    high: float | None = None
    """What the spread is between these two is said by `spread`."""
    spread: str = ""
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """For the JSON file alone."""


def machine() -> str:
    """The machine and its software, on one line."""
    parts = [
        time.strftime("%Y-%m-%d %H:%M"),
        _cpu(),
        f"{os.cpu_count()} cores",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        *_torch(),
        f"load {os.getloadavg()[0]:.1f}",
    ]
    return " · ".join(parts)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _torch() -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        words = [f"torch {version('torch')}"]
    except PackageNotFoundError:
        return ["no torch"]
    torch: Any = sys.modules.get("torch")  # importing it here would cost seconds
    if torch is not None and torch.cuda.is_available():
        words.append(torch.cuda.get_device_name())
    return words


def table(figures: Sequence[Figure]) -> str:
    """The figures as lines of a markdown table, aligned for a terminal."""
    rows = [("what", "target", "measured", "spread", "")]
    rows += [(f.what, f.target, _quantity(f), _spread(f), f.note) for f in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows]  # noqa: B905
    lines.insert(1, "-|-".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" if line[0] != "-" else f"|-{line}-|" for line in lines)


def _quantity(figure: Figure) -> str:
    return f"{_number(figure.measured)} {figure.unit}"


def _spread(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return figure.spread
    return f"{_number(figure.low)} … {_number(figure.high)} {figure.spread}".rstrip()


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
