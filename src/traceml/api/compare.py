"""Compares runs, one by one or in groups, and writes what it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceml.api.choose import choose
from traceml.api.history import history_of
from traceml.compare.naming import default_base, group_names, run_names
from traceml.compare.pair import compare_groups
from traceml.compare.record import Comparison, to_json
from traceml.compare.terms import Terms
from traceml.model.errors import UsageError
from traceml.store.folder import write_atomically
from traceml.summaries.read import read_compared
from traceml.summaries.record import Summary
from traceml.text.comparison import comparison_text


def compare(
    a: str, b: str, logs_dir: Path, output: str | None, terms: Terms | None = None
) -> tuple[Comparison, Path]:
    """Compare two runs; the comparison, and the base name of the two files written."""
    return compare_sides([a], [b], logs_dir, output, terms)


def compare_sides(
    a: Sequence[str],
    b: Sequence[str],
    logs_dir: Path,
    output: str | None,
    terms: Terms | None = None,
) -> tuple[Comparison, Path]:
    """Compare two groups of runs, each said in the words of `choose`."""
    first, second = choose(a, logs_dir), choose(b, logs_dir)
    _refuse_overlap(first, second)
    names = _names(first, second, (a, b))
    left, right = [read_compared(path) for path in first], [read_compared(path) for path in second]
    terms = terms or Terms()
    if len(first) + len(second) == 2:
        terms = replace(terms, history=history_of([*first, *second], [*left, *right]))
    comparison = compare_groups(left, right, names, terms)
    comparison = comparison.with_code_stat(_code_stat(comparison, left[0], right[0]))
    base = Path(output or default_base(names))
    _write(base, ".json", to_json(comparison))
    _write(base, ".txt", comparison_text(comparison).encode())
    return comparison, base


def write_code_diff(a: Sequence[str], b: Sequence[str], logs_dir: Path, base: Path) -> bool:
    """Write the whole difference of the code as BASE.diff; whether the repository knows it."""
    from traceml.api.code_diff import code_diff

    paths = choose(a, logs_dir)[0], choose(b, logs_dir)[0]
    found = code_diff(read_compared(paths[0]), read_compared(paths[1]), Path.cwd())
    if found is None:
        return False
    _write(base, ".diff", found.encode(errors="replace"))
    return True


def _code_stat(comparison: Comparison, a: Summary, b: Summary) -> str | None:
    """Only where the commits are known to differ: asking git takes a process."""
    changed = comparison.lineage.differences.get("code", ()) if comparison.lineage else ()
    if not any(found.name == "commit" for found in changed):
        return None
    from traceml.api.code_diff import code_stat  # late: most comparisons start no process

    return code_stat(a, b, Path.cwd())


def _names(
    a: Sequence[Path], b: Sequence[Path], words: tuple[Sequence[str], Sequence[str]]
) -> tuple[str, str]:
    if len(a) == len(b) == 1:
        return run_names(a[0], b[0])
    return group_names(a, b, words)


def _refuse_overlap(a: Sequence[Path], b: Sequence[Path]) -> None:
    both = set(a) & set(b)
    if both and len(a) + len(b) > 2:
        raise UsageError(
            f"{sorted(both)[0].parent.name} is on both sides; a run can be compared with others "
            "only from one; say --a and --b so that no run is in both"
        )


def _write(base: Path, ending: str, content: bytes) -> None:
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(base.with_name(f"{base.name}{ending}"), content)
    except OSError as error:
        raise UsageError(
            f"the comparison cannot be written to {base}{ending}: {error.strerror}; "
            "choose another place with --output"
        ) from None
