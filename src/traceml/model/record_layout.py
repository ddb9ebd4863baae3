"""The layout of a ring and of a record file, written down once.

`trace` packs by these fields, `store` derives its numpy dtypes from them.

A ring is one file per rank: a header, a table of named regions, message slots, two slots for the
state of whoever makes steps of its events, and event slots. A record file is the same header
followed by step records in order. Rings of earlier TraceMLs, of the same record format, hold step
slots before the messages, and no events.
All numbers are little endian. A slot's last field is its sequence number plus one, written after
everything else in the slot: a reader that finds another number there has caught the slot in
mid-write or after it was overwritten.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntFlag

from traceml.model.phase import IN_BETWEEN, PHASES, Within

MAGIC = b"TRACEML\x00"
HISTORY = {
    1: "first",
    2: "what a step's rest was spent on, how long its batches took to collate, exposed "
    "communication on the GPU's clock, the process's memory, the loss",
    3: "replays of CUDA graphs that hold more than one phase; how often the host waited for the "
    "device; whose step the loss is; 0 samples in a step that fetched nothing",
    4: "what the host did while the GPU had caught up with it",
    5: "how much a rank got to work on: the elements of its batches, and of what other ranks sent",
}
"""What each version of the format brought."""
VERSION = max(HISTORY)
BYTE_ORDER_MARK = 0x01020304
HEADER_BYTES = 4096
NOT_MEASURED = -1
LIMIT_REACHED = 2

Field = tuple[str, str]
"""A name and a `struct` format character (or `Ns` for text)."""

IDENTITY: tuple[Field, ...] = (
    ("magic", "8s"),
    ("version", "I"),
    ("byte_order", "I"),
    ("header_bytes", "I"),
    ("region_capacity", "I"),
    ("step_bytes", "I"),
    ("step_capacity", "I"),
    ("message_bytes", "I"),
    ("message_capacity", "I"),
    ("pid", "q"),
    ("rank", "q"),
    ("local_rank", "q"),
    ("world_size", "q"),
    ("local_world_size", "q"),
    ("node_rank", "q"),
    ("monotonic_ns", "q"),
    ("unix_ns", "q"),
    ("device_total_bytes", "q"),
    ("device", "32s"),
    ("device_name", "64s"),
    ("hostname", "64s"),
    ("process_unix_ns", "q"),
    ("device_uuid", "48s"),
    ("event_bytes", "I"),
    ("event_capacity", "I"),
    ("state_bytes", "I"),
)
"""Who wrote the file and how it is laid out; written once, when the file is made. What was added
later stands at the end, where older files of the same version hold zeros."""

COUNTERS_OFFSET = 1024
COUNTERS: tuple[Field, ...] = (
    ("steps_written", "Q"),
    ("steps_final", "Q"),
    ("messages_written", "Q"),
    ("regions_used", "Q"),
    ("ended", "Q"),
    ("failures", "Q"),
    ("messages_dropped", "Q"),
    ("regions_dropped", "Q"),
    ("last_failure", "256s"),
    ("loader_workers", "Q"),
    ("loader_pinned", "Q"),
    ("recording_ended", "Q"),
    ("first_event", "Q"),
    ("step_limit", "Q"),
)
"""Kept up to date by the tracer: `steps_written` and `steps_final` count the steps, and those whose
GPU times are filled in, of rings that hold steps; `first_event` is the number of the first event
in the ring, and `step_limit` how many steps are asked for (0: all);
`loader_workers` is one more than the training loader has, so that 0 is "not known", and
`loader_pinned` is 1 for a loader that does not pin its batches and 2 for one that does;
`messages_dropped` counts logged values that were refused;
`recording_ended` is not 0 when no further step is recorded, though training may go on, and
`LIMIT_REACHED` where that is because no more were asked for."""

BODY_FIELDS = {
    f"{phase.value}_ns": entry
    for phase, entry in PHASES.items()
    if entry.within in (Within.BODY, Within.COMPUTE)
}
"""The fields of the phases of the body, in the order of the catalogue."""

IDLE_CAUSES = ("compile", "gc", "logging", "sync", "python", "launching")
"""What the host may be doing while the GPU has caught up with it, besides fetching a batch, copying
and communicating, which are phases of their own."""
ROUND_TRIP_NS = 100_000
"""Upper limit for reading one value from the GPU, until that has its next work."""

STEP: tuple[Field, ...] = (
    ("start_ns", "q"),
    ("wall_ns", "q"),
    ("input_ns", "q"),
    ("body_ns", "q"),
    *((f"{part}_ns", "q") for part in IN_BETWEEN),
    *((field, "q") for field in BODY_FIELDS),
    ("gc_ns", "q"),
    ("graph_ns", "q"),
    ("gpu_input_ns", "q"),
    ("gpu_body_ns", "q"),
    *((f"gpu_{field}", "q") for field in BODY_FIELDS),
    ("gpu_graph_ns", "q"),
    *((f"gpu_idle_{cause}_ns", "q") for cause in IDLE_CAUSES),
    ("gpu_idle_between_ns", "q"),
    ("allocated_bytes", "q"),
    ("reserved_bytes", "q"),
    ("rss_bytes", "q"),
    ("sync_ns", "q"),
    ("logging_ns", "q"),
    ("compile_ns", "q"),
    ("collate_ns", "q"),
    ("batch_elements", "q"),
    ("received_elements", "q"),
    ("loss", "d"),
    ("samples", "i"),
    ("micro_batches", "i"),
    ("flags", "I"),
    ("optimizer_steps", "I"),
    ("syncs", "h"),
    ("loss_lag", "h"),
    ("sequence", "Q"),
)
"""One step. `wall = input + body + between`; `-1` is "not measured".

