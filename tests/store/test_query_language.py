"""Filters: what they mean, and where an error points."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.model.printable import terminal_width
from traceml.model.run_values import RunValue, holds
from traceml.store.index_segments import SegmentBuilder
from traceml.store.query_language import (
    AllOf,
    AnyOf,
    Condition,
    Negation,
    QueryError,
    QueryNode,
    parse_filter,
    parse_name,
    split_names,
    written_name,
)
from traceml.store.query_names import KnownColumns, column_key, resolve_filter, written_key
from traceml.store.run_table import RunTable

FACTS = ("name", "status", "step_time_ms", "duration_s", "started", "peak_memory_bytes", "tags")

RUNS: dict[str, dict[str, RunValue]] = {
    "a": {
        "facts.status": "finished",
        "facts.step_time_ms": 40.0,
        "facts.started": 1_794_787_200.0,
        "facts.duration_s": 7200.0,
        "facts.peak_memory_bytes": 3 << 30,
        "facts.tags": ("good", "baseline"),
        "params.learning_rate": 0.01,
        "params.optimizer": "adam",
        "params.seed": 3,
        "params.amp": True,
        "metrics.val/loss": 0.5,
        "min.val/loss": 0.25,
        "best.val/loss": 0.25,
        "metrics.accuracy": 0.9,
        "max.accuracy": 0.95,
        "best.accuracy": 0.95,
        "metrics.accuracy[cat]": 0.9,
        "metrics.accuracy[New York, v1.2]": 0.7,
    },
    "b": {
        "facts.status": "failed",
        "facts.step_time_ms": 60.0,
        "facts.started": 1_794_000_000.0,
        "params.learning_rate": "0.001",
        "params.optimizer": "SGD momentum",
        "params.amp": False,
        "metrics.val/loss": math.nan,
        "metrics.odd name (%)": 1.0,
        "metrics.accuracy[cat]": 0.5,
    },
    "c": {"facts.status": "live", "params.learning_rate": "auto", "metrics.val/loss": math.inf},
}


def table_of(runs: dict[str, dict[str, RunValue]], segments: int = 1) -> RunTable:
    builders = [SegmentBuilder() for _ in range(segments)]
    for place, (name, values) in enumerate(runs.items()):
        builders[place % segments].add(name, (place,), values)
    parts = [builder.segment() for builder in builders]
    return RunTable([(part, _all(part)) for part in parts])


def _all(part: Any) -> Any:
    import numpy as np

    return np.ones(len(part.names), bool)


def found(text: str, runs: dict[str, dict[str, RunValue]] = RUNS, segments: int = 1) -> set[str]:
    table = table_of(runs, segments)
    node = resolve_filter(parse_filter(text), KnownColumns(table.keys, FACTS))
    return set(table.names(table.select(node)))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('status = "finished"', "a"),
        ("status = 'finished'", "a"),
        ('status == "finished"', "a"),
        ('STATUS = "x" or learning_rate > 0.005', None),
        ('status = "x" OR learning_rate > 0.005', "a"),
        ("learning_rate < 0.005", "b"),  # a text that is a number counts as one
        ('learning_rate = "auto"', "c"),
        ("learning_rate = 1e-3", "b"),
        ('learning_rate = "0.01"', "a"),
        ("learning_rate != 0.01", "bc"),
        ("seed != 4", "a"),  # a run without the value is in neither
        ("seed = 4", ""),
        ("not seed = 4", "abc"),
        ("params.seed is missing", "bc"),
        ("params.seed is not missing", "a"),
        ("params.nobody_has_this is missing", "abc"),
        ('optimizer in ("adam", "adamw")', "a"),
        ('optimizer not in ("adam", "adamw")', "b"),
        ('optimizer contains "MOMENTUM"', "b"),
        ('optimizer not contains "adam"', "b"),
        ('optimizer matches "sgd*"', "b"),
        ('tags contains "good"', "a"),
        ('tags contains "goo"', ""),
        ('tags in ("x", "baseline")', "a"),
        ('tags matches "base*"', "a"),
        ('tags != "good"', ""),
        ("amp = true", "a"),
        ("amp = false", "b"),
        ('metrics."val/loss" < 1', "a"),
        ("metrics.val/loss < 1", "a"),
        ("val/loss < 1", "a"),
        ('"val/loss" < 1', "a"),
        ("val/loss = nan", "b"),
        ("val/loss != nan", "ac"),
        ("val/loss > 1e308", "c"),
        ("val/loss = inf", "c"),
        ("val/loss > -inf", "ac"),
        ('metrics."val/loss".min = 0.25', "a"),
        ("val/loss.best = 0.25", "a"),
        ("accuracy.best = 0.95", "a"),
        ("accuracy.last = 0.9", "a"),
        ('metrics."odd name (%)" = 1', "b"),
        ("accuracy[cat] > 0.6", "a"),
        ("metrics.accuracy[cat] < 0.6 and amp = false", "b"),
        ('metrics."accuracy[cat]" < 0.6', "b"),
        ("accuracy[cat].last = 0.5", "b"),
        ("accuracy[New York, v1.2] < 0.8", "a"),
        ("step_time_ms < 0.05s", "a"),
        ("step_time_ms >= 60ms", "b"),
        ("duration_s = 2h", "a"),
        ("duration_s < 1d", "a"),
        ("duration_s < 121 min and seed in (3, 4)", "a"),
        ("(peak_memory_bytes > 2 GiB)", "a"),
        ("peak_memory_bytes > 2GiB", "a"),
        ("peak_memory_bytes > 3.5GB", ""),
        ('started > "2026-11-10T00:00:00+00:00"', "a"),
        ('started <= "2026-11-10T00:00:00Z"', "b"),
        ("(seed = 3 or amp = false) and not status = 'failed'", "a"),
        ("facts.status = 'live'", "c"),
    ],
)
def test_a_filter_selects(text: str, names: str | None):
    if names is None:  # names are case sensitive, words are not
        with pytest.raises(QueryError):
            found(text)
        return
    assert found(text) == set(names)


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("", 0, "expected a name"),
        ("status", 6, "expected =, !="),
        ("status =", 8, "expected a value after '='"),
        ("status = finished", 9, 'put text in quotes: "finished"'),
        ("status = 'finished", 9, "not closed"),
        ("status = 'a' and", 16, "expected a name"),
        ("status = 'a' status = 'b'", 13, "expected 'and', 'or' or the end"),
        ("(status = 'a'", 13, "expected ')'"),
        ("status = 'a')", 12, "expected 'and', 'or' or the end"),
        ("status && 3", 7, "write 'and' for '&&'"),
        ("! status = 3", 0, "write 'not' for '!'"),
        ("seed => 3", 5, "write '>=' for '=>'"),
        ("seed =< 3", 5, "write '<=' for '=<'"),
        ("status is nothing", 10, "'missing'"),
        ("status in 'a'", 10, "values in parentheses"),
        ("status in ('a' 'b')", 15, "',' or ')'"),
        ("status contains 3", 16, "a text in quotes"),
        ("status not = 3", 11, "after 'not'"),
        ("status ? 3", 7, "'?' is not understood"),
        ("step_time_ms < 3 weeks", 17, "found 'weeks'"),
        ("step_time_ms < 3weeks", 16, "'weeks' is no unit"),
        ("step_time_ms < 3GiB", 15, "no unit of size"),
        ("seed < 3ms", 7, "no unit of time"),
        ("started > 'yesterday'", 0, "no date"),
        ("stauts = 'a'", 0, "did you mean status"),
        ("status = 'a' and learnin_rate > 3", 17, "did you mean params.learning_rate"),
        ("loss > 3", 0, "did you mean metrics.val/loss"),
        ("step_time > 3", 0, "did you mean step_time_ms"),
        ("metrics.seed > 3", 0, "did you mean params.seed"),
        ("val/los > 3", 0, "did you mean metrics.val/loss"),
        ("los > 3", 0, "did you mean metrics.val/loss"),
        (
            "nothing_like_it > 3",
            0,
            "no run has 'nothing_like_it'; there are params.amp, params.seed, ",
        ),
        ("params.zzz > 3", 0, "no run has 'params.zzz'; there are params.amp, params.seed, "),
        ("params.seeed != 3", 0, "did you mean params.seed"),
        ('metrics."odd name (%)".best > 3', 0, "cannot be told from its name"),
        ("accuracy[cta] > 3", 0, "did you mean metrics.accuracy[cat]"),
        ("accuracy[cat].min > 3", 0, "the last one alone"),
        ("accuracy[cat].best > 3", 0, "the last one alone"),
        ("accuracy[cat > 3", 8, "'[' is not understood"),
        ("accuracy[] > 3", 8, "'[' is not understood"),
        ("(" * 200, 100, "nested"),
        ("not " * 200 + "seed = 3", 400, "nested"),
        ("seed = 3" + " or seed = 3" * 4000, 20_000, "longer than"),
    ],
)
def test_an_error_points_at_the_place(text: str, at: int, words: str):
    with pytest.raises(QueryError) as raised:
        found(text)
    assert raised.value.at == at
    assert words in raised.value.problem
    _, shown, pointer = str(raised.value).split("\n")
    column = pointer.index("^")
    if at < len(text) and not shown.strip().startswith("…"):
        assert shown[column] == text[at]


def test_an_error_points_at_the_place_after_letters_that_are_two_columns_wide():
    with pytest.raises(QueryError) as raised:
        found("status = '日本' and seed >")
    _, shown, pointer = str(raised.value).split("\n")
    assert terminal_width(pointer[:-1]) == terminal_width(shown) == len(shown) + 2


def test_a_name_that_means_several_things_is_an_error_that_names_them():
    runs: dict[str, dict[str, RunValue]] = {
        "a": {"params.loss": "mse", "metrics.loss": 1.0, "facts.status": "x", "params.status": 1}
    }
    with pytest.raises(QueryError, match=r"'loss' may be params\.loss, metrics\.loss"):
        found("loss = 1", runs)
    with pytest.raises(QueryError, match=r"'status' may be facts\.status, params\.status"):
        found("status = 1", runs)
    assert found("metrics.loss = 1 and facts.status = 'x'", runs) == {"a"}


def test_a_metric_that_is_called_like_an_extreme_is_itself():
    runs: dict[str, dict[str, RunValue]] = {
        "a": {"metrics.loss": 3.0, "min.loss": 1.0, "metrics.loss.min": 2.0}
    }
    assert found("metrics.loss.min = 2", runs) == {"a"}


def test_without_any_run_every_name_is_unknown_and_none_is_an_error():
    assert found("anything > 3 and metrics.x = 1", {}) == set()


NAMES = st.one_of(
    st.sampled_from(["lr", "val/loss", "a.b", "naïve", "損失", "top-5", "x" * 200, "in", "not"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
)
TEXTS = st.sampled_from(
    ["", "adam", "AdamW", "0.1", "1e-3", "nan", "true", "a'b\"c\\d", "x*[y]", "ß"]
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 3, 0.1, 1e308, -1e308, math.nan, math.inf, -math.inf, 1 << 60]),
    st.floats(),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
VALUES = st.one_of(
    NUMBERS,
    NUMBERS,
    TEXTS,
    st.booleans(),
    st.lists(TEXTS, max_size=3).map(tuple),
)
KEYS = ("params.lr", "params.odd name", "metrics.val/loss", "facts.tags")


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else repr(float(value))  # type: ignore[arg-type]


SECTION_NAMES = st.sampled_from(KEYS).map(lambda key: written_key(key, is_full=True))
WANTED = st.one_of(NUMBERS.map(float), TEXTS, st.booleans())
CONDITIONS = st.one_of(
    st.builds(
        lambda name, sign, wanted: f"{name} {sign} {literal(wanted)}",
        SECTION_NAMES,
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        WANTED,
    ),
    st.builds(
        lambda name, no, wanted: f"{name} {no}in ({', '.join(map(literal, wanted))})",
        SECTION_NAMES,
        st.sampled_from(["", "not "]),
        st.lists(WANTED, min_size=1, max_size=3),
    ),
    st.builds(
        lambda name, word, wanted: f"{name} {word} {quoted(wanted)}",
        SECTION_NAMES,
        st.sampled_from(["contains", "matches", "not contains", "not matches"]),
        TEXTS,
    ),
    st.builds(
        lambda name, no: f"{name} is {no}missing", SECTION_NAMES, st.sampled_from(["", "not "])
    ),
)
FILTERS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=6,
)
RECORDS = st.lists(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=len(KEYS)), min_size=1, max_size=8
)


def passes(node: QueryNode, record: dict[str, RunValue]) -> bool:
    """The same by hand: one run at a time, one value at a time."""
    if isinstance(node, Condition):
        wanted = [each for each in node.wanted if not hasattr(each, "unit")]
        return holds(record.get(column_key(node)), node.test, wanted)  # type: ignore[arg-type]
    if isinstance(node, Negation):
        return not passes(node.part, record)
    each = (passes(part, record) for part in node.parts)
    return all(each) if isinstance(node, AllOf) else any(each)


@given(records=RECORDS, text=FILTERS, segments=st.integers(1, 3))
def test_columns_answer_as_the_records_do(
    records: list[dict[str, RunValue]], text: str, segments: int
):
    runs = {f"run-{place}": record for place, record in enumerate(records)}
    table = table_of(runs, min(segments, len(runs)))
    known = KnownColumns({*table.keys, *KEYS}, FACTS)  # all names are known in some other run
    node = resolve_filter(parse_filter(text), known)
    assert isinstance(node, Condition | Negation | AllOf | AnyOf)
    expected = {name for name, record in runs.items() if passes(node, record)}
    assert set(table.names(table.select(node))) == expected


@given(records=RECORDS, key=st.sampled_from(KEYS), segments=st.integers(1, 3))
def test_a_column_gives_back_what_was_put_in(
    records: list[dict[str, RunValue]], key: str, segments: int
):
    runs = {f"run-{place}": record for place, record in enumerate(records)}
    table = table_of(runs, min(segments, len(runs)))
    rows = table.select()
    for name, value in zip(table.names(rows), table.read(rows, key), strict=True):
        was = runs[name].get(key)
        assert value == was or (value != value and was != was)
        assert isinstance(value, bool) == isinstance(was, bool)


@given(
    records=RECORDS, keys=st.lists(st.sampled_from(KEYS), max_size=3), segments=st.integers(1, 3)
)
def test_runs_are_in_one_group_where_they_have_the_same(
    records: list[dict[str, RunValue]], keys: list[str], segments: int
):
    runs = {f"run-{place}": record for place, record in enumerate(records)}
    table = table_of(runs, min(segments, len(runs)))
    rows = table.select()
    numbers = table.group_numbers(rows, keys).tolist()
    found = list(zip(table.names(rows), numbers, strict=True))
    for one, group in found:
        for other, its_group in found:
            same = all(_is_same(runs[one].get(key), runs[other].get(key)) for key in keys)
            assert (group == its_group) == same
    assert max(numbers) + 1 == len(set(numbers))


def _is_same(one: RunValue | None, other: RunValue | None) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return isinstance(one, bool) == isinstance(other, bool) and one == other


@given(records=RECORDS, key=st.sampled_from(KEYS), descending=st.booleans())
def test_sorted_runs_are_in_order_and_the_missing_ones_last(
    records: list[dict[str, RunValue]], key: str, descending: bool
):
    runs = {f"run-{place}": record for place, record in enumerate(records)}
    table = table_of(runs, min(2, len(runs)))
    values = table.read(table.sort(table.select(), key, descending), key)
    is_known = [value is not None for value in values]
    assert is_known == sorted(is_known, reverse=True)
    numbers = [
        value
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value
    ]
    assert list(map(float, numbers)) == sorted(map(float, numbers), reverse=descending)


@given(name=NAMES, section=st.sampled_from(["params", "metrics"]))
def test_every_name_can_be_written_in_a_filter(name: str, section: str):
    written = written_name(section, name)
    node = parse_filter(f"{written} = 3")
    assert isinstance(node, Condition)
    assert (node.name.section, node.name.name) == (section, name)
    alone = parse_name(written)
    assert (alone.section, alone.name) == (section, name)


@given(st.text(st.sampled_from("ab.\"'()<>=!,  0159eE+-_nortid&|~%"), max_size=30))
def test_no_text_makes_the_parser_fail_otherwise(text: str):
    try:
        parse_filter(text)
    except QueryError as error:
        assert 0 <= error.at <= len(text)


def test_a_list_of_names_may_hold_commas_in_quotes():
    text = 'status, metrics."a, b" , params.lr'
    assert list(split_names(text)) == ["status", 'metrics."a, b"', "params.lr"]
    assert list(split_names("acc[a, b],lr")) == ["acc[a, b]", "lr"]
    assert list(split_names("acc[a,lr")) == ["acc[a", "lr"]
