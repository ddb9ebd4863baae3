"""Out of memory: an allocation did not fit.

*Meaning.* As `EXCEPTION`, where the error says that memory ran out: CUDA's, the CPU allocator's,
`MemoryError`, numpy's.

*Evidence.* What torch's message says (`tried_bytes`, `free_bytes`, `total_bytes`,
`allocated_bytes`, `reserved_bytes`), what the model held (`parameter_bytes`, `gradient_bytes`,
`optimizer_bytes`, and `activation_bytes`: what tensors occupied besides these),
`allocated_before_bytes` (the peaks of the last steps), `samples_per_step`, `suggested_batch`,
`device` (`gpu`, `host`), and what `EXCEPTION` has. With the deep profile: `layers` (the layers that
hold the most, in bytes), `saved_bytes` (kept for backward by a whole step), `checkpoint_block` and
`checkpoint_saves_bytes` (the blocks whose activation checkpointing saves the most, and how much),
`snapshot` (the file with the allocator's snapshot, where `--oom-snapshot` asked for it).

*Thresholds.* 10 % of the device reserved and unused: the allocator is a part of the matter. Peaks
that grew by 5 % over the last 32 steps: something is kept from step to step. A part of 25 % is
worth making smaller.

*What to do.* The action has this run's numbers: a batch that would have fitted (at most half; the
device filled to 92 %, activations in proportion to the batch; with the deep profile the measured
activations decide, and it may be more than half), `expandable_segments` where much
was reserved and unused, bf16 or activation checkpointing by the share of activations, sharding
where the optimizer's state is large. Where the deep profile saw a module hold more in every step,
by 25 % of the memory in all, the action is about that module instead.
"""

from __future__ import annotations

import math

from traceml.diagnose import settings_advice
from traceml.diagnose.failure_words import (
    evidence_of,
    failed_ranks,
    failure_place,
    phase_of,
    ranks_of,
)
from traceml.diagnose.leaking_modules import growth_remedy, growth_words, module_that_filled
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.facts.layer_growth import LayerGrowth
from traceml.facts.layer_memory import FULL, LayerGroup, LayerMemory
from traceml.facts.stability import Failure
from traceml.model.evidence import Evidence, Piece, as_number, as_words, in_bytes
from traceml.model.failure import MemoryAtFailure
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, memory, percent

KIND = Kind.OUT_OF_MEMORY

FRAGMENTED = 0.10  # of the device, reserved and in nobody's use: then the allocator is the matter
GROWTH = 1.05  # from the first to the last of the steps before: below this the curve is flat
MAX_LAYERS = 3  # that a sentence names
MAX_EVIDENCE = 10
LARGE = 0.25  # of what is held: to make a smaller part smaller would not help much


def check(facts: Facts) -> Finding | None:
    """Fires when memory, of a GPU or of the host, is what ended the run."""
    failure = facts.stability.failure
    if failure is None or failure.kind is not KIND or failure.report is None:
        return None
    held = failure.report.memory or MemoryAtFailure()
    kind = "host memory" if held.is_host else "GPU memory"
    claim = f"{failed_ranks(failure)} ran out of {kind}{failure_place(failure)}{_asked(held)}."
    leak = _leak(facts, failure, held)
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.CRITICAL,
        claim=" ".join(
            filter(
                None,
                (
                    claim,
                    _held(held),
                    _by_layer(facts.layers.memory),
                    _curve(failure.allocated_bytes),
                    "" if leak is None else growth_words(leak),
                ),
            )
        ),
        action=_action(facts, failure, held) if leak is None else growth_remedy(leak),
        phase=phase_of(failure.report),
        ranks=ranks_of(failure),
        evidence=Evidence(*evidence_of(failure), *_evidence(facts, failure, held)),
    )


def _leak(facts: Facts, failure: Failure, held: MemoryAtFailure) -> LayerGrowth | None:
    """Returns the module that filled much of the memory step by step; `None` where none did, or
    nobody looked: then no batch would have fitted for long."""
    rank = failure.rank
    if rank is None:
        return None
    resident = (each.memory.peak_rss_bytes for each in facts.ranks if each.rank.rank == rank)
    held_bytes = next(resident, None) if held.is_host else held.allocated_bytes
    return module_that_filled(facts, rank, held_bytes, LARGE)


