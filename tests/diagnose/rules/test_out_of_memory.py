"""Out of memory says what was asked for, what is held, and what to try with numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factories import GIB, map_steps
from failing import failed, report, said_goodbye
from layer_runs import layer_records, with_layers
from traceml.diagnose.rules import exception, out_of_memory
from traceml.facts.gather import gather
from traceml.model.failure import FailureReport, MemoryAtFailure
from traceml.model.finding import Finding, Kind, Severity
from traceml.store.layer_records import GrownLayer
from traceml.store.records import RunRecords

MEMORY = MemoryAtFailure(
    tried_bytes=4 * GIB,
    free_bytes=2 * GIB,
    total_bytes=80 * GIB,
    allocated_bytes=70 * GIB,
    reserved_bytes=76 * GIB,
    parameter_bytes=5 * GIB,
    gradient_bytes=5 * GIB,
    optimizer_bytes=10 * GIB,
)


def full(**more: object) -> FailureReport:
    memory = replace(MEMORY, **more)
    return report(0, "OutOfMemoryError", "CUDA out of memory.", memory=memory)


def found(run: RunRecords) -> Finding:
    finding = out_of_memory.check(gather(run))
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(failed(full(), gpu=True), id="on a GPU"),
        pytest.param(
            failed(report(0, "MemoryError", "", memory=MemoryAtFailure(is_host=True))), id="host"
        ),
        pytest.param(
            failed(report(memory=MemoryAtFailure()), gpu=True), id="nothing known but the fact"
        ),
        pytest.param(
            said_goodbye(failed(replace(full(), is_handled=True), gpu=True), 0),
            id="caught, then sys.exit(1)",
        ),
    ],
)
def test_must_fire(run: RunRecords) -> None:
    finding = found(run)
    assert (finding.kind, finding.severity) == (Kind.OUT_OF_MEMORY, Severity.CRITICAL)
    assert exception.check(gather(run)) is None


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(failed(report()), id="another exception"),
        pytest.param(failed(full(), status=0), id="ended well"),
        pytest.param(
            failed(replace(full(), is_handled=True, unix_s=1.0)), id="caught, and trained on"
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert out_of_memory.check(gather(run)) is None


def test_the_claim_names_the_layer_and_the_largest_consumers() -> None:
    claim = found(failed(full(), gpu=True)).claim
    assert "at step 201 in forward, module block.1" in claim
    assert "asked for 4.00 GiB with 2.00 GiB free of 80.0 GiB" in claim
    assert "50.0 GiB activations and the rest, 10.0 GiB optimizer state" in claim
    assert "did not grow" in claim


def test_the_batch_to_try_fits_by_what_activations_take() -> None:
    """50 + 4 GiB of activations for 32 samples, 53.6 GiB left for them: half is the smaller."""
    half = found(failed(full(), gpu=True))
    assert half.evidence["suggested_batch"] == 16
    assert "batch of 16 (it was 32)" in half.action
    tight = found(failed(full(tried_bytes=100 * GIB), gpu=True))
    assert tight.evidence["suggested_batch"] == 11
    shape = found(failed(full(tried_bytes=2561 * GIB), gpu=True))  # 80.03 GiB a sample
    assert "check whether its shape is intended" in shape.action and "batch" not in shape.action
    assert shape.evidence["suggested_batch"] is None
    assert "batch is 1 already" in found(failed(full(), gpu=True, samples=1)).action


def test_what_is_reserved_and_unused_is_the_allocators_matter() -> None:
    assert "expandable_segments" not in found(failed(full(), gpu=True)).action
    fragmented = found(failed(full(allocated_bytes=50 * GIB), gpu=True))
    assert "26.0 GiB are reserved and unused" in fragmented.action


def test_a_growing_curve_asks_for_what_is_kept() -> None:
    def grow(steps: np.ndarray, rank: int) -> None:
        steps["allocated_bytes"] = (10 + np.arange(len(steps))) * GIB

    finding = found(map_steps(failed(full(), gpu=True), grow))
    assert "had grown from 178.0 GiB to 209.0 GiB over the 32 steps before" in finding.claim
    assert "detach()" in finding.action


def with_deep_profile(run: RunRecords, saved_gib: float) -> RunRecords:
    """Four blocks that keep the same for backward, and a head that holds 15 GiB by itself."""
    names = ("", *(name for n in range(4) for name in (f"blocks.{n}", f"blocks.{n}.mlp")), "head")
    saved = [0, *(part for _ in range(4) for part in (0, saved_gib * GIB / 4)), 0]
    held = {
        "parameters": [0] * 9 + [5 * GIB],
        "gradients": [0] * 9 + [5 * GIB],
        "optimizer": [0] * 9 + [5 * GIB],
        "saved": saved,
    }
    return with_layers(run, layer_records(forward_ms=dict.fromkeys(names, 1.0), held=held))


def test_the_deep_profile_names_the_layers_and_the_batch_that_fits() -> None:
    finding = found(with_deep_profile(failed(full(allocated_bytes=78 * GIB), gpu=True), 60.0))
    assert (
        "By layer: blocks.*.mlp (×4) 60.0 GiB (60.0 GiB of it for backward), head 15.0 GiB."
        in finding.claim
    )
    # 92 % of 80 GiB less 15 that stay, of 67 that were needed above them: 0.87 of the batch.
    samples = finding.evidence["samples_per_step"]
    assert finding.evidence["suggested_batch"] == int(samples * (0.92 * 80 - 15) / 67)
    assert finding.evidence["suggested_batch"] > samples / 2
    assert (
        "Activation checkpointing of blocks.* (×4) saves up to 45.0 GiB of 60.0 GiB"
        in finding.action
    )
    assert finding.evidence["checkpoint_block"] == "blocks.*"


def test_few_saved_activations_are_not_worth_checkpointing() -> None:
    run = with_deep_profile(failed(full(), gpu=True), 0.0)
    assert "checkpointing of" not in found(run).action


@pytest.mark.parametrize(("asked_gib", "is_outsized"), [(200, True), (100, False)])
def test_a_tensor_far_larger_than_all_layers_is_looked_at_first(
    asked_gib: int, is_outsized: bool
) -> None:
    """All layers hold 15 GiB and keep 1 GiB: what checkpointing saves of that changes nothing."""
    held = MemoryAtFailure(is_host=True, tried_bytes=asked_gib * GIB)
    failure = report(0, "RuntimeError", "can't allocate memory", module="blocks.1", memory=held)
    action = found(with_deep_profile(failed(failure, sampled_s=0), 1.0)).action
    said = "One tensor is 12 times what all layers hold and keep for backward"
    assert action.startswith(said) is is_outsized
    assert "checkpointing of" not in action


def test_a_snapshot_is_named() -> None:
    saved = replace(full(), snapshot="memory-snapshot-7.pickle")
    assert "memory-snapshot-7.pickle in the run folder" in found(failed(saved, gpu=True)).action


def test_host_memory_that_a_layer_asked_for_is_the_model_s() -> None:
    held = MemoryAtFailure(is_host=True, tried_bytes=GIB)
    finding = found(failed(report(0, "RuntimeError", "can't allocate memory", memory=held)))
    assert "dataset" not in finding.action and "batch" in finding.action


@pytest.mark.parametrize(("per_step_mib", "is_named"), [(2, True), (0.1, False), (20, False)])
def test_a_module_that_filled_the_memory_is_what_to_mend(
    per_step_mib: float, is_named: bool
) -> None:
    """200 steps; the process held 1,000 MiB."""
    held = MemoryAtFailure(is_host=True, tried_bytes=GIB)
    run = failed(report(0, "RuntimeError", "can't allocate memory", memory=held))
    run = map_steps(
        run, lambda steps, rank: steps["rss_bytes"].__setitem__(slice(None), 1000 << 20)
    )
    grown = tuple(
        GrownLayer(
            step, 5, "blocks.2", "Block", int((step - 5) * per_step_mib * (1 << 20)), "kept", 0
        )
        for step in (60, 100)
    )
    record = layer_records(pid=run.ranks[0].rank.pid, forward_ms={"": 1.0}, grown=grown)
    finding = found(with_layers(run, record))
    said = f"blocks.2 keeps {per_step_mib:.1f} MiB more per step in its attribute kept."
    assert (said in finding.claim) is is_named
    assert finding.action.startswith("Empty kept of blocks.2 (Block)") is is_named
    assert ("batch" in finding.action) is not is_named


def ran_out(tried_gib: float, **more: object) -> FailureReport:
    """Memory of the host ran out in a layer; a step has 32 samples."""
    phase = more.pop("phase", "forward")
    held = MemoryAtFailure(is_host=True, tried_bytes=int(tried_gib * GIB), **more)
    return report(0, "RuntimeError", "can't allocate memory", memory=held, phase=phase)


def measured(run: RunRecords, elements: int | None = 320) -> RunRecords:
    """Blocks that keep 1 GiB for backward of a batch of 32, of ten elements a sample."""
    run = with_deep_profile(run, 1.0)
    (layers,) = run.layers
    return with_layers(run, replace(layers, input_elements=elements))


def test_a_batch_that_did_not_fit_in_validation_is_the_one_to_make_smaller() -> None:
    failure = ran_out(16, phase="evaluation", batch_samples=1024, input_elements=10_240)
    finding = found(measured(failed(failure)))
    assert finding.action == "Try a validation batch of 512 (it was 1,024)."
    assert "for backward" not in finding.claim
    evidence = finding.evidence
    assert (evidence["samples_per_step"], evidence["failed_batch"]) == (32, 1024)
    assert evidence["saved_bytes"] == 0


def test_a_validation_batch_that_is_not_known_is_not_taken_for_trainings() -> None:
    finding = found(measured(failed(ran_out(300, phase="evaluation"), sampled_s=0)))
    assert finding.action == "Try half the validation batch."
    assert finding.evidence["suggested_batch"] is None


def test_a_tensor_too_large_for_any_layer_is_looked_at_in_validation_too() -> None:
    failure = ran_out(1000, phase="evaluation", batch_samples=32, input_elements=320)
    action = found(measured(failed(failure, sampled_s=0))).action
    assert action.startswith("One tensor is 62 times what all")
    assert found(measured(failed(failure))).action.startswith(
        "One tensor is more than all there is"
    )


@pytest.mark.parametrize("elements", [320, None])
def test_what_is_kept_for_backward_goes_with_the_batch(elements: int | None) -> None:
    """Eight times the batch keeps eight times as much, by its elements or by its samples."""
    failure = ran_out(2, batch_samples=256, input_elements=2560)
    finding = found(measured(failed(failure), elements))
    said = "By layer, for a batch of 256: head 15.0 GiB, blocks.*.mlp (×4) 8.00 GiB (8.00 GiB of it"
    assert said in finding.claim
    assert "saves up to 6.00 GiB of 8.00 GiB" in finding.action
    assert "Try a batch of 128 (it was 256)" in finding.action


def test_a_step_of_several_batches_is_not_compared_with_one_of_them() -> None:
    finding = found(measured(failed(ran_out(2, batch_samples=8)), None))
    assert "By layer: head 15.0 GiB, blocks.*.mlp (×4) 1.00 GiB" in finding.claim
    assert "Try a batch of 4 (it was 8)" in finding.action


def test_an_evaluation_that_keeps_a_graph_is_told_to_keep_none() -> None:
    failure = ran_out(2, batch_samples=256, input_elements=2560, is_graph_kept=True)
    assert "torch.no_grad()" in found(measured(failed(failure))).action
    assert "torch.no_grad()" not in found(measured(failed(ran_out(2)))).action


AS_LIMIT = {
    "total_bytes": 16 * GIB,
    "free_bytes": GIB // 2,
    "resident_bytes": 9 * GIB,
    "limited_by": "RLIMIT_AS",
    "machine_bytes": 32 * GIB,
}


def resident(run: RunRecords, gib: float) -> RunRecords:
    return map_steps(
        run, lambda steps, rank: steps["rss_bytes"].__setitem__(slice(None), int(gib * GIB))
    )


def test_on_the_host_the_limit_and_what_the_process_had_are_told() -> None:
    finding = found(resident(failed(ran_out(1, **AS_LIMIT)), 3))
    said = "with 512.0 MiB free of the 16.0 GiB of address space that RLIMIT_AS (ulimit -v) allows."
    assert said in finding.claim
    assert "The process had 9.00 GiB resident, 6.00 GiB more than in the steps before." in (
        finding.claim
    )
    assert "Where RLIMIT_AS is lower than intended, raise it." in finding.action
    assert finding.evidence["taken_bytes"] == 6 * GIB


@pytest.mark.parametrize(
    ("sizes_gib", "is_growth"),
    [
        pytest.param(np.linspace(1, 8.9, 200), True, id="in every step"),
        pytest.param(np.full(200, 8.9), False, id="as large from the start"),
        pytest.param(np.r_[1, np.full(199, 8.9)], False, id="loaded in the first step"),
        pytest.param(np.r_[np.full(199, 1), 8.9], False, id="loaded in the last step"),
        pytest.param(np.linspace(8, 8.9, 200), False, id="by little"),
    ],
)
def test_a_process_that_held_more_in_every_step_is_said_to_have_grown(
    sizes_gib: np.ndarray[Any, Any], is_growth: bool
) -> None:
    def grow(steps: Any, _: int) -> None:
        steps["rss_bytes"] = (sizes_gib * GIB).astype(int)

    finding = found(map_steps(failed(ran_out(1, **AS_LIMIT)), grow))
    grown = "It had grown from 1.00 GiB to 8.90 GiB over 200 steps."
    assert (grown in finding.claim) is is_growth
    assert ("keeps more in every step" in finding.action) is is_growth


def test_the_batch_to_try_on_the_host_fits_into_the_limit() -> None:
    """9.5 GiB are there without the batch: 5.22 GiB of 16 are left for what took 7 of them, or with
    the deep profile, which counted 24 and the tensor, for 25."""
    few = {"batch_samples": 256, "input_elements": 2560, **AS_LIMIT}
    run = resident(failed(ran_out(1, **few)), 3)
    assert found(run).evidence["suggested_batch"] == 128
    deep = with_deep_profile(run, 24.0)
    (layers,) = deep.layers
    deep = with_layers(deep, replace(layers, input_elements=2560))
    assert found(deep).evidence["suggested_batch"] == int(256 * (0.92 * 16 - 9.5) / 25)
    assert found(resident(run, 12)).evidence["suggested_batch"] == 1  # the limit was full before


@pytest.mark.parametrize(
    ("machine_gib", "words"),
    [(24, "asked for 1.00 GiB of 24.0 GiB."), (64, "of 24.0 GiB that its cgroup allows.")],
)
def test_without_a_limit_of_its_own_the_total_is_what_the_job_has(
    machine_gib: int, words: str
) -> None:
    run = failed(ran_out(1, machine_bytes=machine_gib * GIB))
    samples = tuple(
        replace(sample, host=replace(sample.host, ram_total_bytes=24 * GIB))
        for sample in run.samples
    )
    assert words in found(replace(run, samples=samples)).claim.replace("the 24", "24")
