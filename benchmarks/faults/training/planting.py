"""Every fault that can be planted, by the name that the command line knows it by."""

from __future__ import annotations

from benchmarks.faults.training import elsewhere, failing, slow
from benchmarks.faults.training.fault import Fault
from benchmarks.faults.training.plan import Plant, Setup

FAULTS: dict[str, type[Fault]] = {
    "": Fault,
    "slow_item": slow.SlowItem,
    "slow_collate": slow.SlowCollating,
    "slow_forward": slow.SlowForward,
    "slow_backward": slow.SlowBackward,
    "slow_item_and_forward": slow.SlowItemAndForward,
    "slow_optimizer_class": slow.SlowOptimizerClass,
    "slow_optimizer_hook": slow.SlowOptimizerHook,
    "sleep_after_backward": slow.SleepAfterBackward,
    "sleep_before_fetch": slow.SleepBeforeFetch,
    "heavy_metrics": slow.HeavyMetrics,
    "slow_logging": slow.SlowLogging,
    "collects_garbage": slow.CollectsGarbage,
    "changing_shapes": slow.ChangingShapes,
    "changing_shapes_uncompiled": slow.ChangingShapesUncompiled,
    "keeps_tensors": elsewhere.KeepsTensors,
    "fills_cache": elsewhere.FillsCache,
    "sawtooth": elsewhere.Sawtooth,
    "leaky_worker": elsewhere.LeakyWorker,
    "reduces_each_step": elsewhere.ReducesEachStep,
    "no_sync": elsewhere.NoSync,
    "pinned": elsewhere.Pinned,
    "copies_to_device": elsewhere.CopiesToDevice,
    "reads_items": elsewhere.ReadsItems,
    "out_of_memory": elsewhere.OutOfMemory,
    "raises": failing.Raises,
    "killed": failing.Killed,
    "hangs": failing.Hangs,
    "bad_batch": failing.BadBatch,
    "spikes": failing.Spikes,
    "slow_first_step": slow.SlowFirstStep,
}


def plant_fault(setup: Setup, plant: Plant, rank: int) -> Fault:
    """The fault of that name, ready to strike."""
    return FAULTS[plant.fault](setup, plant, rank)