`start_ns` is the end of the step before. `between` holds evaluation, checkpoints and whatever an
explicit step leaves outside itself. The host's phases lie inside the body. `gpu_input_ns` is the
time that the GPU's own timeline stood still for input, and `gpu_body_ns` the rest of its step.
Communication is what was exposed: time in which the rank waited for a collective and did nothing
else. Time in garbage collection, logging and compiling is charged to them and to no phase; waiting
for the device (`sync_ns`) and collating (`collate_ns`) are parts of the phase they happen in.
A replay of a CUDA graph that holds forward and backward, and perhaps the optimizer, is compute that
cannot be told apart: `graph_ns` has its time, and those phases are not measured there.
`loss` holds a number where `StepFlag.LOSS_SEEN` says so: the loss of the first backward pass, or
the first that was not finite. One that came late from a device is another record's, `loss_lag`
records before this one. `syncs` counts how often the host waited for the device in `sync_ns`.
`gpu_idle_*_ns` are the parts of the GPU's body in which it had nothing to do because of what the
host did then (`steps/gpu_idle_marks.py`): one for each cause, of which launching is an upper limit;
and how much of it all lay between the phases.
`batch_elements` counts the elements of the first tensor of each batch (tokens, where it holds their
numbers), `received_elements` those that `all_to_all` brought to the rank.
"""

MAX_SYNCS = MAX_LOSS_LAG = (1 << 15) - 1
"""More waits than this in one step are counted as so many; a loss that is later is left out."""

_LATER = ("rss_bytes", "sync_ns", "logging_ns", "compile_ns", "collate_ns", "loss")
SINCE: dict[str, int] = {
    **{field: entry.since for field, entry in BODY_FIELDS.items()},
    **{f"gpu_{field}": entry.gpu_since for field, entry in BODY_FIELDS.items()},
    **dict.fromkeys(_LATER, 2),
    **dict.fromkeys(("graph_ns", "gpu_graph_ns", "syncs", "loss_lag"), 3),
    **dict.fromkeys((f"gpu_idle_{name}_ns" for name in (*IDLE_CAUSES, "between")), 4),
    **dict.fromkeys(("batch_elements", "received_elements"), 5),
}
"""The version that brought a field of a step; those that are not here were in the first."""

GPU_FIELDS = tuple(name for name, _ in STEP if name.startswith("gpu_"))

FOLDED = (*(name for name, kind in STEP if kind == "q" and name != "start_ns"), "samples")
"""The fields whose count, sum, minimum and maximum a block keeps."""

BLOCK: tuple[Field, ...] = (
    ("first_step", "q"),
    ("steps", "q"),
    ("complete_steps", "q"),
    ("incomplete_wall_ns", "q"),
    ("start_ns", "q"),
    *(
        (f"{name}_{statistic}", "q")
        for name in FOLDED
        for statistic in ("count", "sum", "min", "max")
    ),
)
"""Neighbouring old steps folded into one record: totals stay exact, single steps are gone.

