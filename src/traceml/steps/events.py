"""What a hook notes: one event of 32 bytes, and the kinds of events there are.

An event holds the moment on the host's clock, its kind, flags, the number of a mark on the GPU's
timeline (0: none), an argument, and its own number plus one, which is written last: a reader that
finds another number there has met an event that is not complete yet, or one of another lap.
"""

from __future__ import annotations

import struct

from traceml.model import record_layout
from traceml.model.phase import MEASURED, Phase

EVENT = record_layout.packer(record_layout.EVENT)
"""Moment in nanoseconds, kind, flags, mark, argument, number + 1."""
EVENT_WITH_FLOAT = struct.Struct(EVENT.format[:-2] + "dQ")
"""The same where the argument is a floating-point number."""
EVENT_BYTES = EVENT.size

_INTEGER, _FLOAT = struct.Struct("<q"), struct.Struct("<d")

# Phases, and what else a step accumulates: places in the list of its totals.
PHASE_PLACES = {phase: place for place, phase in enumerate(MEASURED)}
"""The place of each phase of the catalogue; an event names a phase by it."""
INPUT = PHASE_PLACES[Phase.INPUT]
H2D = PHASE_PLACES[Phase.H2D]
FORWARD = PHASE_PLACES[Phase.FORWARD]
BACKWARD = PHASE_PLACES[Phase.BACKWARD]
OPTIMIZER = PHASE_PLACES[Phase.OPTIMIZER]
COMMUNICATION = PHASE_PLACES[Phase.COMMUNICATION]
TOTALS = len(MEASURED) + 16
(
    GRAPH,
    CHECKPOINT,
    EVALUATION,
    GC,
    SYNC,
    SYNCS,
    LOGGING,
    COMPILE,
    COLLATE,
    SAMPLES,
    ELEMENTS,
    RECEIVED,
    BACKWARDS,
    STEPS,
    CLOSURE,
    AFTER_EVALUATION,
) = range(len(MEASURED), TOTALS)
"""`CLOSURE` is what an optimizer's closure spends outside all other phases: part of the rest.
`AFTER_EVALUATION` passes between steps and is nobody's: from an evaluation's end to the next
fetch."""

BODY = tuple(PHASE_PLACES[phase] for phase in MEASURED if phase is not Phase.INPUT)
"""The phases of the body, in the order of their fields in a record."""
MAY_BE_UNMEASURED = (*PHASE_PLACES.values(), GRAPH, COLLATE, SAMPLES, ELEMENTS, RECEIVED)
"""Totals that are not measured until something adds to them; the others begin at zero."""

# Kinds of events, with what their argument is
(
    BEGIN,  # a phase begins: the phase
    END,  # a phase ends: the phase
    ABORT,  # an exception leaves a phase: the phase
    LOSE_TRACK,  # a hook was interrupted: what it began will not be ended
    SPEND,  # time that went to no phase: nanoseconds; the flags name the cause
    SPEND_WAITING,  # time in which the host waited for the device: nanoseconds
    SPEND_WITHIN,  # time that stays in its phase: nanoseconds; the flags name the cause
    SEE_LOSS,  # a loss came from the device: its value; its number stands in the place of the mark
    SEE_MEMORY,  # what the process holds: bytes
    SEE_ALLOCATED,  # what is allocated on the GPU: bytes
    SEE_RESERVED,  # what is reserved on the GPU: bytes
    SEE_LOADER,  # whether a loader had a batch ready: its number; flag EMPTY
    BEGIN_FETCH,  # a batch is asked for: the loader's number
    END_FETCH,  # the batch is there: see `fetched`; -1 where it does not show what it holds
    END_EPOCH,  # the loader had no further batch: its number
    BEGIN_FORWARD,  # the model is called: 1 if it is in training mode, plus 2 if gradients are kept
    END_FORWARD,  # its call returned: the same
    BEGIN_BACKWARD,  # gradients are asked for: the loss, if a flag says that it is known
    HAVE_LOCAL_GRADIENTS,  # the rank's own gradients are there
    END_BACKWARD,  # all gradients are there: how many ends of steps were counted so far
    BEGIN_OPTIMIZER,  # an optimizer steps: its number
    END_OPTIMIZER,  # it has stepped: see `optimizer_ended`
    CHANGED_OPTIMIZER,  # an optimizer that no hook sees has stepped: its number …
    CHANGE_PARAMETERS,  # … and this ends the list: as END_OPTIMIZER, with the steps they took
    HOLD_IN_GRAPH,  # what a CUDA graph holds: see `graph_contents`; its number is the "mark"
    HOLD_OPTIMIZER,  # an optimizer in it: the optimizer's number; the graph's is the "mark"
    BEGIN_REPLAY,  # a graph is launched: its number; flags say what it holds
    END_REPLAY,  # the launch returned: as END_OPTIMIZER, with the graph's number
    ABORT_REPLAY,  # an exception left the launch: the graph's number
    PAUSE,  # a cell of a notebook ends
    RESUME,  # a cell begins
    ENTER_STEP,  # `with trace_step(model)` begins
    EXIT_STEP,  # it ends: see `step_ended`
    MARK_BY_BACKWARD,  # from here on steps are marked by backward passes (1), or no longer (0)
    FORGET,  # another thread turns out to train: nothing of what came before counts
    FINISH,  # the process ends
    REACH_MARK,  # the GPU has passed a mark: nanoseconds since the mark that was told before
    LOSE_MARKS,  # no mark up to this one will be told of any more
    RECEIVE,  # other ranks sent their parts of a tensor (`all_to_all`): its elements
    LEAVE_EVALUATION,  # a region ends that is named as an evaluation
) = range(1, 41)
KINDS = 41

