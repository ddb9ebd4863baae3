"""Out of memory: an allocation did not fit.

*Meaning.* As `EXCEPTION`, where the error says that memory ran out: CUDA's, the CPU allocator's,
`MemoryError`, numpy's.

*Evidence.* What torch's message says (`tried_bytes`, `free_bytes`, `total_bytes`,
`allocated_bytes`, `reserved_bytes`), what the model held (`parameter_bytes`, `gradient_bytes`,
`optimizer_bytes`, and `activation_bytes`: what tensors occupied besides these), on the host
`resident_bytes` and `taken_bytes` (what the process had, and how much more than in the steps
before), `limited_by` (`RLIMIT_AS` or `RLIMIT_DATA`, where the process has such a limit below the
machine's memory: then `total_bytes` is that, else what the machine has or its cgroup allows),
`allocated_before_bytes` (the peaks of the last steps), `samples_per_step`, `failed_batch` (the
samples of the batch that did not fit: training's, validation's, or one of several in a step: by
the loader, or by the first dimension of what the model was given), `suggested_batch`,
`device` (`gpu`, `host`), and what `EXCEPTION` has. With the deep profile: `layers` (the layers that
hold the most, in bytes), `saved_bytes` (kept for backward of the batch that did not fit, in
proportion to the one that was measured; nothing in an evaluation), `checkpoint_block` and
`checkpoint_saves_bytes` (the blocks whose activation checkpointing saves the most, and how much),
`snapshot` (the file with the allocator's snapshot, where `--oom-snapshot` asked for it).

*Thresholds.* 10 % of the device reserved and unused: the allocator is a part of the matter. Peaks
that grew by 5 % over the last 32 steps: something is kept from step to step; on the host where the
process grew in both halves of the steps, by 25 % of what it had. A part of 25 % is worth making
smaller.

*What to do.* The action has this run's numbers: a batch that would have fitted (at most half; the
device, or what the process's own limit allows, filled to 92 %, activations in proportion to the
batch; with the deep profile the measured activations decide, and it may be more than half),
`expandable_segments` where much was reserved and unused, bf16 or activation checkpointing by the
share of activations, sharding where the optimizer's state is large. Where the deep profile saw a
module hold more in every step, by 25 % of the memory in all, the action is about that module
instead. Where one tensor is ten times all that layers hold and keep, its shape comes first;
checkpointing that saves less than a quarter of what was asked for is not advised. In an evaluation
the validation batch is what to make smaller; where the model is in evaluation mode while autograd
keeps what backward needs, `torch.no_grad()` comes first.
"""

from __future__ import annotations

import math

from traceml.diagnose import settings_advice
from traceml.diagnose.exhausted_memory import ExhaustedMemory, exhausted_memory, total_words
from traceml.diagnose.failure_words import (
    evidence_of,
    failed_ranks,
    failure_place,
    phase_of,
    ranks_of,
    steps_of,
)
from traceml.diagnose.leaking_modules import growth_remedy, growth_words, module_that_filled
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.facts.layer_growth import LayerGrowth
from traceml.facts.layer_memory import LayerGroup, LayerMemory
from traceml.facts.stability import Failure
from traceml.model.evidence import Evidence, Piece, as_number, as_words, in_bytes
from traceml.model.failure import MemoryAtFailure
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, memory, percent, significant

KIND = Kind.OUT_OF_MEMORY

FRAGMENTED = 0.10  # of the device, reserved and in nobody's use: then the allocator is the matter
GROWTH = 1.05  # from the first to the last of the steps before: below this the curve is flat
MAX_LAYERS = 3  # that a sentence names
MAX_EVIDENCE = 10
OUTSIZED = 10.0  # times all layers: no layer of this size needs such a tensor
KEPT_ON_HOST = (
    "Find what keeps more in every step: a list of batches or outputs, losses appended without "
    "detach()."
)
LARGE = 0.25  # of what is held: to make a smaller part smaller would not help much