The statistics are over complete steps; `incomplete_wall_ns` keeps the time of the others.
"""

REGION: tuple[Field, ...] = (
    ("name", "64s"),
    ("calls", "q"),
    ("host_ns", "q"),
    ("longest_ns", "q"),
    ("gpu_ns", "q"),
)

MESSAGE: tuple[Field, ...] = (
    ("length", "H"),
    ("more", "H"),
    ("payload", "244s"),
    ("sequence", "Q"),
)
"""A piece of a JSON message; `more` is 1 while further pieces follow. Plain numbers that a script
logs come in another form: see `packed_metrics`."""

MESSAGE_PAYLOAD_BYTES = 244

EVENT: tuple[Field, ...] = (
    ("moment_ns", "q"),
    ("kind", "H"),
    ("flags", "H"),
    ("mark", "I"),
    ("argument", "q"),
    ("sequence", "Q"),
)
"""What a hook notes; `steps.events` has the kinds. The argument may be a floating-point number."""


class StepFlag(IntFlag):
    """What is special about a step record."""

    ABORTED = 1
    """An exception left the step: its time counts, it is not a complete step."""
    EXPLICIT = 2
    """Bounded by `trace_step`."""
    TAIL = 4
    """What came after the last step (a closing evaluation, say): time, but no step."""
    QUEUE_WATCHED = 8
    QUEUE_DRY = 16
    """The GPU had reached the optimizer's work by the time the host had queued all of it."""
    GPU_TIMED = 32
    """GPU times have been asked for; they are filled in a few steps later."""
    LOADER_WATCHED = 64
    LOADER_EMPTY = 128
    """When a batch was asked for, the loader's workers had none ready."""
    LOSS_SEEN = 256


NO_STEP = StepFlag.ABORTED | StepFlag.TAIL
"""Records that carry time and are not complete steps."""


def packer(fields: Sequence[Field]) -> struct.Struct:
    """The `struct` that packs these fields, little endian and without padding."""
    return struct.Struct("<" + "".join(kind for _, kind in fields))


def offset_of(fields: Sequence[Field], name: str) -> int:
    """The byte at which a field begins."""
    before: list[str] = []
    for field, kind in fields:
        if field == name:
            return struct.calcsize("<" + "".join(before))
        before.append(kind)
    raise KeyError(name)


def step_fields(version: int) -> tuple[Field, ...]:
    """The fields of a step in files of this version."""
    return tuple(field for field in STEP if SINCE.get(field[0], 1) <= version)


def block_fields(version: int) -> tuple[Field, ...]:
    """The fields of a block in files of this version."""
    return tuple(field for field in BLOCK if SINCE.get(field[0].rpartition("_")[0], 1) <= version)


STEP_BYTES = packer(STEP).size
MESSAGE_BYTES = packer(MESSAGE).size
REGION_BYTES = packer(REGION).size
BLOCK_BYTES = packer(BLOCK).size
EVENT_BYTES = packer(EVENT).size
STATE_SLOTS = 2


def region_table_offset() -> int:
    """Where the table of named regions begins."""
    return HEADER_BYTES


def step_slots_offset(region_capacity: int) -> int:
    """Where the step slots begin."""
    return HEADER_BYTES + region_capacity * REGION_BYTES


def message_slots_offset(region_capacity: int, step_capacity: int) -> int:
    """Where the message slots begin."""
    return step_slots_offset(region_capacity) + step_capacity * STEP_BYTES


def state_slots_offset(region_capacity: int, step_capacity: int, message_capacity: int) -> int:
    """Where the two slots for the state of the step machine begin."""
    return message_slots_offset(region_capacity, step_capacity) + message_capacity * MESSAGE_BYTES


def event_slots_offset(
    region_capacity: int, step_capacity: int, message_capacity: int, state_bytes: int
) -> int:
    """Where the event slots begin."""
    before = state_slots_offset(region_capacity, step_capacity, message_capacity)
    return before + STATE_SLOTS * state_bytes


def ring_bytes(
    region_capacity: int,
    step_capacity: int,
    message_capacity: int,
    state_bytes: int = 0,
    event_capacity: int = 0,
) -> int:
    """The size of a whole ring."""
    before = event_slots_offset(region_capacity, step_capacity, message_capacity, state_bytes)
    return before + event_capacity * EVENT_BYTES
