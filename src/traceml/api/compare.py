"""Compares two runs and writes what it found."""

from __future__ import annotations

from pathlib import Path

from traceml.compare.naming import default_base, run_names
from traceml.compare.pair import compare as compare_summaries
from traceml.compare.record import Comparison, to_json
from traceml.model.errors import UsageError
from traceml.store.folder import write_atomically
from traceml.summaries.read import locate, read_summary
from traceml.text.comparison import comparison_text


def compare(a: str, b: str, logs_dir: Path, output: str | None) -> tuple[Comparison, Path]:
    """Compare two runs; the comparison, and the base name of the two files written."""
    first, second = _in_its_folder(locate(a, logs_dir)), _in_its_folder(locate(b, logs_dir))
    names = run_names(first, second)
    comparison = compare_summaries(read_summary(first), read_summary(second), names)
    base = Path(output or default_base(names))
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(base.with_name(f"{base.name}.json"), to_json(comparison))
        write_atomically(base.with_name(f"{base.name}.txt"), comparison_text(comparison).encode())
    except OSError as error:
        raise UsageError(
            f"the comparison cannot be written to {base}.json: {error.strerror}; "
            "choose another place with --output"
        ) from None
    return comparison, base


def _in_its_folder(path: Path) -> Path:
    """The path with its folder's real name: a run may be called by it."""
    return path.parent.resolve() / path.name