# Flags
TIMED = 1
"""Every phase is marked on the GPU's timeline at present."""
KNOWN_LOSS, AWAITED_LOSS = 2, 4
"""The argument is a loss, or the number of one that comes later."""
ASKED_BY_GRAD = 8
"""`torch.autograd.grad` asks for the gradients: a penalty's, say, and no micro-batch's."""
EMPTY = 2
QUEUE_WATCHED, QUEUE_DRY = 2, 4
INSIDE_ANOTHER = 2
"""This optimizer's step runs inside the step of another one, such as SAM's."""
HOLDS_BACKWARD, HOLDS_OPTIMIZER = 2, 4
CAUSE_SHIFT = 8
"""A cause stands above the other flags."""

NUMBER_BITS = 24
"""In the argument of END_OPTIMIZER, the optimizer's number; above them stands the count."""
_NUMBER_MASK = (1 << NUMBER_BITS) - 1


def optimizer_ended(count: int, number: int) -> int:
    """The argument of END_OPTIMIZER: how many ends of steps the process has noted so far, this one
    included, and the optimizer's number. By the count a reader knows how many it has missed."""
    return count << NUMBER_BITS | number


def split_optimizer_ended(argument: int) -> tuple[int, int]:
    """The count and the optimizer's number."""
    return argument >> NUMBER_BITS, argument & _NUMBER_MASK


MAX_COUNTED = (1 << 31) - 1
"""Samples, and elements, of one batch: of larger ones they are not known."""


def fetched(samples: int, elements: int) -> int:
    """The argument of END_FETCH: how many samples a batch holds, and above them how many elements
    its first tensor has, 0 where that is not known."""
    if not 0 <= samples <= MAX_COUNTED:
        return -1
    return (elements if 0 < elements <= MAX_COUNTED else 0) << 32 | samples


def split_fetched(argument: int) -> tuple[int, int]:
    """The samples and the elements; -1 for what is not known."""
    if argument < 0:
        return -1, -1
    return argument & 0xFFFFFFFF, (argument >> 32) or -1


def graph_contents(backwards: int, optimizer_steps: int) -> int:
    """The argument of HOLD_IN_GRAPH: how many backward passes and optimizer steps a graph holds."""
    return backwards << 32 | optimizer_steps


def step_ended(count: int, aborted: bool) -> int:
    """The argument of EXIT_STEP: the same count, and whether an exception left the step."""
    return count << 1 | aborted


def split_step_ended(argument: int) -> tuple[int, bool]:
    """The count, and whether an exception left the step."""
    return argument >> 1, bool(argument & 1)


def as_float(argument: int) -> float:
    """An argument that is a floating-point number."""
    return float(_FLOAT.unpack(_INTEGER.pack(argument))[0])


def cause_of(flags: int) -> int:
    """The cause among the flags of a SPEND event."""
    return flags >> CAUSE_SHIFT
