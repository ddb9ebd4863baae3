"""The GPUs' counters in the summary: over the run, and GPU by GPU."""

from __future__ import annotations

import msgspec
import pytest

from counted_runs import TRANSFORMER_BF16
from factories import count_gpus, make_run
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.record import Summary, SystemSummary
from traceml.text.summary import summary_text

NAMES = ("gpu_busy_share", "sm_share", "occupancy", "tensor_share", "fp32_share", "dram_share")


def summary_of(run: RunRecords) -> Summary:
    """As it is written and read again."""
    return msgspec.json.decode(msgspec.json.encode(build(run, 0.0, "1")), type=Summary)


def system_of(run: RunRecords) -> SystemSummary:
    system = summary_of(run).system
    assert system is not None
    return system


def test_shares_are_fractions_with_the_number_of_samples() -> None:
    system = system_of(count_gpus(make_run(2, gpu=True, noise=0), **TRANSFORMER_BF16))
    average = system.global_.average
    assert [average[name] for name in NAMES] == [0.997, 0.88, 0.44, 0.32, 0.02, 0.43]
    assert average["gpu_util_percent"] == pytest.approx(99.7)
    assert average["gpu_counter_samples"] == 2 * 29  # 7.4 s on each of two GPUs
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in system.gpus] == [
        (0, "GPU-0", "NVIDIA H200"),
        (1, "GPU-1", "NVIDIA H200"),
    ]
    for gpu in system.gpus:
        assert [gpu.metrics[name] for name in NAMES] == [0.997, 0.88, 0.44, 0.32, 0.02, 0.43]
        assert gpu.metrics["gpu_counter_samples"] == 29
        assert gpu.metrics["gpu_power_w"] == 500.0
    assert set(NAMES) <= set(system.metadata.section_metric_names)


def test_too_few_samples_are_null() -> None:
    system = system_of(count_gpus(make_run(gpu=True, steps=20), **TRANSFORMER_BF16))
    assert [system.global_.average[name] for name in NAMES] == [None] * len(NAMES)
    assert system.global_.average["gpu_util_percent"] is None
    assert system.gpus[0].metrics["sm_share"] is None
    assert system.gpus[0].metrics["gpu_counter_samples"] == 2


def test_a_run_without_a_gpu_has_none() -> None:
    system = system_of(make_run())
    assert system.gpus == ()
    assert system.global_.average["gpu_counter_samples"] is None


def test_the_text_says_what_the_gpu_did() -> None:
    run = count_gpus(make_run(gpu=True), **TRANSFORMER_BF16)
    text = summary_text(summary_of(run))
    assert "GPU 100% (SM 88%, tensor 32%, FP32 2.0%, DRAM 43%)" in " ".join(text.split())
    assert text.count("BANDWIDTH-BOUND: Much of the GPU's time") == 1
    assert text.index("COMPUTE-BOUND") < text.index("BANDWIDTH-BOUND") < text.index("Where a step")
    assert text.count("Move fewer bytes") == 1 and "bfloat16 autocast and torch.compile" not in text
    slow_input = count_gpus(make_run(gpu=True, input_ms=30), **TRANSFORMER_BF16)
    assert "BANDWIDTH-BOUND" not in summary_text(summary_of(slow_input))