def check(facts: Facts) -> Finding | None:
    """Fires when memory, of a GPU or of the host, is what ended the run."""
    failure = facts.stability.failure
    if failure is None or failure.kind is not KIND or failure.report is None:
        return None
    memory_then = exhausted_memory(facts, failure)
    held = memory_then.held
    kind = "host memory" if held.is_host else "GPU memory"
    who = failed_ranks(failure, facts.node_names)
    claim = f"{who} ran out of {kind}{failure_place(failure)}{_asked(held)}."
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
                    _resident(memory_then),
                    _held(held),
                    _by_layer(memory_then),
                    _curve(failure.allocated_bytes),
                    "" if leak is None else growth_words(leak),
                ),
            )
        ),
        action=_action(facts, memory_then) if leak is None else growth_remedy(leak),
        phase=phase_of(failure.report),
        ranks=ranks_of(failure),
        steps=steps_of(failure),
        evidence=Evidence(*evidence_of(failure), *_evidence(memory_then)),
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
    free = ""
    if held.free_bytes is not None and (not held.is_host or held.free_bytes < held.tried_bytes):
        free = f" with {memory(held.free_bytes)} free"
    return f": it asked for {memory(held.tried_bytes)}{free}{total_words(held)}"


def _resident(then: ExhaustedMemory) -> str:
    """Returns what the process had of the host's memory, in words."""
    resident, taken = then.held.resident_bytes, then.taken_bytes
    if resident is None:
        return ""
    more = f", {memory(taken)} more than in the steps before" if taken else ""
    said = f"The process had {memory(resident)} resident{more}."
    if then.growth is None:
        return said
    first, before, steps = then.growth
    grown = f"It had grown from {memory(first)} to {memory(before)} over {count(steps, 'step')}."
    return f"{said} {grown}"


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


def _by_layer(then: ExhaustedMemory) -> str:
    """Returns the layers that hold the most, in words; empty without the deep profile."""
    found, samples = then.layers, then.failure.samples
    if found is None or not found.groups:
        return ""
    batch = ""
    if then.is_another_batch and not then.is_evaluation:
        times = f"{significant(then.times_measured)} times as large as the measured one"
        batch = f", for a batch {times if samples is None else f'of {count(samples)}'}"
    said = [
        f"{group.name or 'the model itself'}{f' (×{group.layers})' if group.layers > 1 else ''} "
        f"{memory(group.total_bytes)}{_saved_part(group)}"
        for group in found.groups[:MAX_LAYERS]
    ]
    return f"By layer{batch}: {', '.join(said)}."


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


def _action(facts: Facts, then: ExhaustedMemory) -> str:
    settings, failure, held = facts.settings, then.failure, then.held
    if not _is_in_model(then):
        if then.growth is not None:
            return KEPT_ON_HOST
        ways = ("stream the dataset", settings_advice.fewer_workers(facts), "ask for more memory")
        return (
            f"Load less at once: {settings_advice.listed(ways, 'or')}; "
            "the amount asked for shows whether a size was computed wrongly."
        )
    said = [
        "" if then.growth is None else KEPT_ON_HOST,
        _growth(failure.allocated_bytes),
        _without_graph(held),
        _size(facts, then),
        _checkpointing(facts, then),
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
            "" if then.is_evaluation else settings_advice.recomputing(settings),
        )
        smaller = (
            settings_advice.listed(less, "or") or "shorter sequences, or layers split over GPUs"
        )
        said.append(f"Activations are {share} of it: {smaller}.")
    if held.limited_by is not None:
        said.append(f"Where {held.limited_by} is lower than intended, raise it.")
    if (held.optimizer_bytes or 0) > LARGE * whole:
        shard = "" if settings_advice.is_sharded(settings) else "shard it (FSDP2)"
        lighter = settings_advice.listed((shard, "use an 8-bit optimizer"), "or")
        said.append(f"Optimizer state is large: {lighter}.")
    report = failure.report
    if report is not None and report.snapshot is not None:
        said.append(f"{report.snapshot} in the run folder shows it at pytorch.org/memory_viz.")
    return " ".join(filter(None, said))


def _is_in_model(then: ExhaustedMemory) -> bool:
    """Returns whether memory of a GPU ran out, or that of the host in a model that trains there."""
    report = then.failure.report
    return not then.held.is_host or (report is not None and report.module is not None)


