"""No rule recommends what a run has on already, or what cannot be."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from counted_runs import ELEMENTWISE, FEW_BLOCKS, TRANSFORMER_FP32, counted
from factories import GIB, flag_steps, make_late, make_run, make_samples, make_waiting, spend
from failing import failed, report, with_loss
from system_facts import DEVICE_BYTES, always, on_host, with_peaks
from traceml.diagnose import settings_advice
from traceml.diagnose.all_rules import all_rules
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.facts.sensors import HostFacts, ProcessFacts
from traceml.model.evidence import EvidenceUnit
from traceml.model.failure import MemoryAtFailure
from traceml.model.record_layout import StepFlag
from traceml.model.settings import Settings
from traceml.store.records import DdpStatistics, RunRecords

NAN = float("nan")
FULL_GPU = {
    "peak_reserved_bytes": int(0.95 * DEVICE_BYTES),
    "peak_allocated_bytes": int(0.9 * DEVICE_BYTES),
}
HELD = MemoryAtFailure(
    tried_bytes=4 * GIB,
    free_bytes=2 * GIB,
    total_bytes=80 * GIB,
    allocated_bytes=70 * GIB,
    reserved_bytes=76 * GIB,
    parameter_bytes=5 * GIB,
    optimizer_bytes=25 * GIB,
)
DDP = DdpStatistics(0.05, 0.03, 100 << 20, 5, has_hook=False)
TALKING = {"ranks": 2, "noise": 0, "communication_ms": 30.0}


def with_ddp(run: RunRecords) -> RunRecords:
    return replace(run, ranks=tuple(replace(rank, ddp=DDP) for rank in run.ranks))


def starved(threads_fit: bool) -> Facts:
    host = HostFacts(samples=10, cores=8.0 if threads_fit else 2.0)
    process = ProcessFacts(0, 10, runqueue_share=always(0.5), cpu_cores=always(1.0))
    return on_host(host, process)


def failing_facts() -> dict[str, Facts]:
    out = report(0, "OutOfMemoryError", "CUDA out of memory.", memory=HELD)
    dry = flag_steps(make_run(gpu=True), StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)
    swap = HostFacts(swap_bytes=always(GIB), swap_bytes_per_s=always(20 << 20), samples=10)
    full = HostFacts(ram_share=always(0.95), ram_bytes=always(30 * GIB), ram_total_bytes=32 * GIB)
    runs = {
        "compute, GPU": make_run(gpu=True),
        "compute, CPU": make_run(),
        "optimizer": make_run(gpu=True, optimizer_ms=80),
        "host-bound": dry,
        "waiting for the device": spend(make_run(gpu=True, noise=0, rest_ms=0.5), "sync", 12),
        "input": make_run(input_ms=80, workers=0),
        "input, workers": make_run(input_ms=80, workers=2, gpu=True),
        "copies": make_run(gpu=True, h2d_ms=30),
        "copies of one rank": make_waiting(
            make_late(make_run(ranks=2, h2d_ms=5, gpu=True), 1, phase="h2d")
        ),
        "communication, DDP": with_ddp(make_run(**TALKING)),
        "communication, collectives": make_run(**TALKING),
        "no number": with_loss([1.0] * 50 + [NAN] * 50),
        "out of memory": failed(out),
    }
    rare = gather(make_run(input_ms=80))
    return {
        **{name: gather(run) for name, run in runs.items()},
        "rare waits": replace(rare, loader=replace(rare.loader, rare_share=0.95)),
        "a full GPU": with_peaks([FULL_GPU]),
        "a full host": on_host(full, ProcessFacts(0, 10, rss_bytes=always(28 * GIB))),
        "swapping": on_host(swap),
        "starved": starved(threads_fit=False),
        "tensor cores idle": counted(TRANSFORMER_FP32),
        "bandwidth-bound": counted(ELEMENTWISE),
        "small kernels": counted(FEW_BLOCKS),
    }


FACTS = failing_facts()
OFF = Settings(
    parameter_dtype="float32",
    autocast_dtype="",
    matmul_precision="highest",
    compile_mode="",
    uses_cuda_graphs=False,
    checkpoints_activations=False,
    optimizer="AdamW",
    optimizer_can_fuse=True,
    optimizer_is_fused=False,
    parallelism="",
    cpu_threads=8,
    accumulation_steps=1,
    channels_last=False,
    cudnn_benchmark=False,
)
ON = {
    "bf16 autocast": ({"autocast_dtype": "bfloat16"}, r"bfloat16 autocast|fp16|TF32"),
    "bf16 parameters": ({"parameter_dtype": "bfloat16"}, r"bfloat16 autocast|fp16|TF32"),
    "fp16 autocast": ({"autocast_dtype": "float16"}, r"bfloat16 autocast|TF32"),
    "TF32": ({"matmul_precision": "high"}, r"TF32"),
    "compiled": (
        {"compile_mode": "default"},
        r"(try|with|by) .*torch\.compile\b|torch\.compile\(mode",
    ),
    "reduce-overhead": ({"compile_mode": "reduce-overhead"}, r"(?<!as )CUDA graphs|mode='reduce"),
    "CUDA graphs": ({"uses_cuda_graphs": True}, r"(?<!as )CUDA graphs"),
    "fused": ({"optimizer_is_fused": True}, r"fused=True"),
    "cannot be fused": (
        {"optimizer": "LBFGS", "optimizer_can_fuse": False, "optimizer_is_fused": False},
        r"fused=True",
    ),
    "checkpointing": ({"checkpoints_activations": True}, r"activation checkpointing"),
    "sharded": ({"parallelism": "FSDP2"}, r"async_op|less often, which|sharded|shard it|no_sync"),
    "one thread": ({"cpu_threads": 1}, r"OMP_NUM_THREADS"),
    "channels_last": ({"channels_last": True, "cudnn_benchmark": True}, r"channels_last|cudnn"),
    "persistent": ({"persistent_workers": True}, r"persistent_workers=True"),
    "accumulating": ({"accumulation_steps": 4}, r"over \d+ micro-batches|over \d+ times"),
}
"""What is on or cannot be, and words that no advice may have then."""


def actions(facts: Facts, settings: Settings) -> list[str]:
    known = replace(facts, settings=settings)
    found = (rule.check(known) for rule in all_rules().checks)
    return [finding.action for finding in found if finding is not None]


@pytest.mark.parametrize("case", ON)
@pytest.mark.parametrize("known", [OFF, Settings()], ids=["all else off", "all else unknown"])
def test_what_is_on_is_not_recommended(case: str, known: Settings) -> None:
    changes, words = ON[case]
    for name, facts in FACTS.items():
        for action in actions(facts, known._replace(**changes)):
            assert not re.search(words, action), f"{name}: {action}"


@pytest.mark.parametrize("case", ON)
@pytest.mark.parametrize("known", [OFF, Settings()], ids=["off", "unknown"])
def test_what_is_off_or_unknown_is_recommended_somewhere(case: str, known: Settings) -> None:
    _, words = ON[case]
    if known == Settings() and case == "channels_last":
        pytest.skip("said only where it is known to be off")
    said = [action for facts in FACTS.values() for action in actions(facts, known)]
    assert any(re.search(words, action) for action in said)


def test_without_workers_nobody_is_told_to_take_fewer() -> None:
    for name in ("a full host", "swapping", "starved", "rare waits", "out of memory"):
        facts = FACTS[name]
        alone = replace(facts, loader=replace(facts.loader, workers=0))
        for action in actions(alone, OFF):
            assert not re.search("fewer workers|prefetch_factor|persistent", action), action


def test_nobody_is_told_to_take_fewer_workers_than_one() -> None:
    for name in ("a full host", "swapping", "starved", "rare waits", "out of memory"):
        facts = FACTS[name]
        one = replace(facts, loader=replace(facts.loader, workers=1))
        for action in actions(one, OFF):
            assert not re.search("fewer workers than [01]", action), action


def test_no_more_workers_than_cores_are_asked_for() -> None:
    samples = tuple(replace(s, host=replace(s.host, cores=4.0)) for s in make_samples(1, 3))
    few = gather(replace(make_run(input_ms=400, workers=2), samples=samples))
    (action,) = [a for a in actions(few, OFF) if "cannot keep up" in a]
    assert "num_workers=4" in action and "4 cores" in action
    all_used = gather(replace(make_run(input_ms=400, workers=4), samples=samples))
    (action,) = [a for a in actions(all_used, OFF) if "cannot keep up" in a]
    assert "num_workers" not in action


def test_no_larger_batch_where_memory_is_full() -> None:
    full = FACTS["a full GPU"]
    for name in ("compute, GPU", "small kernels"):
        facts = replace(FACTS[name], ranks=full.ranks)
        assert actions(facts, OFF)
        for action in actions(facts, OFF):
            assert "larger batch" not in action, action


def test_an_unknown_setting_makes_the_advice_conditional() -> None:
    assert "if forward does not run under autocast yet" in settings_advice.lower_precision(
        Settings()
    )
    assert "if it is not used yet" in settings_advice.compiling(Settings())
    assert "if the optimizer takes it" in settings_advice.fused_optimizer(Settings())


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("default", "CUDA graphs (mode='reduce-overhead' instead of 'default')"),
        ("unknown", "CUDA graphs (torch.compile's mode='reduce-overhead', if it is not set yet)"),
        (
            "backend eager",
            "CUDA graphs (torch.compile's mode='reduce-overhead', not backend eager)",
        ),
        ("backend cudagraphs", ""),
        ("reduce-overhead", ""),
    ],
)
def test_cuda_graphs_are_asked_for_in_terms_of_how_the_model_is_compiled(
    mode: str, said: str
) -> None:
    assert settings_advice.cuda_graphs(OFF._replace(compile_mode=mode)) == said


def test_tf32_is_asked_for_where_float32_arithmetic_does_not_use_it() -> None:
    assert settings_advice.allowing_tf32(OFF) == settings_advice.MATMUL_TF32
    convolutions = OFF._replace(cudnn_tf32=False)
    assert "cudnn.allow_tf32" in settings_advice.allowing_tf32(convolutions)
    assert "cudnn" not in settings_advice.allowing_tf32(convolutions._replace(channels_last=None))
    assert settings_advice.allowing_tf32(OFF._replace(matmul_precision="high")) == ""


@pytest.mark.parametrize(
    ("parts", "said"),
    [((), ""), (("", "a"), "a"), (("a", "", "b"), "a and b"), (("a", "b", "c"), "a, b and c")],
)
def test_options_are_listed_as_people_do(parts: tuple[str, ...], said: str) -> None:
    assert settings_advice.listed(parts) == said


@pytest.mark.parametrize("name", FACTS)
def test_evidence_is_what_its_unit_says(name: str) -> None:
    """Words where it is no number, and a number where there is a unit."""
    found = (rule.check(FACTS[name]) for rule in all_rules().rules)
    pieces = [
        piece for finding in found if finding is not None for piece in finding.evidence.pieces
    ]
    assert pieces
    for piece in pieces:
        is_words = isinstance(piece.value, (str, bool))
        assert piece.value is None or is_words is (piece.unit is EvidenceUnit.WORDS), piece
