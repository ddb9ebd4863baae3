"""Compares runs, one by one or in groups, and writes the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from traceml.api.earlier_runs import spread_of_earlier_runs
from traceml.api.find_runs import choose_summaries
from traceml.compare.artifact_changes import compare_artifacts
from traceml.compare.comparison_names import (
    default_base,
    group_names,
    many_base,
    many_names,
    run_names,
)
from traceml.compare.many_record import ManyComparison
from traceml.compare.many_runs import Candidate, Curves, compare_many, quality_metric
from traceml.compare.pair import compare_groups
from traceml.compare.paired_samples import compare_samples
from traceml.compare.record import Comparison, to_json
from traceml.compare.sample_record import SampleComparison
from traceml.compare.sides import Sides
from traceml.compare.terms import Terms
from traceml.model.errors import TraceMLError, UsageError
from traceml.store.folder import write_atomically
from traceml.store.logged_samples import read_logged_samples
from traceml.summaries.read import read_compared
from traceml.summaries.record import Summary
from traceml.text.comparison import comparison_text
from traceml.text.many_runs import many_text

_Runs: TypeAlias = Iterable[tuple[Summary, Path]]
"""The runs of a side, and the files they were read from."""


def compare(
    a: str, b: str, logs_dir: Path, output: str | None, terms: Terms | None = None
) -> tuple[Comparison, Path]:
    """Compares two runs; returns the comparison, and the base name of the two files written."""
    comparison, base = compare_sides([a], [b], logs_dir, output, terms)
    write_comparison(comparison, base)
    return comparison, base


def compare_sides(
    a: Sequence[str],
    b: Sequence[str],
    logs_dir: Path,
    output: str | None,
    terms: Terms | None = None,
    all_artifacts: bool = False,
) -> tuple[Comparison, Path]:
    """Compares two groups of runs, each given in the words of `choose_summaries`; returns the
    comparison, and the base name of the files that `write_comparison` is to write.

    `all_artifacts` says whether logged files of any size are read, and all that differs is listed.
    """
    refuse_folder(output)
    comparison, names = find_changes(a, b, logs_dir, terms)
    sides = choose_summaries(a, logs_dir), choose_summaries(b, logs_dir)
    base = Path(output or default_base(names, list(map(many_names, sides))))
    return _with_artifacts(comparison, sides, base, all_artifacts), base


def write_comparison(comparison: Comparison, base: Path, all_artifacts: bool = False) -> None:
    """Writes BASE.json and BASE.txt; raises UsageError where that is not possible."""
    write_files(base, to_json(comparison), comparison_text(comparison, shows_all=all_artifacts))


def compare_runs(
    runs: Sequence[str],
    logs_dir: Path,
    output: str | None,
    terms: Terms | None = None,
    target: float | None = None,
    ignored: Sequence[str] = (),
) -> tuple[ManyComparison, Path]:
    """Compares three or more runs, the first being the baseline; returns the result, and the base
    name of the files that `write_many` is to write.

    `ignored` are parameters in which runs may differ and still be alike.
    """
    refuse_folder(output)
    found, names = find_differences(runs, logs_dir, terms, target, ignored)
    return found, Path(output or many_base(names))


def write_many(found: ManyComparison, base: Path) -> None:
    """Writes the comparison of three or more runs, and beside it that of the baseline with each
    other one (`BASE_1`, `BASE_2`, …); raises UsageError where that is not possible."""
    write_files(base, to_json(found), many_text(found))
    for place, comparison in enumerate(found.comparisons, start=1):
        write_comparison(comparison, base.with_name(f"{base.name}_{place}"))


def paths_by_name(runs: Sequence[str], logs_dir: Path) -> dict[str, str]:
    """Returns the files of three or more runs by the names that their comparison gives them."""
    paths = choose_summaries(runs, logs_dir)
    return dict(zip(many_names(paths), map(str, paths), strict=True))


def find_differences(
    runs: Sequence[str],
    logs_dir: Path,
    terms: Terms | None = None,
    target: float | None = None,
    ignored: Sequence[str] = (),
) -> tuple[ManyComparison, list[str]]:
    """Returns three or more runs side by side, and their names."""
    found = find_by_words(runs, logs_dir)
    refuse_single(found, runs)
    compared = compare_found(found, logs_dir, terms, target, ignored)
    return compared, [run.name for run in found]


def refuse_single(found: Sequence[FoundRun], words: Sequence[str]) -> None:
    """Raises UsageError where all words name the same run."""
    if len(found) < 2:
        raise UsageError(
            f"there is nothing to compare with: {', '.join(words)} are all the same run; "
            "name two or more"
        )


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run to compare: its name, its summary, and where that is."""

    name: str
    summary: Summary
    path: Path
    """Its `final_summary.json`; of a run that is not over, where that will be."""
    is_over: bool = True
    """Whether the file is there; `False` while the summary is that of the steps so far."""