def _without_graph(held: MemoryAtFailure) -> str:
    if not held.is_graph_kept:
        return ""
    return (
        "The model was in evaluation mode, and autograd kept what backward needs: if this was "
        "evaluation, put it under torch.no_grad() or torch.inference_mode()."
    )


def _checkpointing(facts: Facts, then: ExhaustedMemory) -> str:
    """Returns what activation checkpointing of the blocks that repeat would save; empty where that
    is not known, little beside what was asked for, or it is on already."""
    found, is_on = then.layers, facts.settings.checkpoints_activations
    if found is None or found.block is None or is_on:
        return ""
    block = found.block
    if block.less_bytes < LARGE * max(found.saved_bytes or math.inf, then.held.tried_bytes or 0):
        return ""
    return (
        f"Activation checkpointing of {block.name} (×{block.layers}) saves up to "
        f"{memory(block.less_bytes)} of {memory(found.saved_bytes)} kept for backward."
    )


def _growth(peaks: tuple[int, ...]) -> str:
    if len(peaks) < 2 or peaks[-1] < GROWTH * peaks[0]:
        return ""
    return "Find what keeps tensors from step to step (append(loss) without detach())."


def _size(facts: Facts, then: ExhaustedMemory) -> str:
    """Returns what to make smaller, and by how much."""
    held, samples = then.held, then.failure.samples
    too_large = ""
    if held.tried_bytes and held.total_bytes and held.tried_bytes > held.total_bytes:
        whole = "all there is" if held.is_host else "the whole device"
        too_large = f"One tensor is more than {whole}: check whether its shape is intended. "
        if then.is_beyond_any_batch:
            return too_large.strip()
    elif (times := then.times_all_layers) >= OUTSIZED:
        too_large = (
            f"One tensor is {count(round(times))} times what all layers hold and keep for "
            "backward: check whether its shape is intended. "
        )
    kind = "validation batch" if then.is_evaluation else "batch"
    batch = then.fitting_batch()
    if batch is not None:
        return f"{too_large}Try a {kind} of {batch:,} (it was {samples:,})."
    if samples == 1:
        shard = "" if settings_advice.is_sharded(facts.settings) else " or shard the model (FSDP2)"
        return f"{too_large}The {kind} is 1 already: shorten the sequence{shard}."
    in_steps = "" if then.is_evaluation else ", with twice the accumulation steps"
    return f"{too_large}Try half the {kind}{in_steps}."


def _unused(held: MemoryAtFailure) -> int:
    if held.reserved_bytes is None or held.allocated_bytes is None:
        return 0
    return held.reserved_bytes - held.allocated_bytes


def _layers_in_words(found: LayerMemory | None) -> str | None:
    if found is None:
        return None
    return ", ".join(f"{each.name}: {each.total_bytes}" for each in found.groups[:MAX_EVIDENCE])


def _evidence(then: ExhaustedMemory) -> tuple[Piece, ...]:
    failure, held, found = then.failure, then.held, then.layers
    peaks = failure.allocated_bytes
    block = None if found is None else found.block
    return (
        as_words("device", "host" if held.is_host else "gpu"),
        in_bytes("tried_bytes", held.tried_bytes),
        in_bytes("free_bytes", held.free_bytes),
        in_bytes("total_bytes", held.total_bytes),
        as_words("limited_by", held.limited_by),
        in_bytes("resident_bytes", held.resident_bytes),
        in_bytes("taken_bytes", then.taken_bytes if held.is_host else None),
        in_bytes("allocated_bytes", held.allocated_bytes),
        in_bytes("reserved_bytes", held.reserved_bytes),
        in_bytes("parameter_bytes", held.parameter_bytes),
        in_bytes("gradient_bytes", held.gradient_bytes),
        in_bytes("optimizer_bytes", held.optimizer_bytes),
        in_bytes("activation_bytes", None if held.is_host else held.activation_bytes),
        as_words("allocated_before_bytes", ", ".join(map(str, peaks[-8:])) or None),
        as_number("samples_per_step", failure.step_samples),
        as_number("failed_batch", held.batch_samples),
        as_number("suggested_batch", then.fitting_batch() if _is_in_model(then) else None),
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
