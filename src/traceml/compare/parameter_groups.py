"""Groups of runs by their parameters: what differs, which runs repeat each other, and which differ
in one parameter alone.

Everything here is about a list of parameter sets, one per run, and answers with positions in that
list: the runs may be summaries, rows of an index or anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from traceml.compare.lineage import Shown, flat_params, options_in
from traceml.compare.selection import alike
from traceml.compare.sides import PAIRING_PARAMS
from traceml.model.errors import UsageError, did_you_mean
from traceml.summaries.record import Summary

Params: TypeAlias = Mapping[str, Shown]
"""A run's parameters by dotted name."""

CODE = "code"
"""The parameter that stands for the version of the script and its repository."""
LABELS = frozenset(
    {
        *("name", "id", "uuid", "run_name", "run_id", "exp_name", "experiment_name", "experiment"),
        *(
            "output_dir",
            "out_dir",
            "save_dir",
            "log_dir",
            "logging_dir",
            "checkpoint_dir",
            "logdir",
        ),
        *("timestamp", "date", "time", "hostname", "host", "pid", "port", "master_port"),
    }
)
"""Parameters that name a run or a place and change nothing about it, by the last part of their
name."""
_SHORT = 12


def params_of(runs: Sequence[Summary]) -> list[dict[str, Shown]]:
    """Returns what each run was run with: its logged parameters, the arguments of its command line
    that no logged parameter holds, and the version of its code."""
    logged = [dict(flat_params(run.params)) for run in runs]
    arguments = [_arguments(run) for run in runs]
    known = {_last_part(name) for params in logged for name in params}
    added = [
        name
        for name in dict.fromkeys(name for each in arguments for name in each)
        if _last_part(name) not in known and not _is_logged(name, arguments, logged)
    ]
    found = []
    for run, params, given in zip(runs, logged, arguments, strict=True):
        code = {CODE: known_code} if (known_code := _code(run)) is not None else {}
        found.append({**params, **{name: given[name] for name in added if name in given}, **code})
    return found


def _arguments(run: Summary) -> dict[str, str | bool]:
    command = None if run.lineage is None else run.lineage.command
    options = options_in((command and command.arguments) or ())
    return {name.lstrip("-").replace("-", "_"): value for name, value in options.items()}


def _is_logged(
    argument: str,
    arguments: Sequence[Mapping[str, str | bool]],
    logged: Sequence[Mapping[str, Shown]],
) -> bool:
    """Returns whether a parameter under another name holds the argument in every run."""
    given = [
        (each[argument], params)
        for each, params in zip(arguments, logged, strict=True)
        if argument in each
    ]
    names = set.intersection(*(set(params) for _, params in given))
    return any(all(alike(params[name], str(value)) for value, params in given) for name in names)


def _code(run: Summary) -> str | None:
    if run.lineage is None:
        return None
    code, command = run.lineage.code, run.lineage.command
    known = [code.commit if code else None, code.changes.sha256 if code and code.changes else None]
    known.append(command.script_sha256 if command else None)
    return "+".join(part[:_SHORT] for part in known if part) or None


ALL_BUT = "all-but:"
"""`--group-by all-but:params.seed`: by all parameters except these."""


def is_repetition(name: str) -> bool:
    """Returns whether a parameter only repeats a run: a seed, a fold."""
    return _last_part(name) in PAIRING_PARAMS


def is_label(name: str) -> bool:
    """Returns whether a parameter names a run and changes nothing about it."""
    return _last_part(name) in LABELS


def _last_part(name: str) -> str:
    return name.rpartition(".")[2].replace("-", "_").lower()


def varying(runs: Sequence[Params]) -> list[str]:
    """Returns the parameters that are not the same in all runs, in the order of their first run."""
    names = dict.fromkeys(name for params in runs for name in params)
    return [name for name in names if len({_key(params, name) for params in runs}) > 1]


def _key(params: Params, name: str) -> Hashable:
    """Returns a value as a key: 1 and 1.0 are the same, 1 and True are not."""
    value = params.get(name)
    return (type(value) is bool, value)


def group_by(runs: Sequence[Params], names: Collection[str]) -> list[tuple[int, ...]]:
    """Returns the runs that have the same values of these parameters, in the order of their first
    run."""
    groups: dict[Hashable, list[int]] = {}
    for place, params in enumerate(runs):
        groups.setdefault(tuple(_key(params, name) for name in names), []).append(place)
    return [tuple(places) for places in groups.values()]


def repetitions(runs: Sequence[Params]) -> list[tuple[int, ...]]:
    """Returns groups of runs that differ in nothing but seed and fold.

    A run whose seed another one of its group has, or that has none, is alone: nothing shows that it
    was meant as a repetition.
    """
    compared = [name for name in varying(runs) if not is_repetition(name) and not is_label(name)]
    repeated = [name for name in varying(runs) if is_repetition(name)]
    found: list[tuple[int, ...]] = []
    for group in group_by(runs, compared):
        seeds = {tuple(_key(runs[place], name) for name in repeated) for place in group}
        is_whole = bool(repeated) and len(seeds) == len(group)
        found += [group] if is_whole else [(place,) for place in group]
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Varied:
    """Runs that differ in one parameter alone (besides seed and fold)."""

    name: str
    runs: dict[Shown, tuple[int, ...]]
    """By the parameter's value: the runs that have it."""


def one_at_a_time(runs: Sequence[Params]) -> Iterator[Varied]:
    """Yields, for each parameter, the groups of runs in which it alone differs."""
    compared = [name for name in varying(runs) if not is_repetition(name) and not is_label(name)]
    for name in compared:
        others = [other for other in compared if other != name]
        for group in group_by(runs, others):
            by_value = _by_value(runs, group, name)
            if len(by_value) > 1:
                yield Varied(name, by_value)


def _by_value(
    runs: Sequence[Params], group: Collection[int], name: str
) -> dict[Shown, tuple[int, ...]]:
    found: dict[Shown, tuple[int, ...]] = {}
    for place in group:
        value = runs[place].get(name)
        found[value] = (*found.get(value, ()), place)
    return found


def in_value_order(values: Collection[Shown], reference: Shown) -> list[Shown]:
    """Returns values of a parameter in an order that does not depend on the runs: the reference,
    then numbers by size, then the others by their text."""

    def order(value: Shown) -> tuple[bool, bool, float, str]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        size = float(value) if is_number and value is not None else 0.0
        return (value != reference, not is_number, size, str(value))

    return sorted(values, key=order)


def without(runs: Sequence[Params], names: Collection[str]) -> list[dict[str, Shown]]:
    """Returns the parameters of each run without those of these names."""
    return [{name: value for name, value in params.items() if name not in names} for params in runs]


def refuse_unknown(ignored: Collection[str], runs: Sequence[Params]) -> None:
    """Raises UsageError where a parameter that is to be ignored is none of any run."""
    known = {CODE, *(name for params in runs for name in params)}
    for name in ignored:
        if name not in known:
            raise UsageError(f"no run has the parameter {name!r}{did_you_mean(name, known)}")


def seed_of(params: Params) -> Hashable:
    """Returns what distinguishes a run from its repetitions: its seed and its fold."""
    return tuple(
        sorted((name, str(value)) for name, value in params.items() if is_repetition(name))
    )