def _asked(held: MemoryAtFailure) -> str:
    if held.tried_bytes is None:
        return ""
    free = "" if held.free_bytes is None else f" with {memory(held.free_bytes)} free"
    total = "" if held.total_bytes is None else f" of {memory(held.total_bytes)}"
    return f": it asked for {memory(held.tried_bytes)}{free}{total}"


def _held(held: MemoryAtFailure) -> str:
    """Returns the largest consumers of memory in words."""
    parts = {
        "activations and the rest": None if held.is_host else held.activation_bytes,
        "parameters": held.parameter_bytes,
        "gradients": held.gradient_bytes,
        "optimizer state": held.optimizer_bytes,
    }
    known = {name: size for name, size in parts.items() if size}
    if not known:
        return ""
    ordered = sorted(known.items(), key=lambda part: -part[1])
    return "Held: " + ", ".join(f"{memory(size)} {name}" for name, size in ordered) + "."


def _by_layer(found: LayerMemory | None) -> str:
    """Returns the layers that hold the most, in words; empty without the deep profile."""
    if found is None or not found.groups:
        return ""
    said = [
        f"{group.name or 'the model itself'}{f' (×{group.layers})' if group.layers > 1 else ''} "
        f"{memory(group.total_bytes)}{_saved_part(group)}"
        for group in found.groups[:MAX_LAYERS]
    ]
    return f"By layer: {', '.join(said)}."


def _saved_part(group: LayerGroup) -> str:
    saved = group.held_bytes.get("saved")
    return f" ({memory(saved)} of it for backward)" if saved else ""


def _curve(peaks: tuple[int, ...]) -> str:
    if len(peaks) < 2:
        return ""
    if peaks[-1] < GROWTH * peaks[0]:
        return f"The steps before peaked at {memory(max(peaks))}, and did not grow."
    return (
        f"The peak had grown from {memory(peaks[0])} to {memory(peaks[-1])} over the "
        f"{count(len(peaks), 'step')} before."
    )


