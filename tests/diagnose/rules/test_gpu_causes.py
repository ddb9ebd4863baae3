"""The four reasons that a GPU's counters give for COMPUTE_BOUND: one table, by the rule's name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from counted_runs import (
    ELEMENTWISE,
    FEW_BLOCKS,
    LARGE_MATMULS,
    TINY_LAYERS,
    TRANSFORMER_BF16,
    TRANSFORMER_FP32,
    counted,
    counters,
)
from factories import flag_steps, make_run
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Severity
from traceml.model.record_layout import StepFlag
from traceml.model.settings import Settings

FIRES: dict[str, dict[str, Facts]] = {
    "tensor_cores_idle": {
        "a transformer in float32": counted(TRANSFORMER_FP32),
        "just above every line": counted(counters(90, 50.1, 20, 9.9, 25.1, 10)),
    },
    "bandwidth_bound": {
        "elementwise": counted(ELEMENTWISE),
        "the half of a transformer that moves data": counted(TRANSFORMER_BF16),
        "just above the line": counted(counters(90, 80, 40, 35, 2, 35.1)),
    },
    "small_kernels": {
        "few blocks each": counted(FEW_BLOCKS),
        "just above the line": counted(counters(70.1, 35, 10, 5, 5, 5)),
    },
    "near_gpu_limit": {
        "elementwise": counted(ELEMENTWISE),
        "large matrix products": counted(LARGE_MATMULS),
        "tensor cores at the line": counted(counters(99, 90, 20, 60.1, 2, 20)),
        "memory at the line": counted(counters(99, 90, 20, 20, 2, 75.1)),
    },
}

CLEAR = {
    "tensor_cores_idle": TRANSFORMER_FP32,
    "bandwidth_bound": ELEMENTWISE,
    "small_kernels": FEW_BLOCKS,
    "near_gpu_limit": ELEMENTWISE,
}

SILENT: dict[str, dict[str, Facts]] = {
    "tensor_cores_idle": {
        "in bfloat16": counted(TRANSFORMER_BF16),
        "elementwise": counted(ELEMENTWISE),
        "launch-bound": counted(TINY_LAYERS),
        "tensor cores at work": counted(LARGE_MATMULS),
        "small kernels": counted(FEW_BLOCKS),
        "just too little FP32": counted(counters(90, 51, 20, 8, 24, 10)),
        "just too much tensor": counted(counters(90, 51, 20, 10.1, 26, 10)),
        "the SMs wait": counted(counters(90, 49, 20, 8, 26, 10)),
        "tensor cores not counted": counted({**TRANSFORMER_FP32, "tensor_share": None}),
    },
    "bandwidth_bound": {
        "float32 arithmetic": counted(TRANSFORMER_FP32),
        "launch-bound": counted(TINY_LAYERS),
        "large matrix products": counted(LARGE_MATMULS),
        "small kernels": counted(FEW_BLOCKS),
        "just below the line": counted(counters(90, 80, 40, 10, 2, 34)),
        "the tensor cores do more": counted(counters(90, 80, 40, 45, 2, 44)),
        "and very much": counted(counters(90, 80, 40, 51, 2, 60)),
        "memory not counted": counted({**ELEMENTWISE, "dram_share": None}),
    },
    "small_kernels": {
        "a transformer in bfloat16": counted(TRANSFORMER_BF16),
        "low occupancy of busy SMs": counted(TRANSFORMER_FP32),
        "elementwise": counted(ELEMENTWISE),
        "large matrix products": counted(LARGE_MATMULS),
        "launch-bound": counted(TINY_LAYERS),
        "often without a kernel": counted(counters(69, 10, 10, 5, 5, 5)),
        "SMs just busy enough": counted(counters(80, 41, 10, 5, 5, 5)),
        "the host launches too slowly": counted(
            counters(71, 20, 4, 5, 6, 8),
            run=flag_steps(make_run(gpu=True), StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0),
        ),
    },
    "near_gpu_limit": {
        "a transformer in bfloat16": counted(TRANSFORMER_BF16),
        "float32 arithmetic": counted(TRANSFORMER_FP32),
        "launch-bound": counted(TINY_LAYERS),
        "small kernels": counted(FEW_BLOCKS),
        "just below both lines": counted(counters(99, 90, 20, 59, 2, 69)),
    },
}


def check(rule: str, facts: Facts) -> Finding | None:
    found: Finding | None = import_module(f"traceml.diagnose.rules.{rule}").check(facts)
    return found


def cases(table: dict[str, dict[str, Facts]]) -> list[Any]:
    return [
        pytest.param(rule, facts, id=f"{rule}: {name}")
        for rule, runs in table.items()
        for name, facts in runs.items()
    ]


@pytest.mark.parametrize(("rule", "facts"), cases(FIRES))
def test_must_fire(rule: str, facts: Facts) -> None:
    finding = check(rule, facts)
    assert finding is not None
    assert (finding.kind.value.lower(), finding.severity) == (rule, Severity.INFO)
    assert finding.lost_s_per_step is None
    assert finding.evidence["gpu_samples"] == facts.gpu_use.samples


@pytest.mark.parametrize(("rule", "facts"), cases(SILENT))
def test_must_stay_silent(rule: str, facts: Facts) -> None:
    assert check(rule, facts) is None


@pytest.mark.parametrize("rule", CLEAR)
def test_must_stay_silent_without_compute_or_counters(rule: str) -> None:
    """The same counters, but data takes the time, or too few samples were taken, or none."""
    assert check(rule, counted(CLEAR[rule])) is not None
    assert check(rule, counted(CLEAR[rule], run=make_run(gpu=True, input_ms=30))) is None
    assert check(rule, counted(CLEAR[rule], run=make_run(gpu=True, steps=20))) is None
    assert check(rule, gather(make_run(gpu=True))) is None


PLAIN = Settings(
    parameter_dtype="float32",
    autocast_dtype="",
    matmul_precision="highest",
    compile_mode="",
    optimizer="AdamW",
    optimizer_can_fuse=True,
    optimizer_is_fused=False,
)
COMPILED = PLAIN._replace(compile_mode="default")
TUNED = COMPILED._replace(autocast_dtype="bfloat16", optimizer_is_fused=True)


@pytest.mark.parametrize(
    ("rule", "settings", "has", "has_not"),
    [
        ("tensor_cores_idle", Settings(), ["bfloat16", "'high'"], []),
        ("tensor_cores_idle", PLAIN, ["bfloat16", "'high'"], []),
        ("tensor_cores_idle", PLAIN._replace(matmul_precision="high"), ["bfloat16"], ["TF32"]),
        ("tensor_cores_idle", TUNED, ["cast to float32"], ["bfloat16 autocast", "TF32"]),
        ("bandwidth_bound", Settings(), ["torch.compile (if", "bfloat16 autocast (if"], []),
        ("bandwidth_bound", PLAIN, ["torch.compile", "bfloat16", "fused=True", "attention"], []),
        ("bandwidth_bound", TUNED, ["attention"], ["torch.compile", "bfloat16", "fused", ";"]),
        ("small_kernels", PLAIN, ["torch.compile", "larger batch"], []),
        ("small_kernels", COMPILED, ["larger batch", "batched into one"], ["torch.compile"]),
        ("near_gpu_limit", PLAIN, ["fewer bytes", "torch.compile"], []),
        ("near_gpu_limit", COMPILED, ["fewer bytes"], ["torch.compile"]),
    ],
)
def test_it_recommends_what_is_not_on(
    rule: str, settings: Settings, has: list[str], has_not: list[str]
) -> None:
    finding = check(rule, counted(CLEAR[rule], settings=settings))
    assert finding is not None
    assert [words for words in has if words not in finding.action] == []
    assert [words for words in has_not if words in finding.action] == []


@pytest.mark.parametrize(
    ("shares", "limit", "way"),
    [
        (LARGE_MATMULS, "tensor cores compute 78%", "arithmetic"),
        (ELEMENTWISE, "83% of its", "bytes"),
    ],
)
def test_near_the_limit_says_which_and_what_16_bits_still_win(
    shares: dict[str, float | None], limit: str, way: str
) -> None:
    """Tensor cores that are always busy in TF32 do twice as much in bfloat16."""
    for settings, is_advised in ((PLAIN, True), (Settings(), True), (TUNED, False)):
        finding = check("near_gpu_limit", counted(shares, settings=settings))
        assert finding is not None
        assert limit in finding.claim and way in finding.action
        assert ("bfloat16 autocast" in finding.action) is is_advised
        assert ("no setting makes" in finding.claim) is (not is_advised and way == "arithmetic")
