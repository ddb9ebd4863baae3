from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_struct

from factories import make_run
from layer_runs import burst_records, kernel_step, layer_records, with_layers
from traceml.summaries.build import build
from traceml.summaries.layer_record import (
    BadValueSummary,
    GradientsSummary,
    LayersSummary,
    LayerSummary,
)
from traceml.text.layers import layer_lines
from traceml.text.summary import summary_text


def summary_of(*records):
    return build(with_layers(make_run(steps=40), *records), 0.0, "0")


def test_layers_that_repeat_are_one_line_and_the_longest_comes_first():
    own = {"": 0.5, "blocks.0.attn": 3.0, "blocks.1.attn": 3.0, "blocks.0.mlp": 1.0, "head": 4.0}
    held = {"saved": [0, 1 << 20, 1 << 20, 0, 1 << 10]}
    lines = layer_lines(
        summary_of(layer_records(forward_ms=own, backward_ms=own, held=held)).layers
    )
    assert lines[0] == "  Layers (own time in 4 steps looked at, CPU clock)"
    assert lines[2].split() == [
        "blocks.*.attn",
        "×2",
        "6.0",
        "ms",
        "6.0",
        "ms",
        "52%",
        "2.0",
        "MiB",
    ]
    assert lines[3].split()[0] == "head"
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("own_ms", "names"),
    [
        pytest.param([1, 1, 9, 1], ["blocks.2", "blocks.* ×3"], id="one of four"),
        pytest.param([1, 1, 2, 1], ["blocks.* ×4"], id="not by far"),
        pytest.param([0, 9, 0, 0], ["blocks.1"], id="the others do nothing"),
        pytest.param([1, 9], ["blocks.* ×2"], id="of two there is no usual one"),
        pytest.param([1, 9, 9], ["blocks.* ×3"], id="most are as slow"),
    ],
)
def test_a_layer_that_is_far_slower_than_those_that_repeat_it_is_named(own_ms, names):
    own = {f"blocks.{n}": float(each) for n, each in enumerate(own_ms)}
    found = layer_lines(summary_of(layer_records(forward_ms=own)).layers)
    rows = [line[2:39].strip() for line in found if line.startswith("  blocks.")]
    assert rows == names


def test_a_layer_that_was_interrupted_once_has_no_row_of_its_own():
    own = {f"blocks.{n}": 1.0 for n in range(4)}
    record = layer_records(forward_ms=own, steps=6)
    record.times_ns["host_forward"][3, 2] = 40e6
    names = [line[2:39].strip() for line in layer_lines(summary_of(record).layers)]
    assert names[2] == "blocks.* ×4"


def test_what_some_of_the_layers_that_repeat_keep_is_not_said_of_all():
    """One of three is not checkpointed."""
    own = dict.fromkeys(("blocks.0", "blocks.1", "blocks.2", "head"), 1.0)
    held = {"saved": [np.nan, np.nan, 2048, 4096]}
    record = replace(
        layer_records(forward_ms=own),
        held_bytes={key: np.array(values) for key, values in held.items()},
    )
    blocks, head = layer_lines(summary_of(record).layers)[2:4]
    assert "KiB" not in blocks and head.endswith("4.0 KiB")


def test_a_phase_that_was_not_measured_has_no_time_and_not_none():
    """As where backward went through an earlier step."""
    own = {"blocks.0": 3.0, "blocks.1": 3.0, "head": 2.0}
    blocks, head = layer_lines(summary_of(layer_records(forward_ms=own)).layers)[2:4]
    assert blocks.split() == ["blocks.*", "×2", "6.0", "ms", "n/a", "75%"]
    assert head.split() == ["head", "2.0", "ms", "n/a", "25%"]


