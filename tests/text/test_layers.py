from factories import make_run
from layer_runs import kernel_step, layer_records, with_layers
from traceml.summaries.build import build
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


def test_the_gpu_s_own_record_and_its_kernels_are_told():
    kernels = [("gemm", 12, 8_000_000, 0), ("relu", 3, 1_000_000, -1)]
    record = layer_records(forward_ms={"a": 10.0}, kernels=(kernel_step(9.0, kernels, (9.0,)),))
    lines = layer_lines(summary_of(record).layers)
    assert "  GPU busy 9.0 ms of a step by its own record, in 10 kernels" in lines
    assert lines[-2].split() == ["gemm", "8.0", "ms", "89%", "×12"]


def test_a_run_without_the_deep_profile_has_no_such_lines():
    summary = build(make_run(steps=40), 0.0, "0")
    assert summary.layers is None and "Layers" not in summary_text(summary)


def test_why_nothing_could_be_seen_is_told():
    record = layer_records(steps=0, forward_ms={"a": 1.0}, notes=("it is compiled",))
    assert layer_lines(summary_of(record).layers) == ["  Layers", "  it is compiled"]


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