def compare_found(
    runs: Sequence[FoundRun],
    logs_dir: Path,
    terms: Terms | None = None,
    target: float | None = None,
    ignored: Sequence[str] = (),
    follow_links: bool = True,
) -> ManyComparison:
    """Returns two or more runs side by side, the first being the baseline.

    `ignored` are parameters in which runs may differ and still be alike.
    """
    terms = terms or Terms()
    quality = quality_metric(Sides(tuple(run.summary for run in runs), ()), terms)
    candidates = [Candidate(run.name, run.summary, _curves(run.path, quality)) for run in runs]

    def compare_places(a: tuple[int, ...], b: tuple[int, ...]) -> Comparison:
        left, right = ([runs[place] for place in side] for side in (a, b))
        return compare_found_sides(left, right, logs_dir, terms, follow_links)

    return compare_many(candidates, terms, target, compare_places, ignored)


def compare_found_sides(
    a: Sequence[FoundRun],
    b: Sequence[FoundRun],
    logs_dir: Path,
    terms: Terms | None = None,
    follow_links: bool = True,
) -> Comparison:
    """Returns the comparison of two groups of runs; some of them may not be over."""
    if all(run.is_over for run in (*a, *b)):
        left, right = ([str(run.path) for run in side] for side in (a, b))
        return find_changes(left, right, logs_dir, terms, follow_links)[0]
    names = _names([run.path for run in a], [run.path for run in b], ((), ()))
    before, after = ([run.summary for run in side] for side in (a, b))
    return compare_groups(before, after, names, terms)


def find_by_words(words: Sequence[str], logs_dir: Path) -> list[FoundRun]:
    """Returns the runs that are over and that the words select (`choose_summaries`)."""
    paths = choose_summaries(words, logs_dir)
    return [
        FoundRun(name, read_compared(path, follow_links=True), path)
        for name, path in zip(many_names(paths), paths, strict=True)
    ]


def _curves(path: Path, metric: str | None) -> Curves:
    """Returns the history of a metric; empty where there are no records beside the summary."""
    if metric is None:
        return {}
    # Late: reading records takes numpy, which two summaries are compared without.
    from traceml.store.metric_curves import read_curves

    try:
        return read_curves(path.parent, [metric])
    except (TraceMLError, OSError):
        return {}


def find_changes(
    a: Sequence[str],
    b: Sequence[str],
    logs_dir: Path,
    terms: Terms | None = None,
    follow_links: bool = True,
) -> tuple[Comparison, tuple[str, str]]:
    """Returns the comparison of two groups of runs, and the names of the groups.

    `follow_links` says whether a summary may be a symbolic link; a server does not allow it.
    """
    first, second = choose_summaries(a, logs_dir), choose_summaries(b, logs_dir)
    _refuse_overlap(first, second)
    names = _names(first, second, (a, b))
    left, right = ([read_compared(path, follow_links) for path in side] for side in (first, second))
    if len(first) + len(second) > 2:
        _refuse_copies([*zip(first, left, strict=True), *zip(second, right, strict=True)])
    terms = terms or Terms()
    if len(first) + len(second) == 2:
        terms = replace(terms, history=spread_of_earlier_runs([*first, *second], [*left, *right]))
    comparison = compare_groups(left, right, names, terms)
    stat = _code_stat(comparison, zip(left, first, strict=True), zip(right, second, strict=True))
    comparison = comparison.with_code_stat(stat)
    if len(first) == len(second) == 1:
        comparison = comparison.with_samples(_samples(first[0], second[0], terms))
    return comparison, names