def test_a_star_says_which_class_it_stands_for_where_there_are_several():
    own = {"net.0": 3.0, "net.1": 1.0, "net.2": 3.0, "head.0": 1.0, "head.1": 1.0}
    kinds = ("Linear", "ReLU", "Linear", "Linear", "Linear")
    record = replace(layer_records(forward_ms=own), kinds=kinds)
    names = [line[2:39].strip() for line in layer_lines(summary_of(record).layers)]
    assert names[2:5] == ["net.* (Linear) ×2", "head.* ×2", "net.1"]


def test_what_is_computed_again_stands_beside_the_utilisation():
    layers = LayersSummary(
        steps=8,
        layers={"a": LayerSummary(forward_ms=1.0)},
        forward_ms=1.0,
        flops_per_step=2.88e12,
        recompute_flops_per_step=1.05e12,
        flops_per_s=395.6e12,
        peak_flops_per_s=989e12,
        mfu=0.4,
    )
    said = "  2.88 TFLOP per step, 396 TFLOP/s: 40% of the device's 989 TFLOP/s (MFU)"
    again = "  1.05 TFLOP more are computed again in backward (checkpointing)"
    lines = layer_lines(layers)
    assert lines[lines.index(said) + 1] == again
    assert again not in layer_lines(replace_struct(layers, recompute_flops_per_step=0.0))


def test_how_fast_layers_compute_is_told_of_those_that_do_and_were_counted():
    layers = {
        "blocks.0": LayerSummary(forward_ms=1.0, flops=3e9, flops_per_s=3e12),
        "blocks.1": LayerSummary(forward_ms=3.0, flops=3e9, flops_per_s=1e12),
        "norm": LayerSummary(forward_ms=1.0, flops=0.0, flops_per_s=0.0),
        "own": LayerSummary(forward_ms=1.0),
        "half.0": LayerSummary(forward_ms=1.0, flops=3e9, flops_per_s=3e12),
        "half.1": LayerSummary(forward_ms=1.0),
    }
    lines = layer_lines(LayersSummary(steps=8, layers=layers))
    assert [line for line in lines if "FLOP" in line] == [
        "  operations per second: blocks.* 1.50 TFLOP/s"
    ]


def test_no_sentence_is_cut_or_longer_than_a_line():
    """Times of seconds with their mean, a name of 60 letters, and a long note."""
    name = "model.decoder.layers.11.encoder_attention_layer_norm.weighted"
    layers = LayersSummary(
        steps=8,
        layers={name: LayerSummary(forward_ms=1041.8, backward_ms=1041.8, gradient_norm=0.1234)},
        forward_ms=1041.8,
        rest_forward_ms=108.1,
        mean_forward_ms=1180.4,
        backward_ms=11041.8,
        recompute_ms=1011.3,
        rest_backward_ms=108.1,
        mean_backward_ms=12180.4,
        gradients=GradientsSummary(
            steps=41,
            first_norm=0.2145,
            usual_norm=0.2138,
            last_norm=0.1745,
            last_norm_step=1024,
            bad_value=BadValueSummary(step=1031, phase="forward"),
        ),
        notes=("a note that is longer than one line, " * 4 + "and ends here",),
    )
    lines = layer_lines(layers)
    said = " ".join(line.strip() for line in lines)
    assert max(map(len, lines)) <= 80
    assert "mean of all steps 12,180 ms" in said
    assert "(first 0.2145, last finite 0.1745 at step 1,024) in 41 steps; not finite from" in said
    assert f"largest of a layer: 0.1234, {name[:40]}" in said
    assert said.endswith("and ends here")


def test_the_gpu_s_own_record_and_its_kernels_are_told():
    kernels = [("gemm", 12, 8_000_000, 0), ("relu", 3, 1_000_000, -1)]
    record = layer_records(forward_ms={"a": 10.0}, kernels=(kernel_step(9.0, kernels, (9.0,)),))
    lines = layer_lines(summary_of(record).layers)
    assert "  GPU busy 9.0 ms of a step by its own record, in 10 kernels" in lines
    (gemm,) = [line for line in lines if "gemm" in line]
    assert gemm.split() == ["gemm", "8.0", "ms", "89%", "×12"]


