"""What changed between two texts, logs or files of samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.compare import text_changes
from traceml.compare.sample_changes import compare_samples
from traceml.compare.text_changes import compare_logs, compare_texts, normalised_line, word_diff


def sides(parts):
    lhs = "".join(part.text for part in parts if part.op != "added")
    rhs = "".join(part.text for part in parts if part.op != "removed")
    return lhs, rhs


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_word_diff_holds_both_texts(a, b):
    assert sides(word_diff(a, b)) == (a, b)


@given(st.text(max_size=60))
def test_a_text_is_the_same_as_itself(text):
    found = compare_texts(text, text)
    assert (found.removed, found.added, found.hunks) == (0, 0, ())


def test_one_word_in_one_line():
    found = compare_texts("a\nthe quick fox\nz\n", "a\nthe slow fox\nz\n")
    (hunk,) = found.hunks
    assert (found.removed, found.added, hunk.lhs_line) == (1, 1, 2)
    assert [(part.op, part.text) for part in hunk.parts] == [
        ("same", "the "),
        ("removed", "quick"),
        ("added", "slow"),
        ("same", " fox"),
    ]


def test_lines_that_one_side_has_alone():
    found = compare_texts("a\nb\nc", "a\nc\nd")
    assert [(hunk.lhs_line, hunk.rhs_line) for hunk in found.hunks] == [(2, 2), (4, 3)]
    assert [part.op for hunk in found.hunks for part in hunk.parts] == ["removed", "added"]


def test_very_many_differences_are_compared_without_their_order(monkeypatch):
    monkeypatch.setattr(text_changes, "MAX_ORDERED_LINES", 10)
    a = [f"line {number}" for number in range(100)]
    b = [*reversed(a[1:]), "new"]
    found = compare_texts("\n".join(a), "\n".join(b))
    assert not found.in_order
    assert (found.removed, found.added) == (1, 1)
    assert [hunk.parts[0].text for hunk in found.hunks] == ["line 0", "new"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("2026-01-02 03:04:05,123 INFO step 7", "2027-12-31 23:59:59,999 INFO step 812"),
        ("loss=0.5123 lr=1e-4", "loss=2.25 lr=3.5e-05"),
        ("at 0x7f3a object", "at 0x99aa12 object"),
        ("took 1:02:03 [00:12<01:00]", "took 11:22:33 [01:12<00:30]"),
        ("100%|██████████| 5/5", "3%|█▌| 5/9"),
        ("2026-01-02T03:04:05Z up", "2026-05-06T07:08:09Z up"),
    ],
)
def test_times_and_numbers_of_logs_count_as_equal(a, b):
    assert normalised_line(a) == normalised_line(b)
    assert compare_logs(a, b).hunks == ()


@pytest.mark.parametrize(
    ("a", "b"), [("loss is nan", "loss is inf"), ("layer_a", "layer_b"), ("ERROR 1", "INFO 1")]
)
def test_words_of_logs_count(a, b):
    assert len(compare_logs(a, b).hunks) == 1


def test_of_a_progress_bar_its_last_state_counts():
    a = "10%|█ | 1/9\r50%|███ | 5/9\rdone\n"
    assert compare_logs(a, "done\n").hunks == ()


def test_a_log_shows_the_lines_as_they_are():
    (hunk,) = compare_logs(
        "step 1\nstep 2\n", "step 9\nWARNING: 17 batches skipped\nstep 3\n"
    ).hunks
    assert [part.text for part in hunk.parts] == ["WARNING: 17 batches skipped"]


def record(prompt, text):
    return {"prompt": prompt, "text": text}


def test_samples_are_paired_by_prompt_in_any_order():
    a = [record("one", "a b c"), record("two", "same"), record("old", "x")]
    b = [record("two", "same"), record("one", "a X c"), record("new", "y")]
    found = compare_samples(a, b)
    assert (found.paired_by, found.paired, found.same) == ("prompt", 2, 1)
    assert (found.only_lhs, found.only_rhs) == (1, 1)
    (sample,) = found.samples
    assert (sample.prompt, sides(sample.parts)) == ("one", ("a b c", "a X c"))


def test_a_prompt_that_comes_again_is_paired_in_its_order():
    a = [record("p", "1"), record("p", "2")]
    b = [record("p", "1"), record("p", "3")]
    (sample,) = compare_samples(a, b).samples
    assert sample.prompt == "p (2)"


def test_without_prompts_samples_are_paired_by_line():
    found = compare_samples([{"output": "a"}], [{"output": "b"}])
    assert (found.paired_by, found.samples[0].prompt) == ("line", "line 1")


def test_records_without_a_text_are_no_samples():
    assert compare_samples([{"step": 1}], [{"step": 2}]) is None