def _samples(a: Path, b: Path, terms: Terms) -> dict[str, SampleComparison]:
    """Returns the test sets that two runs logged samples of, compared example by example."""
    left, right = (read_logged_samples(path.parent) for path in (a, b))
    found = {
        name: compare_samples(left[name], right[name], terms) for name in left if name in right
    }
    return {name: each for name, each in found.items() if each.paired and each.scores}


def _with_artifacts(
    comparison: Comparison, sides: tuple[list[Path], list[Path]], base: Path, reads_all: bool
) -> Comparison:
    """Adds the logged files that differ, of one run on each side."""
    first, second = sides
    if len(first) != 1 or len(second) != 1:
        return comparison
    lhs, rhs = read_compared(first[0], follow_links=True), read_compared(second[0], True)
    if not lhs.artifacts and not rhs.artifacts:
        return comparison
    # Late: most comparisons have no files to read.
    from traceml.api.artifact_contents import ArtifactContents, pictures_in

    keep = pictures_in(base.with_name(f"{base.name}.files"))
    contents = ArtifactContents(first[0].parent, second[0].parent, keep, reads_all)
    changes = compare_artifacts(lhs.artifacts, rhs.artifacts, contents.compare)
    return comparison.with_artifacts(changes)


def refuse_folder(output: str | None) -> None:
    """Raises UsageError where the base name of the files is a folder: `.`, `..`, `/`."""
    if output and Path(output).name in ("", ".."):
        raise UsageError(f"--output {output} names no file; give a base such as compare/a_vs_b")


def write_code_diff(a: Sequence[str], b: Sequence[str], logs_dir: Path, base: Path) -> bool | None:
    """Writes the whole difference of the code as BASE.diff, if there is one.

    Returns whether there is; `None` where it is not known.
    """
    from traceml.api.code_diff import Version, code_diff, differing

    sides = [
        [
            Version.of(read_compared(path, follow_links=True), path)
            for path in choose_summaries(words, logs_dir)
        ]
        for words in (a, b)
    ]
    found = code_diff(*differing(*sides), Path.cwd())
    if found:
        _write(base, ".diff", found.encode(errors="replace"))
    return None if found is None else bool(found)


def _code_stat(comparison: Comparison, a: _Runs, b: _Runs) -> str | None:
    """Adds the list of changed files; only where the code differs, because git is a process."""
    changed = comparison.lineage.differences.get("code", ()) if comparison.lineage else ()
    if not any(found.name in ("commit", "changes") for found in changed):
        return None
    # Late: most comparisons start no process.
    from traceml.api.code_diff import Version, code_stat, differing

    sides = [[Version.of(summary, path) for summary, path in side] for side in (a, b)]
    return code_stat(*differing(*sides), Path.cwd()) or None


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


def _refuse_copies(runs: Sequence[tuple[Path, Summary]]) -> None:
    """Raises UsageError where a run's folder is the copy of another's: it repeats nothing, and
    would make any difference look more certain than it is."""
    for place, (path, summary) in enumerate(runs):
        for other, earlier in runs[:place]:
            if summary.duration_s is not None and summary == earlier:
                raise UsageError(
                    f"{path.parent.name} is a copy of {other.parent.name}: both hold the same "
                    "summary, which is one run and not two; name one of them"
                )


def write_files(base: Path, document: bytes, text: str) -> None:
    """Writes BASE.json and BASE.txt; raises UsageError where that is not possible."""
    _write(base, ".json", document)
    _write(base, ".txt", text.encode())


def _write(base: Path, ending: str, content: bytes) -> None:
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(base.with_name(f"{base.name}{ending}"), content)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        found = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"the comparison cannot be written to {base}{ending}: {found}; "
            "choose another place with --output"
        ) from None
