"""The thresholds in the docs are those of the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from traceml.diagnose import (
    between_steps,
    host_time,
    late_ranks,
    one_off_stalls,
    outside_steps,
    settings_advice,
)
from traceml.diagnose.rules import (
    bandwidth_bound,
    comm_bound,
    compute_bound,
    cpu_starved,
    fragmentation,
    gpu_memory_imbalance,
    gpu_throttled,
    gpu_utilization,
    h2d_bound,
    high_cpu,
    high_gpu_memory,
    high_gpu_power,
    high_gpu_temperature,
    high_pressure,
    high_ram,
    high_rank_cpu,
    host_bound,
    host_sync,
    imbalance,
    incomplete_data,
    input_bound,
    memory_creep,
    near_gpu_limit,
    recompiling,
    slowdown,
    small_kernels,
    swapping,
    tensor_cores_idle,
    uneven_gpu_utilization,
    wait_heavy,
    warmup,
)
from traceml.diagnose.thresholds import Threshold
from traceml.facts import gpu_use, job, series, stragglers, trend
from traceml.facts.memory import MemoryOwner
from traceml.model.record_layout import ROUND_TRIP_NS

DOCS = (Path(__file__).parents[2] / "docs/diagnoses.md").read_text()
MIB = 1 << 20


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _ms(length_s: float) -> str:
    return f"{length_s * 1e3:g} ms"


def _warns(line: Threshold, on: str = "") -> str:
    return f"{_percent(line.share)} {on}warns from {_ms(line.min_s)}"


def _is_critical(line: Threshold) -> str:
    return f"{_percent(line.share)} is critical from {_ms(line.min_s)} on"


NUMBERS = {2: "Two", 3: "three"}

STEP_TIME = [
    ("INPUT_BOUND", _warns(input_bound.WARN)),
    ("INPUT_BOUND", _is_critical(input_bound.CRITICAL[0])),
    (
        "INPUT_BOUND",
        f"and {_percent(input_bound.CRITICAL[1].share)} from "
        f"{_ms(input_bound.CRITICAL[1].min_s)} on",
    ),
    ("INPUT_BOUND", f"the disk was busy {_percent(input_bound.BUSY_DISK)} of the time"),
    ("INPUT_BOUND", f"{_percent(input_bound.MOSTLY_RARE)} of the wait or more"),
    ("INPUT_BOUND", f"collating takes {_percent(input_bound.MOSTLY_COLLATE)} of the fetch"),
    ("INPUT_BOUND", f"less than {_percent(input_bound.SELDOM_EMPTY)} of the fetches"),
    ("INPUT_BOUND", f"less than {input_bound.BUSY_WORKER:g} of a core"),
    ("INPUT_BOUND", f"more than {input_bound.MAX_WORKERS} would be needed"),
    ("H2D_BOUND", f"{_warns(h2d_bound.WARN)} on, {_is_critical(h2d_bound.CRITICAL)}"),
    ("WAIT_HEAVY", _warns(wait_heavy.WARN)),
    ("WAIT_HEAVY", _is_critical(wait_heavy.CRITICAL)),
    (
        "WAIT_HEAVY",
        f"those {_percent(wait_heavy.WARN_WITHOUT_FETCHES.share)} and "
        f"{_ms(wait_heavy.WARN_WITHOUT_FETCHES.min_s)} only warn",
    ),
    ("WAIT_HEAVY", f"if it is {_percent(wait_heavy.MAIN_PART)} of the rest"),
    ("COMM_BOUND", _warns(Threshold(comm_bound.WARN_SHARE, comm_bound.NOTICEABLE_S))),
    ("COMM_BOUND", _is_critical(Threshold(comm_bound.CRITICAL_SHARE, comm_bound.CRITICAL_S))),
    ("COMM_BOUND", f"then {_percent(comm_bound.CRITICAL_SHARE)} warns"),
    ("COMM_BOUND", f"at most {comm_bound.MAX_MICRO_BATCHES}, and"),
    ("COMM_BOUND", f"from {comm_bound.SMALL_BYTES // MIB} MiB of gradients on"),
    ("HOST_BOUND", f"dry in {_percent(host_bound.DRY_SHARE)} of the watched steps"),
    ("HOST_BOUND", f"the host needs {_percent(host_bound.HOST_SHARE)} of the GPU's step"),
    ("HOST_BOUND", f"compute is at least {_percent(host_bound.COMPUTE_SHARE)} of it"),
    ("HOST_BOUND", f"in use less than {_percent(host_bound.LOW_UTILISATION)} of the time"),
    ("HOST_BOUND", f"a step takes {_ms(host_bound.CRITICAL_STEP_S)} or more"),
    ("HOST_BOUND", f"less than {_percent(host_bound.MIN_LOST_SHARE)} of the step"),
    ("GPU counters", f"for {_percent(gpu_use.MIN_INSIDE)} or more"),
    ("GPU counters", f"Fewer than {gpu_use.MIN_SAMPLES} of them"),
    ("TENSOR_CORES_IDLE", f"compute {_percent(tensor_cores_idle.MIN_FP32)} of the time"),
    ("TENSOR_CORES_IDLE", f"at most {_percent(tensor_cores_idle.MAX_TENSOR)}, and"),
    ("TENSOR_CORES_IDLE", f"and {_percent(tensor_cores_idle.MIN_SM)} of the SMs"),
    ("BANDWIDTH_BOUND", f"at {_percent(bandwidth_bound.MIN_DRAM)} of its bandwidth"),
    ("BANDWIDTH_BOUND", f"at most {_percent(bandwidth_bound.MAX_TENSOR)}."),
    ("SMALL_KERNELS", f"resident {_percent(small_kernels.MIN_BUSY)} of the time"),
    ("SMALL_KERNELS", f"at most {_percent(small_kernels.MAX_SM)} of the SMs"),
    ("NEAR_GPU_LIMIT", f"compute {_percent(near_gpu_limit.MIN_TENSOR)} of the time"),
    ("NEAR_GPU_LIMIT", f"at {_percent(near_gpu_limit.MIN_DRAM)} of its bandwidth"),
    ("STRAGGLER", f"{_warns(late_ranks.WARN)} on, {_is_critical(late_ranks.CRITICAL)}"),
    ("STRAGGLER", f"A cause must cover {_percent(late_ranks.COVERS)} of the excess"),
    ("STRAGGLER", f"at least {_percent(late_ranks.EVENLY)} of the latest rank's excess"),
    ("STRAGGLER", f"in {late_ranks.CHANCE * 100:g} % of runs with equal ranks"),
    ("STRAGGLER", f"({late_ranks.CRITICAL_CHANCE * 100:g} % to be critical"),
    ("STRAGGLER", f"the {NUMBERS[stragglers.FEW_STEPS]} longest of its delays"),
    ("STRAGGLER", f"At least {job.MIN_STEPS} steps"),
    ("WAIT_STRAGGLER", f"covers {_percent(late_ranks.COVERS)} of the excess"),
    ("COMPUTE_BOUND", f"{_percent(compute_bound.SHARE)} of the step"),
    ("COMPUTE_BOUND", f"{compute_bound.WAITING_CORES:g} cores"),
    ("COMPUTE_BOUND", f"{_percent(compute_bound.STARVED_SHARE)} of the time"),
    ("COMPUTE_BOUND", f"less than {_percent(settings_advice.ROOM_SHARE)} of the device's memory"),
    *(
        (kind, f"{_warns(line, 'of the step ')} per step on, {_is_critical(host_time.CRITICAL)}")
        for kind, line in (
            ("GC_PAUSES", host_time.WARN),
            ("LOGGING_HEAVY", host_time.WARN),
            ("HOST_SYNC", host_sync.WARN),
        )
    ),
    *(
        (kind, f"the queue is dry in {_percent(host_time.MOSTLY_DRY)} of the steps")
        for kind in ("GC_PAUSES", "LOGGING_HEAVY", "HOST_SYNC")
    ),
    ("HOST_SYNC", f"or {_ms(ROUND_TRIP_NS * 1e-9)} for each read"),
    ("HOST_SYNC", f"From {host_time.MANY_SYNCS} reads a step on"),
    (
        "WAIT_HEAVY",
        f"Between steps {_percent(outside_steps.WARN.share)} of the wall time warns from "
        f"{_ms(outside_steps.WARN.min_s)} on",
    ),
    ("INPUT_BOUND", f"passed within {one_off_stalls.WARN_S:g} s"),
    ("RECOMPILING", f"{NUMBERS[recompiling.MIN_STEPS]} steps or more"),
    (
        "RECOMPILING",
        f"{_warns(host_time.WARN, 'of the step ')} per step on, {_is_critical(host_time.CRITICAL)}",
    ),
    ("CPU_STARVED", f"by the quota {_percent(cpu_starved.THROTTLED_SHARE)} of the time"),
    ("CPU_STARVED", f"without a core {_percent(cpu_starved.RUNQUEUE_SHARE)} of the time"),
    ("CPU_STARVED", f"{cpu_starved.SWAP_BYTES_PER_S // MIB} MiB swapped per second"),
    ("CPU_STARVED", f"in {NUMBERS[cpu_starved.MIN_SAMPLES]} samples or more"),
    ("GPU_THROTTLED", f"in {_percent(gpu_throttled.WARN_SHARE)} of the samples warns"),
    ("GPU_THROTTLED", f"below {_percent(gpu_throttled.LOW_CLOCK)} of the highest"),
    ("CHECKPOINT_HEAVY", f"from {_percent(between_steps.REMARK_SHARE)} of the wall time on"),
    ("EVALUATION_HEAVY", f"from {_percent(between_steps.REMARK_SHARE)} of the wall time on"),
    ("SLOWDOWN", f"{series.SLOWDOWN_RATIO:g} times as long"),
    ("SLOWDOWN", f"{_ms(slowdown.MIN_SLOWDOWN_S)} or more"),
    ("SLOWDOWN", f"from {slowdown.WARN_RATIO:g} times on"),
    ("SLOWDOWN", f"at least {_percent(slowdown.MIN_PHASE_SHARE)} of the slowdown"),
    ("WARMUP", f"Fewer than {warmup.MIN_STEPS} steps"),
    ("INCOMPLETE_DATA", f"fewer than {_percent(incomplete_data.SHARED_SHARE)} of the steps"),
]


def _mib(place: MemoryOwner) -> str:
    return f"{memory_creep.MIN_RISE_BYTES[place] // MIB} MiB"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *STEP_TIME,
        ("HIGH_PRESSURE", f"{_percent(high_pressure.WARN_SHARE)} warns"),
        ("HIGH_PRESSURE", f"{_percent(high_pressure.CRITICAL_SHARE)} is critical"),
        ("IMBALANCE", f"{_percent(imbalance.SKEW)} above the median"),
        ("IMBALANCE", f"at least {_percent(imbalance.PRESSURE)} of the capacity"),
        ("CREEP_CONFIRMED", f"at least {trend.MIN_READINGS}, over"),
        ("CREEP_CONFIRMED", f"at least {memory_creep.MIN_STEPS} steps"),
        ("CREEP_CONFIRMED", f"in {trend.BLOCKS} blocks"),
        ("CREEP_CONFIRMED", f"{trend.CLEAR:g} times the scatter"),
        ("CREEP_CONFIRMED", f"{trend.GOES_ON:g} times the speed of the whole rise"),
        ("CREEP_CONFIRMED", f"{trend.STILL:g} times that speed"),
        ("CREEP_CONFIRMED", f"{_percent(trend.STEADY)} of the blocks"),
        (
            "CREEP_CONFIRMED",
            f"{_percent(memory_creep.MIN_RISE_SHARE)} and {_mib(MemoryOwner.HOST)}",
        ),
        ("CREEP_CONFIRMED", f"{_mib(MemoryOwner.WORKERS)} for workers"),
        ("CREEP_CONFIRMED", f"within {memory_creep.CRITICAL_S / 3600:g} hours"),
        ("FRAGMENTATION", f"{fragmentation.MIN_BYTES >> 30} GiB"),
        ("FRAGMENTATION", f"{_percent(fragmentation.CAPACITY_SHARE)} of the device"),
        ("FRAGMENTATION", f"{_percent(fragmentation.RESERVED_SHARE)} of what is reserved"),
        ("FRAGMENTATION", f"{_percent(fragmentation.FULL_SHARE)} of the device is reserved"),
        ("HIGH_CPU", f"{_percent(high_cpu.BUSY_SHARE)} on average, of all cores"),
        ("HIGH_CPU", f"{_percent(high_rank_cpu.BUSY_SHARE)} on average"),
        ("HIGH_RAM", f"{_percent(high_ram.WARN_SHARE)} at the worst moment warns"),
        ("HIGH_RAM", f"{_percent(high_ram.CRITICAL_SHARE)} is critical"),
        ("SWAPPING", f"{swapping.BYTES_PER_S // MIB} MiB a second"),
        ("LOW_GPU_UTILIZATION", f"Below {_percent(gpu_utilization.LOW_SHARE)}"),
        ("MODERATE_GPU_UTILIZATION", f"to {_percent(gpu_utilization.MODERATE_SHARE)}"),
        ("UNEVEN_GPU_UTILIZATION", f"{uneven_gpu_utilization.GAP * 100:.0f} points between"),
        ("UNEVEN_GPU_UTILIZATION", f"{uneven_gpu_utilization.WARN_GAP * 100:.0f} points warns"),
        ("HIGH_GPU_MEMORY", f"{_percent(high_gpu_memory.WARN_SHARE)} at the worst moment"),
        ("HIGH_GPU_MEMORY", f"Where {_percent(high_gpu_memory.OTHERS_SHARE)} of the device"),
        ("HIGH_GPU_TEMPERATURE", f"{high_gpu_temperature.WARN_C:g} °C on average"),
        ("HIGH_GPU_TEMPERATURE", f"{high_gpu_temperature.CRITICAL_C:g} °C on average is critical"),
        ("HIGH_GPU_POWER", f"{_percent(high_gpu_power.LIMIT_SHARE)} of the enforced limit"),
        ("GPU_MEMORY_IMBALANCE", f"{_percent(gpu_memory_imbalance.SKEW)} above the median"),
    ],
)
def test_the_text_says_what_the_rule_does(kind: str, words: str) -> None:
    section = re.search(rf"^## {kind}$(.*?)(?=^## )", DOCS, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert words in " ".join(section[1].split())
