"""A model that had other layers at times: which ones the table is of, what is said of others."""

import json

from traceml.store.layer_records import read_layers
from traceml.store.layer_sets import MAX_NAMED, LayerSet, note_on_end, note_on_others


def layer_set(names, timed, lines=None):
    return LayerSet(
        names=("", *names),
        kinds=("Net", *("Linear" for _ in names)),
        timed=tuple(timed),
        steps=len(timed),
        lines=len(timed) if lines is None else lines,
    )


def test_layers_that_were_added_and_taken_away_are_named_with_the_steps_that_had_them():
    early = layer_set(["stem", "old"], [5, 6])
    most = layer_set(["stem", "blocks.0"], [100, 101, 1_200])
    late = layer_set(["stem", "blocks.0", "blocks.1", "blocks.1.fc"], [2_000])
    assert note_on_others(most, [early, late]) == (
        "The model's layers changed during the run. The times are of the layers that it had in 3 "
        "of the 6 steps looked at, from step 100 to step 1,200. Left out: old (Linear, seen until "
        "step 6), blocks.1 (Linear, seen since step 2,000)."
    )


def test_layers_that_come_and_go_are_named_and_very_many_counted():
    names = [f"branch{number}" for number in range(MAX_NAMED + 2)]
    note = note_on_others(layer_set(["a"], [6, 7]), [layer_set(names, [5, 8])])
    assert "Left out: branch0 (Linear), branch1 (Linear)" in note
    assert note.endswith(" and 2 more.")


def test_where_others_lacked_layers_nothing_is_left_out():
    note = note_on_others(layer_set(["a", "b"], [6, 7]), [layer_set(["a"], [5])])
    assert note.endswith("It had no further layers in other steps.")


def test_sets_without_a_timed_step_need_no_word():
    assert note_on_others(layer_set(["a"], [6]), [layer_set(["b"], [], lines=9)]) is None


def test_of_the_same_layers_and_of_a_run_without_times_nothing_is_said():
    assert note_on_end(layer_set(["a"], [6]), layer_set(["a"], [6])) is None
    assert note_on_end(layer_set(["a", "b"], [6]), layer_set(["a"], [], lines=3)) is None
    assert note_on_end(layer_set(["a"], [], lines=9), layer_set(["b"], [], lines=3)) is None


def test_the_table_is_of_the_layers_that_most_timed_steps_had(tmp_path):
    """However much else was written of others: norms, what they hold."""
    lines = [
        {"set": 1, "names": ["", "teacher"], "kinds": ["Net", "Linear"]},
        {"set": 2, "names": ["", "student"], "kinds": ["Net", "Linear"]},
        *({"set": 1, "step": step, "calls": [1, 1]} for step in (5, 6)),
        *({"set": 2, "step": step, "norms": [None, 1.0]} for step in range(20, 60)),
    ]
    (tmp_path / "layers-7.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (found,) = read_layers(tmp_path)
    assert found.names == ("", "teacher") and found.steps == (5, 6)
    assert found.notes == (
        "The times are of layers that the model had from step 5 to step 6: later it had others "
        "(student), in no timed step.",
    )
    assert found.at_end.names == ("", "student")
