"""Compares two runs and writes what it found."""

from __future__ import annotations

from pathlib import Path

from traceml.compare.naming import default_base, run_names
from traceml.compare.pair import compare as compare_summaries
from traceml.compare.record import Comparison, to_json
from traceml.model.errors import UsageError
from traceml.store.folder import write_atomically
from traceml.summary.read import locate, read_summary
from traceml.text.comparison import comparison_text


def compare(a: str, b: str, logs_dir: Path, output: str | None) -> tuple[Comparison, Path]:
    """Compare two runs; the comparison, and the base name of the two files written."""
    paths = locate(a, logs_dir), locate(b, logs_dir)
    names = run_names(*paths)
    comparison = compare_summaries(*map(read_summary, paths), names)
    base = Path(output) if output else default_base(names)
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