@pytest.mark.parametrize(
    ("copies_ms", "said"),
    [
        ((2.0, 0.5), "; copies 2.0 ms, 0.50 ms of it alone"),
        ((2.0, None), "; copies 2.0 ms"),
        ((0.05, 0.05), ""),
    ],
    ids=["told apart", "by an older version", "hardly any"],
)
def test_copies_are_told_and_how_much_of_them_nothing_hides(copies_ms, said):
    step = kernel_step(9.0, [("gemm", 12, 8_000_000, 0)], (9.0,), copies_ms=copies_ms)
    found = summary_of(layer_records(forward_ms={"a": 10.0}, kernels=(step,))).layers
    assert found.activity.copies_alone_ms == copies_ms[1]
    lines = layer_lines(found)
    (at,) = [number for number, line in enumerate(lines) if "by its own record" in line]
    whole = " ".join(line.strip() for line in lines[at:-1])
    assert whole.startswith(f"GPU busy 9.0 ms of a step by its own record, in 10 kernels{said}")
    assert max(map(len, lines)) <= 80


def test_a_run_without_the_deep_profile_has_no_such_lines():
    summary = build(make_run(steps=40), 0.0, "0")
    assert summary.layers is None and "Layers" not in summary_text(summary)


def test_why_nothing_could_be_seen_is_told():
    record = layer_records(steps=0, forward_ms={"a": 1.0}, notes=("it is compiled",))
    assert layer_lines(summary_of(record).layers) == ["  Layers", "  it is compiled"]


def compiled_blocks():
    """Two compiled blocks with two layers each, and an eager layer that calls what is compiled."""
    own = {"": 1.0, "head": 2.0}
    for name in ("blocks.0", "blocks.1"):
        own |= {name: 4.0, f"{name}.attn": 0.0, f"{name}.mlp": 0.0}
    record = layer_records(
        forward_ms=own,
        backward_ms=own,
        held={"saved": [8] * len(own), "parameters": [4] * len(own)},
        compiled=frozenset({2, 5}),
        calls_compiled=frozenset({1}),
    )
    record.calls[:, [3, 4, 6, 7]] = 0
    return record


def test_layers_inside_compiled_code_are_told_and_have_no_time():
    found = summary_of(compiled_blocks()).layers
    assert {name: layer.compiled for name, layer in found.layers.items() if layer.compiled} == {
        "head": "partly",
        **{f"blocks.{n}": "whole" for n in (0, 1)},
        **{f"blocks.{n}.{part}": "inside" for n in (0, 1) for part in ("attn", "mlp")},
    }
    inside = found.layers["blocks.0.attn"]
    assert (inside.forward_ms, inside.total_ms, inside.saved_bytes) == (None, None, None)
    assert inside.parameters_bytes == 4
    assert found.layers["blocks.0"].total_ms == 8.0 and found.forward_ms == 11.0
    lines = layer_lines(found)
    assert [line for line in lines if "compiled" in line or "inside" in line] == [
        "  compiled, measured as a whole: blocks.*",
        "  with compiled functions in their own time: head",
        "  4 layers inside are not seen one by one; TORCH_COMPILE_DISABLE=1 shows them",
    ]
    assert not any("attn" in line for line in lines)


def test_hostile_names_stay_on_their_line():
    own = {"a\n\x1b[31mred" + "x" * 300: 3.0}
    text = summary_text(summary_of(layer_records(forward_ms=own)))
    assert "\x1b" not in text and all(len(line) <= 80 for line in text.splitlines())


def test_a_rank_that_is_slow_in_one_layer_is_named():
    def lines_of(slow_ms):
        records = [
            layer_records(
                pid=rank.rank.pid,
                forward_ms={"": 1.0, "block.attn": slow_ms if rank.rank.rank == 2 else 4.0},
            )
            for rank in run.ranks
        ]
        return layer_lines(build(with_layers(run, *records), 0.0, "0").layers)

    run = make_run(ranks=4, steps=40)
    said = "  rank 2 takes 9.0 ms, the median rank 4.0 ms, in block.attn"
    assert said in lines_of(9.0)
    assert not any("median rank" in line for line in lines_of(4.2))


