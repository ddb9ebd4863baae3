"""Layers that moved: found where they did, silent where nothing did, and by runs where there are
several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from factories import make_run
from layer_runs import layer_records, with_layers
from traceml.compare.layer_changes import MAX_LISTED
from traceml.compare.pair import compare, compare_groups
from traceml.compare.record import LayerComparison
from traceml.figures.comparison_page import comparison_page
from traceml.summaries.build import build
from traceml.summaries.record import Summary
from traceml.text.comparison import comparison_text
from traceml.text.layer_changes import layer_sentences
from traceml.text.markdown import comparison_markdown

OWN_MS = {
    "": 0.1,
    "embed": 2.0,
    **{f"blocks.{n}.attn": 3.0 for n in range(6)},
    **{f"blocks.{n}.mlp": 5.0 for n in range(6)},
    "head": 4.0,
}


def run_with(own_ms: dict[str, float], noise: float = 0.01, **more: Any) -> Summary:
    record = layer_records(forward_ms=own_ms, noise=noise, steps=more.pop("looked_at", 12), **more)
    return build(with_layers(make_run(steps=40), record), 0.0, "0")


def layers_of(a: Summary, b: Summary) -> LayerComparison:
    found = compare(a, b, ("a", "b")).layers
    assert found is not None
    return found


def test_one_layer_that_takes_longer_is_named_with_its_interval() -> None:
    found = layers_of(run_with(OWN_MS), run_with({**OWN_MS, "blocks.4.mlp": 8.0}))
    assert [(each.name, each.layers) for each in found.moved] == [("blocks.4.mlp", 1)]
    change = found.moved[0].change
    assert change.delta == pytest.approx(3.0, abs=0.2) and change.significant
    assert change.interval is not None and change.interval[0] < 3.0 < change.interval[1]
    assert (found.compared, found.moved_in_all) == (len(OWN_MS), 1)


def test_layers_that_repeat_and_all_move_are_one_change() -> None:
    slower = {name: ms * (1.5 if name.endswith("attn") else 1) for name, ms in OWN_MS.items()}
    found = layers_of(run_with(OWN_MS), run_with(slower))
    assert [(each.name, each.layers) for each in found.moved] == [("blocks.*.attn", 6)]
    assert found.moved[0].change.delta == pytest.approx(9.0, abs=0.3)


def test_layers_of_two_classes_that_differ_in_a_number_alone_are_told_apart() -> None:
    own = {f"model.{n}": 3.0 for n in range(8)} | {"head": 9.0}
    kinds = (*("Linear", "ReLU") * 4, "Linear")

    def run(own_ms: dict[str, float], saved: int) -> Summary:
        held = {"saved": [saved] * 8 + [0]}
        record = replace(layer_records(forward_ms=own_ms, steps=12, held=held), kinds=kinds)
        return build(with_layers(make_run(steps=40), record), 0.0, "0")

    slower = {name: 1.5 * ms for name, ms in own.items()}
    said = comparison_text(compare(run(own, 0), run(slower, 1 << 20), ("a", "b")))
    for kind in ("Linear", "ReLU"):
        assert f"model.* ({kind}) ×4 take 6.0 ms more" in said
        assert f"model.* ({kind}) ×4 hold: saved for backward +4.0 MiB." in said


def test_a_run_and_itself_show_no_layer_that_moved() -> None:
    run = run_with(OWN_MS, held={"saved": [1 << 20] * len(OWN_MS)})
    found = layers_of(run, run)
    assert (found.moved, found.memory, found.renamed, found.notes) == ((), (), (), ())


def test_a_change_within_the_noise_of_the_steps_is_not_listed() -> None:
    found = layers_of(
        run_with(OWN_MS, noise=0.8, looked_at=4),
        run_with({**OWN_MS, "head": 5.5}, noise=0.8, looked_at=4),
    )
    assert found.moved == ()


def test_a_change_below_the_run_to_run_allowance_is_not_listed() -> None:
    found = layers_of(
        run_with(OWN_MS, noise=0.0001), run_with({**OWN_MS, "head": 4.05}, noise=0.0001)
    )
    assert found.moved == ()


def test_swapping_the_sides_mirrors_every_change() -> None:
    a, b = run_with(OWN_MS), run_with({**OWN_MS, "head": 7.0, "embed": 1.0})
    there, back = layers_of(a, b), layers_of(b, a)
    deltas = {each.name: each.change.delta for each in there.moved}
    assert set(deltas) == {"head", "embed"}
    assert {each.name: -(each.change.delta or 0.0) for each in back.moved} == deltas


def test_with_several_runs_the_run_is_the_unit() -> None:
    steady = [run_with({**OWN_MS, "head": 4.0 + 0.01 * n}, noise=0.001) for n in range(4)]
    slower = [run_with({**OWN_MS, "head": 5.0 + 0.01 * n}, noise=0.001) for n in range(4)]
    erratic = [run_with({**OWN_MS, "head": 3.0 + 2.0 * (n % 2)}, noise=0.001) for n in range(4)]
    shown = compare_groups(steady, slower, ("a", "b")).layers
    assert shown is not None and [each.name for each in shown.moved] == ["head"]
    assert shown.moved[0].change.delta == pytest.approx(1.0, abs=0.05)
    doubtful = compare_groups(steady, erratic, ("a", "b")).layers
    assert doubtful is not None and doubtful.moved == ()


def test_memory_is_compared_exactly() -> None:
    before = {"saved": [1 << 20] * len(OWN_MS)}
    after = {"saved": [(1 << 20) * (3 if name == "embed" else 1) for name in OWN_MS]}
    found = layers_of(run_with(OWN_MS, held=before), run_with(OWN_MS, held=after))
    assert [(each.name, each.what) for each in found.memory] == [("embed", "saved")]
    assert found.memory[0].change.delta == 2 << 20 and found.memory[0].change.p is None


def test_new_gone_and_renamed_layers_are_told() -> None:
    def with_size(own_ms: dict[str, float]) -> Summary:
        sizes = {"encoder": 64, "text": 64}
        return run_with(own_ms, held={"parameters": [sizes.get(name, 7) for name in own_ms]})

    a = with_size({"": 1.0, "encoder": 5.0, "old": 2.0, "older": 1.0})
    b = with_size({"": 1.0, "text": 9.0, "adapter": 3.0})
    found = layers_of(a, b)
    assert found.renamed == (("encoder", "text"),)
    assert (found.new.names, found.gone.names) == (("adapter",), ("old", "older"))
    assert found.new.time_ms == pytest.approx(3.0, abs=0.1)
    assert [(each.name, each.was) for each in found.moved] == [("text", "encoder")]


def test_times_of_different_phases_are_not_compared() -> None:
    """Backward is not measured where torch compiles it, or where it goes through earlier steps."""
    both, forward = run_with(OWN_MS, backward_ms=OWN_MS), run_with(OWN_MS)
    for pair, side in (((both, forward), "B"), ((forward, both), "A")):
        found = layers_of(*pair)
        assert found.moved == () and found.time_ms.delta is None
        assert f"Layers have no time in backward in {side}: their times are not" in found.notes[0]


@pytest.mark.parametrize(
    ("without_a", "without_b", "places"),
    [
        (3, 1, "3 of 3 runs of A and 1 of 3 runs of B"),
        (0, 1, "1 of 3 runs of B"),
        (1, 1, "1 of 3 runs of A and 1 of 3 runs of B"),
        (3, 0, "3 of 3 runs of A"),
        (3, 3, None),
        (0, 0, None),
    ],
    ids=["all of A, one of B", "one of B", "one of each", "all of A", "all", "none"],
)
def test_of_several_runs_no_two_with_different_phases_are_compared(
    without_a: int, without_b: int, places: str | None
) -> None:
    both, forward = run_with(OWN_MS, backward_ms=OWN_MS), run_with(OWN_MS)
    a, b = ([forward] * lack + [both] * (3 - lack) for lack in (without_a, without_b))
    found = compare_groups(a, b, ("a", "b")).layers
    assert found is not None and found.moved == ()
    assert (found.time_ms.delta is None) == (places is not None)
    words = f"Layers have no time in backward in {places}: their times are not compared."
    assert found.notes == ((words,) if places else ())


def test_times_of_different_clocks_are_not_compared() -> None:
    found = layers_of(run_with(OWN_MS), run_with({**OWN_MS, "head": 40.0}, clock="gpu"))
    assert found.moved == () and found.time_ms.delta is None
    assert "different clocks" in found.notes[0]


def test_without_a_deep_profile_on_both_sides_nothing_is_said() -> None:
    plain = build(make_run(steps=40), 0.0, "0")
    comparison = compare(plain, run_with(OWN_MS), ("a", "b"))
    assert comparison.layers is None and "Layers" not in comparison_text(comparison)


def test_a_single_step_judges_no_layer_and_says_so() -> None:
    found = layers_of(run_with(OWN_MS, looked_at=1), run_with({**OWN_MS, "head": 40.0}))
    assert found.moved == () and "fewer than two steps" in found.notes[0]


def test_text_markdown_and_page_tell_the_same_layer() -> None:
    a, b = run_with(OWN_MS), run_with({**OWN_MS, "blocks.4.mlp": 8.0})
    comparison = compare(a, b, ("a", "b"))
    text = comparison_text(comparison)
    assert "blocks.4.mlp takes 3.0 ms more (+60%): 5.0 ms → 8.0 ms, 95% CI +" in text
    assert "blocks.4.mlp takes 3.0 ms more" in comparison_markdown(comparison).replace("\\", "")
    part = next(each for each in comparison_page(comparison).parts if each.id == "layers")
    assert part.tables[0].rows[0].cells[:1] == ("blocks.4.mlp",)
    assert part.tables[0].rows[0].tone == "crit"


def test_hostile_names_stay_on_their_line() -> None:
    bad = "a\n\x1b[31m<b>" + "x" * 300
    comparison = compare(run_with({bad: 3.0}), run_with({bad: 9.0}), ("a", "b"))
    text = comparison_text(comparison)
    assert "\x1b" not in text and all(len(line) <= 100 for line in text.splitlines())
    assert "\x1b" not in comparison_markdown(comparison)


def test_many_layers_that_moved_are_cut_to_the_largest_changes() -> None:
    a = run_with({f"layer{n}": 0.01 for n in range(110)})
    b = run_with({f"layer{n}": 1.0 + n / 100 for n in range(110)})
    found = layers_of(a, b)
    assert len(found.moved) == MAX_LISTED and found.moved_in_all == 110
    assert found.moved[0].name == "layer109"
    assert "102 more layers that moved, in the JSON file" in " ".join(
        comparison_text(compare(a, b, ("a", "b"))).split()
    )


def test_a_run_whose_layers_have_no_time_compares_nothing() -> None:
    run = run_with(OWN_MS)
    assert run.layers is not None
    bare = {
        name: structs.replace(each, forward_ms=None) for name, each in run.layers.layers.items()
    }
    empty = structs.replace(run, layers=structs.replace(run.layers, layers=bare))
    found = layers_of(empty, run)
    assert found.moved == () and found.time_ms.delta is None


def test_unrelated_models_have_no_layer_in_common_and_each_side_s_are_named() -> None:
    sizes = {"parameters": [3, 5]}
    a = run_with({"encoder": 2.0, "head": 1.0}, held=sizes)
    b = run_with({"stem": 3.0, "top": 1.0, "tail": 0.5}, held={"parameters": [7, 11, 13]})
    said, lines = layer_sentences(layers_of(a, b))
    assert said.startswith("Layers, by their own time per step (0 compared")
    assert said.endswith("): no layer is on both sides.")
    assert any(each.startswith("New in B: 3 layers (stem, top, tail)") for each in lines)
    assert any(each.startswith("Gone in B: 2 layers (encoder, head)") for each in lines)
