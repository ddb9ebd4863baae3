"""Layers of three or more runs: what moved in which of them, on every surface."""

from __future__ import annotations

import msgspec
import pytest

from factories import make_run
from layer_runs import layer_records, with_layers
from traceml.compare.many_runs import Candidate, compare_many, labels_of
from traceml.figures.compared_run import ComparedRun
from traceml.figures.many_runs_page import ManyRuns, many_runs_page
from traceml.summaries.build import build
from traceml.summaries.record import Summary
from traceml.text.many_runs import many_text

OWN_MS = {"": 0.1, **{f"blocks.{n}.{part}": 4.0 for n in range(4) for part in ("attn", "mlp")}}


def trained(changed: dict[str, float] | None = None, saved: int = 1 << 20) -> Summary:
    own = OWN_MS | (changed or {})
    held = {"saved": [saved] * len(own)}
    record = layer_records(forward_ms=own, noise=0.01, steps=12, held=held)
    return build(with_layers(make_run(steps=40), record), 0.0, "0")


def candidates(*runs: Summary) -> list[Candidate]:
    return [Candidate(f"run{place}", run) for place, run in enumerate(runs)]


ATTN = {f"blocks.{n}.attn": 8.0 for n in range(4)}
RUNS = candidates(trained(), trained({"blocks.2.mlp": 9.0}), trained(ATTN), trained(saved=1 << 22))


def test_each_run_has_its_layers_against_the_baseline() -> None:
    found = compare_many(RUNS).layers
    assert found is not None
    rows = {(row.what, row.name): row for row in found.rows}
    assert rows.keys() == {
        ("time", "blocks.*.attn"),
        ("time", "blocks.2.mlp"),
        *(("saved", name) for name in ("blocks.*.attn", "blocks.*.mlp", "")),
    }
    attn = rows["time", "blocks.*.attn"].changes
    assert attn["A"].rhs == pytest.approx(16.0, rel=0.02) and attn["A"].significant is None
    assert attn["C"].delta == pytest.approx(16.0, rel=0.02) and attn["C"].significant
    assert attn["B"].delta == pytest.approx(0.0, abs=0.3) and attn["B"].significant is None
    mlp = rows["time", "blocks.2.mlp"].changes
    assert mlp["B"].significant and not mlp["C"].significant
    saved = rows["saved", "blocks.*.mlp"].changes
    assert saved["D"].delta == 4 * 3 * (1 << 20) and saved["B"].delta == 0
    assert found.time_ms["C"].delta == pytest.approx(16.0, rel=0.03)
    assert found.rows[0].name == "blocks.*.attn", "the largest first"


def test_text_page_and_json_have_the_same_layers() -> None:
    found = compare_many(RUNS)
    text = many_text(found)
    assert "Layers that moved, own time per step, and the change from A:" in text
    assert "blocks.*.attn ×4" in text and "32.1 ms (+100%) *" in text, text
    letters = labels_of([each.summary for each in RUNS])
    runs = tuple(
        ComparedRun(letter, each.name, each.summary, is_served=True)
        for letter, each in zip(letters, RUNS, strict=True)
    )
    page = many_runs_page(ManyRuns(found=found, entries=runs, runs=runs))
    (part,) = [each for each in page.parts if each.id == "layers"]
    rows = {row.name: row.cells for row in part.grids[0].rows}
    assert [cell.tone for cell in rows["blocks.*.attn ×4"]] == [None, None, "crit", None]
    assert rows["blocks.*.attn ×4"][2].text == "32.1 ms"
    assert "All layers" in rows
    document = msgspec.json.decode(msgspec.json.encode(found))
    assert next(row["name"] for row in document["layers"]["rows"]) == "blocks.*.attn"


def test_equal_runs_and_runs_without_layers() -> None:
    same = compare_many(candidates(*(trained() for _ in range(4))))
    assert same.layers is not None and same.layers.rows == ()
    assert "Layers: no layer is shown to take more or less than in A." in many_text(same)
    plain = build(make_run(steps=40), 0.0, "0")
    assert compare_many(candidates(plain, plain, plain)).layers is None
    some = compare_many(candidates(trained(), plain, trained(ATTN))).layers
    assert some is not None and [row.name for row in some.rows] == ["blocks.*.attn"]
    assert some.rows[0].changes["B"].rhs is None


def another_model() -> Summary:
    own = {"stem": 2.0, **{f"stages.{n}": 1.0 for n in range(3)}}
    held = {"parameters": [1 << place for place in range(4)]}
    record = layer_records(forward_ms=own, noise=0.01, steps=12, held=held)
    return build(with_layers(make_run(steps=40), record), 0.0, "0")


@pytest.mark.parametrize("others", [(another_model(),) * 2, (another_model(), trained())])
def test_layers_that_some_runs_alone_have_are_named(others: tuple[Summary, ...]) -> None:
    runs = candidates(trained(), *others)
    found = compare_many(runs)
    text = many_text(found)
    assert found.layers is not None and found.layers.compared["B"] == 0
    assert found.layers.new["B"].names[0] == "stem" and found.layers.gone["B"].layers == 9
    told = " ".join(text.split())
    assert "New in B: 4 layers (stem, stages." in told and "Gone in B: 9 layers (" in told
    none = "Layers: no layer of A is in any of the other runs."
    assert (none in text) == (others[1] is others[0])
    compared = tuple(
        ComparedRun(letter, each.name, each.summary, is_served=True)
        for letter, each in zip("ABC", runs, strict=True)
    )
    page = many_runs_page(ManyRuns(found=found, entries=compared, runs=compared))
    (part,) = [each for each in page.parts if each.id == "layers"]
    assert part.note is not None and "New in B: 4 layers (stem" in part.note
    assert max(map(len, text.splitlines())) <= 100


def test_a_layer_that_a_run_does_not_have_is_not_measured_there() -> None:
    own = {"": 0.1, "embed": 40.0}
    record = layer_records(forward_ms=own, noise=0.01, steps=12)
    other = build(with_layers(make_run(steps=40), record), 0.0, "0")
    found = compare_many(candidates(trained(), trained(ATTN), other)).layers
    assert found is not None
    row = next(row for row in found.rows if row.name == "blocks.*.attn")
    assert row.changes["C"].rhs is None and row.changes["C"].delta is None