def test_of_two_ranks_the_other_one_is_named():
    run = make_run(ranks=2, steps=40)
    records = [
        layer_records(pid=rank.rank.pid, forward_ms={"a": 1.0, "b": 14.3 + 14 * rank.rank.rank})
        for rank in run.ranks
    ]
    lines = layer_lines(build(with_layers(run, *records), 0.0, "0").layers)
    assert "  rank 1 takes 28.3 ms, rank 0 14.3 ms, in b" in lines


def test_waiting_for_other_ranks_is_told_beside_the_times_of_layers_and_where():
    own = {f"blocks.{n}": 1.0 for n in range(4)} | {"head": 2.0}
    record = layer_records(forward_ms=own)
    record.times_ns["host_communication"] = np.tile([8e6] * 4 + [1e3], (4, 1))
    record.outside_ns["host_communication"] = np.full(4, 9e6)
    found = summary_of(record).layers
    assert (found.forward_ms, found.communication_ms, found.rest_communication_ms) == (6, 32.001, 9)
    said = "communication 41.0 ms beside these times: 32.0 ms in blocks.* ×4, 9.0 ms in no layer"
    assert said in " ".join(line.strip() for line in layer_lines(found))
    assert not any("communication" in line for line in layer_lines(alone_of(own)))


def alone_of(own):
    return summary_of(layer_records(forward_ms=own)).layers


def test_layers_and_the_rest_of_each_phase_are_told_beside_the_mean_of_all_steps():
    own = {"": 0.5, "block": 3.5}
    outside = {"host_forward": np.full(4, 1e6), "host_backward": np.full(4, np.nan)}
    record = layer_records(forward_ms=own, backward_ms=own, outside_ns=outside)
    found = summary_of(record).layers
    assert (found.forward_ms, found.rest_forward_ms, found.rest_backward_ms) == (4.0, 1.0, None)
    told = [line for line in layer_lines(found) if "in layers" in line]
    mean = f"{found.mean_forward_ms:.1f} ms"
    assert told == [f"  forward 5.0 ms: 4.0 ms in layers, 1.0 ms rest; mean of all steps {mean}"]


def test_layers_that_are_slow_on_one_rank_or_became_slow_are_told_and_fit():
    run = make_run(4, 40)
    long = "model.encoder.blocks.11.attention.self.query_projection_of_a_long_name"
    own = {long: 3.0, **{f"blocks.{n}": 2.0 for n in range(8)}}
    records = [
        burst_records(each.rank.pid, 24, own_ms=own, slow={long: 2.0} if number == 3 else None)
        for number, each in enumerate(run.ranks)
    ]
    records[0].times_ns["host_forward"][24:, 4] *= 2.0
    lines = layer_lines(build(with_layers(run, *records), 0.0, "0").layers)
    (slow,) = [line for line in lines if line.startswith("  rank 3 takes")]
    assert "×) what the others take, in model.encoder" in slow
    (slowed,) = [line for line in lines if line.startswith("  since step 161 rank 0 takes")]
    assert slowed.endswith(" for blocks.3")
    assert all(len(line) <= 80 for line in lines)


def test_layers_of_two_classes_that_differ_in_a_number_alone_are_told_apart():
    own = {f"model.{n}": 3.0 if n % 2 == 0 else 1.0 for n in range(5)} | {"head": 0.5}
    kinds = ("Linear", "ReLU", "Linear", "ReLU", "Linear", "Linear")
    lines = layer_lines(summary_of(replace(layer_records(forward_ms=own), kinds=kinds)).layers)
    names = [line.split("  ")[1] for line in lines[2:5]]
    assert names == ["model.* (Linear) ×3", "model.* (ReLU) ×2", "head"]
