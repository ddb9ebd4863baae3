"""The thresholds of memory and machine in the docs are those of the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from traceml.diagnose.rules import (
    fragmentation,
    gpu_memory_imbalance,
    gpu_utilization,
    high_cpu,
    high_gpu_memory,
    high_gpu_power,
    high_gpu_temperature,
    high_pressure,
    high_ram,
    high_rank_cpu,
    imbalance,
    memory_creep,
    swapping,
    uneven_gpu_utilization,
)
from traceml.facts import trend
from traceml.facts.memory import Place

DOCS = (Path(__file__).parents[2] / "docs/diagnoses.md").read_text()
MIB = 1 << 20


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _mib(place: Place) -> str:
    return f"{memory_creep.LEAST_RISE_BYTES[place] // MIB} MiB"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("HIGH_PRESSURE", f"{_percent(high_pressure.WARN_SHARE)} warns"),
        ("HIGH_PRESSURE", f"{_percent(high_pressure.CRITICAL_SHARE)} is critical"),
        ("IMBALANCE", f"{_percent(imbalance.SKEW)} above the median"),
        ("IMBALANCE", f"at least {_percent(imbalance.PRESSURE)} of the capacity"),
        ("CREEP_CONFIRMED", f"at least {trend.FEWEST_READINGS}, over"),
        ("CREEP_CONFIRMED", f"at least {memory_creep.FEWEST_STEPS} steps"),
        ("CREEP_CONFIRMED", f"in {trend.BLOCKS} blocks"),
        ("CREEP_CONFIRMED", f"{trend.CLEAR:g} times the scatter"),
        ("CREEP_CONFIRMED", f"{trend.GOES_ON:g} times the speed of the whole rise"),
        ("CREEP_CONFIRMED", f"{trend.STILL:g} times that speed"),
        ("CREEP_CONFIRMED", f"{_percent(trend.STEADY)} of the blocks"),
        ("CREEP_CONFIRMED", f"{_percent(memory_creep.LEAST_RISE_SHARE)} and {_mib(Place.HOST)}"),
        ("CREEP_CONFIRMED", f"{_mib(Place.WORKERS)} for workers"),
        ("CREEP_CONFIRMED", f"within {memory_creep.CRITICAL_S / 3600:g} hours"),
        ("FRAGMENTATION", f"{fragmentation.LEAST_BYTES >> 30} GiB"),
        ("FRAGMENTATION", f"{_percent(fragmentation.CAPACITY_SHARE)} of the device"),
        ("FRAGMENTATION", f"{_percent(fragmentation.RESERVED_SHARE)} of what is reserved"),
        ("FRAGMENTATION", f"{_percent(fragmentation.FULL_SHARE)} of the device is reserved"),
        ("HIGH_CPU", f"{_percent(high_cpu.BUSY_SHARE)} on average, of all cores"),
        ("HIGH_CPU", f"{_percent(high_rank_cpu.BUSY_SHARE)} on average"),
        ("HIGH_RAM", f"{_percent(high_ram.WARN_SHARE)} at the worst moment warns"),
        ("HIGH_RAM", f"{_percent(high_ram.CRITICAL_SHARE)} is critical"),
        ("SWAPPING", f"{swapping.BYTES_PER_S // MIB} MiB a second"),
        ("LOW_GPU_UTILIZATION", f"Below {_percent(gpu_utilization.LOW_SHARE)}"),
        ("LOW_GPU_UTILIZATION", f"at least {gpu_utilization.FEWEST_SAMPLES} samples"),
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
