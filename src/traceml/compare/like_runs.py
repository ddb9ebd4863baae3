"""Which runs compute the same: what runs of a series have in common, and what may differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from traceml.compare.parameter_groups import is_label, is_repetition
from traceml.model.lineage import Code, Command, Hardware, Lineage
from traceml.model.run_values import RunValue
from traceml.summaries.record import Summary

SPEED_PARAMS = frozenset(
    {
        *("num_workers", "workers", "pin_memory", "prefetch_factor", "persistent_workers"),
        *("log_every", "log_interval", "log_freq", "print_freq", "save_every", "save_interval"),
        *("checkpoint_every", "eval_every", "eval_interval", "compile", "fused", "non_blocking"),
    }
)
"""Parameters that change how long a step takes and not what it computes: a remedy is often one."""


def series_command(command: RunValue | None, ignored: frozenset[str] = frozenset()) -> str | None:
    """Returns a command without what tells apart runs that are meant to be the same: the folder of
    the interpreter, seeds, names, and the options that are to be ignored."""
    if command is None:
        return None
    first, *words = str(command).split() or [""]
    kept = [first.rpartition("/")[2]]
    is_value = False  # of the option before, where that is ignored
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("--") or bool(equals)  # or `seed=3`, as Hydra has it
        if is_option and is_ignored(name.lstrip("-+"), ignored):
            is_value = not equals
        elif is_option or not is_value:
            kept.append(word)
            is_value = False
        else:
            is_value = False
    return " ".join(kept)


def is_ignored(name: str, ignored: frozenset[str] = frozenset()) -> bool:
    """Returns whether a parameter may differ within a series: seeds, names, and what is named."""
    return is_repetition(name) or is_label(name) or last_part(name) in ignored


def last_part(name: str) -> str:
    """Returns the name of a parameter without the groups that it is in."""
    return name.rpartition(".")[2].replace("-", "_").lower()


def work_identity(summary: Summary) -> tuple[object, ...] | None:
    """Returns what runs have in common that compute the same on the same machine, whatever their
    settings for speed; `None` where the command is not known."""
    lineage = summary.lineage or Lineage()
    words, machine = (lineage.command or Command()).words, lineage.hardware or Hardware()
    if not words:
        return None
    params = sorted(
        (name, repr(value))
        for name, value in _flat(summary.params)
        if not is_ignored(name, SPEED_PARAMS)
    )
    gpus = tuple(gpu.name for gpu in machine.gpus)
    command = series_command(" ".join(words), SPEED_PARAMS)
    return (command, *params, machine.hostname, gpus, summary.meta.world_size)


def version_identity(summary: Summary) -> tuple[object, ...]:
    """Returns what runs of one version have in common: the code, and the command without seeds."""
    lineage = summary.lineage or Lineage()
    code, command = lineage.code or Code(), lineage.command or Command()
    changes = code.changes.sha256 if code.changes else None
    return code.commit, changes, code.dirty or None, series_command(" ".join(command.words))


def _flat(params: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