def _action(facts: Facts, failure: Failure, held: MemoryAtFailure) -> str:
    settings = facts.settings
    if held.is_host and not _is_in_model(failure):
        ways = ("stream the dataset", settings_advice.fewer_workers(facts), "ask for more memory")
        return (
            f"Load less at once: {settings_advice.listed(ways, 'or')}; "
            "the amount asked for shows whether a size was computed wrongly."
        )
    said = [
        _growth(failure.allocated_bytes),
        _size(facts, failure, held),
        _checkpointing(facts),
    ]
    if held.total_bytes and _unused(held) >= FRAGMENTED * held.total_bytes:
        said.append(
            f"{memory(_unused(held))} are reserved and unused: set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        )
    whole = held.allocated_bytes or math.inf
    if (held.activation_bytes or 0) > LARGE * whole:
        share = percent((held.activation_bytes or 0) / whole)
        less = (
            settings_advice.lower_precision(settings, tf32=False),
            settings_advice.recomputing(settings),
        )
        smaller = (
            settings_advice.listed(less, "or") or "shorter sequences, or layers split over GPUs"
        )
        said.append(f"Activations are {share} of it: {smaller}.")
    if (held.optimizer_bytes or 0) > LARGE * whole:
        shard = "" if settings_advice.is_sharded(settings) else "shard it (FSDP2)"
        lighter = settings_advice.listed((shard, "use an 8-bit optimizer"), "or")
        said.append(f"Optimizer state is large: {lighter}.")
    report = failure.report
    if report is not None and report.snapshot is not None:
        said.append(f"{report.snapshot} in the run folder shows it at pytorch.org/memory_viz.")
    return " ".join(filter(None, said))


def _is_in_model(failure: Failure) -> bool:
    """Returns whether host memory ran out in a model that trains on the host."""
    report = failure.report
    return report is not None and report.module is not None


def _checkpointing(facts: Facts) -> str:
    """Returns what activation checkpointing of the blocks that repeat would save; empty where that
    is not known, or it is on already."""
    found, settings = facts.layers.memory, facts.settings
    if found is None or found.block is None or settings.checkpoints_activations:
        return ""
    block = found.block
    if block.less_bytes < LARGE * (found.saved_bytes or math.inf):
        return ""
    return (
        f"Activation checkpointing of {block.name} (×{block.layers}) saves up to "
        f"{memory(block.less_bytes)} of {memory(found.saved_bytes)} kept for backward."
    )


def _growth(peaks: tuple[int, ...]) -> str:
    if len(peaks) < 2 or peaks[-1] < GROWTH * peaks[0]:
        return ""
    return "Find what keeps tensors from step to step (append(loss) without detach())."


def _size(facts: Facts, failure: Failure, held: MemoryAtFailure) -> str:
    """Returns what to make smaller, and by how much."""
    settings = facts.settings
    too_large = ""
    if held.tried_bytes and held.total_bytes and held.tried_bytes > held.total_bytes:
        too_large = "One tensor is more than the whole device: see whether its shape is meant. "
    batch = _batch(facts, failure, held)
    if batch is not None:
        return f"{too_large}Try a batch of {batch} (it was {failure.samples})."
    if failure.samples == 1:
        shard = "" if settings_advice.is_sharded(settings) else " or shard the model (FSDP2)"
        return f"{too_large}The batch is 1 already: shorten the sequence{shard}."
    return f"{too_large}Try half the batch, with twice the accumulation steps."


def _unused(held: MemoryAtFailure) -> int:
    if held.reserved_bytes is None or held.allocated_bytes is None:
        return 0
    return held.reserved_bytes - held.allocated_bytes


def _batch(facts: Facts, failure: Failure, held: MemoryAtFailure) -> int | None:
    """Returns the largest batch that would have fitted, if activations grow with it; at most
    half, unless the activations of layers were measured."""
    if failure.samples is None or failure.samples < 2:
        return None
    measured = _measured_batch(facts, failure, held)
    if measured is not None:
        return measured
    half = failure.samples // 2
    activations, total = held.activation_bytes, held.total_bytes
    if not activations or total is None or held.allocated_bytes is None:
        return half
    fixed = held.allocated_bytes - activations
    needed = activations + (held.tried_bytes or 0)
    fits = math.floor(failure.samples * (FULL * total - fixed) / needed)
    return max(1, min(half, fits))


def _measured_batch(facts: Facts, failure: Failure, held: MemoryAtFailure) -> int | None:
    """Returns the largest batch by the activations that the deep profile counted; `None` where they
    do not explain the failure."""
    found, samples = facts.layers.memory, failure.samples
    if found is None or samples is None or held.total_bytes is None:
        return None
    reached = [*failure.allocated_bytes]
    if held.allocated_bytes is not None:
        reached.append(held.allocated_bytes + (held.tried_bytes or 0))
    fits = found.fitting_batch(samples, held.total_bytes, max(reached, default=None))
    return fits if fits is not None and 1 <= fits < samples else None


def _layers_in_words(found: LayerMemory | None) -> str | None:
    if found is None:
        return None
    return ", ".join(f"{each.name}: {each.total_bytes}" for each in found.groups[:MAX_EVIDENCE])


def _evidence(facts: Facts, failure: Failure, held: MemoryAtFailure) -> tuple[Piece, ...]:
    peaks, found = failure.allocated_bytes, facts.layers.memory
    block = None if found is None else found.block
    return (
        as_words("device", "host" if held.is_host else "gpu"),
        in_bytes("tried_bytes", held.tried_bytes),
        in_bytes("free_bytes", held.free_bytes),
        in_bytes("total_bytes", held.total_bytes),
        in_bytes("allocated_bytes", held.allocated_bytes),
        in_bytes("reserved_bytes", held.reserved_bytes),
        in_bytes("parameter_bytes", held.parameter_bytes),
        in_bytes("gradient_bytes", held.gradient_bytes),
        in_bytes("optimizer_bytes", held.optimizer_bytes),
        in_bytes("activation_bytes", None if held.is_host else held.activation_bytes),
        as_words("allocated_before_bytes", ", ".join(map(str, peaks[-8:])) or None),
        as_number("samples_per_step", failure.samples),
        as_number("suggested_batch", None if held.is_host else _batch(facts, failure, held)),
        as_words("layers", _layers_in_words(found)),
        in_bytes("saved_bytes", None if found is None else found.saved_bytes),
        as_words("checkpoint_block", None if block is None else block.name),
        in_bytes("checkpoint_saves_bytes", None if block is None else block.less_bytes),
        as_words("snapshot", None if failure.report is None else failure.report.snapshot),
        as_words("message", "" if failure.report is None else failure.report.message),
    )


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    doc=Doc(
        "crit",
        "a tensor did not fit, on a GPU or on the host",
        __doc__,
        symptoms=(
            Symptom.MEMORY,
            Symptom.DIED,
        ),
    ),
)
