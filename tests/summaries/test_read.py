"""Any summary is read, and anything else is refused in one clear line."""

from __future__ import annotations

import copy
import json
import random
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from traceml.compare.pair import compare
from traceml.compare.record import to_json
from traceml.model.errors import RunNotFound, TraceMLError, UnreadableSummary
from traceml.summaries.read import MAX_BYTES, locate, read_compared, read_labels, read_summary
from traceml.summaries.record import Summary
from traceml.text.comparison import comparison_text
from traceml.text.markdown import comparison_markdown

PEER = Path(__file__).parents[1] / "data" / "peer"
SLOW = PEER / "slow_input_cpu.json"


def write(folder: Path, content: bytes | str | dict[str, Any]) -> Path:
    path = folder / "final_summary.json"
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def step_time(**average: Any) -> dict[str, Any]:
    return {"step_time": {"global": {"average": average}}}


def test_a_foreign_file_is_read() -> None:
    summary = read_summary(SLOW)
    assert summary.schema_version == 1.9
    assert summary.producer.name is None
    assert summary.primary_diagnosis.kind == "INPUT_BOUND"
    assert summary.step_time is not None
    assert summary.step_time.global_.average["step_time_ms"] == pytest.approx(43.817, abs=1e-3)
    assert summary.step_time.global_.average["h2d_ms"] is None


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"step_time": {}}, id="one empty section"),
        pytest.param({"system": {}, "step_time": None}, id="a section that is null"),
        pytest.param({"meta": None, "producer": None, **step_time(a=1)}, id="null objects"),
        pytest.param(
            {"step_time": {"issues": None, "global": {"worst": {"a": None}}, "groups": None}},
            id="null inside a section",
        ),
        pytest.param({"from_the_future": [1, {"x": 2}], **step_time(a=1)}, id="unknown keys"),
        pytest.param({"schema_version": 2, **step_time(a=1)}, id="a schema of whole number"),
    ],
)
def test_what_is_missing_null_or_unknown_is_no_error(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    assert read_summary(write(tmp_path, document)).duration_s is None


@pytest.mark.parametrize("kind", ["RESIDUAL_HEAVY", "OVERHEAD_HEAVY", "WAIT_HEAVY"])
def test_every_name_of_wait_heavy_reads_as_ours(tmp_path: Path, kind: str) -> None:
    diagnosis = {"kind": kind, "status": kind.replace("_", "-")}
    section = {"diagnosis": diagnosis, "issues": [diagnosis]}
    summary = read_summary(write(tmp_path, {"primary_diagnosis": diagnosis, "step_time": section}))
    assert summary.step_time is not None and summary.step_time.diagnosis is not None
    found = [(summary.primary_diagnosis.kind, summary.primary_diagnosis.status)]
    for issue in (summary.step_time.diagnosis, *summary.step_time.issues):
        found.append((issue.kind, issue.status))
    assert found == [("WAIT_HEAVY", "WAIT-HEAVY")] * 3


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        pytest.param(
            {"total_step_ms": 50, "dataloader_ms": 30, "compute_ms": 18, "step_overhead_ms": 2},
            {"step_time_ms": 50, "input_wait_ms": 30, "compute_ms": 18, "residual_ms": 2},
            id="1.4",
        ),
        pytest.param(
            {"total_step_ms": 50, "dataloader_ms": 30, "wait_ms": 2},
            {"step_time_ms": 50, "input_wait_ms": 30, "residual_ms": 2},
            id="before 1.4 the rest was called wait",
        ),
        pytest.param(
            {"total_step_ms": 50, "dataloader_ms": 30, "input_wait_ms": 10, "step_time_ms": 25},
            {"step_time_ms": 35, "input_wait_ms": 10, "traced_step_time_ms": 25},
            id="1.6 called the body the step",
        ),
        pytest.param(
            {"step_time_ms": 50, "input_wait_ms": 10, "wait_ms": 7},
            {"step_time_ms": 50, "input_wait_ms": 10, "wait_ms": 7},
            id="1.9 and ours stay as they are",
        ),
    ],
)
def test_older_names_get_their_present_meaning(
    tmp_path: Path, average: dict[str, float], expected: dict[str, float]
) -> None:
    section = read_summary(write(tmp_path, step_time(**average))).step_time
    assert section is not None and section.global_.average == expected


NESTED = '{"x":' + "[" * 100_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "it is empty", id="empty"),
        pytest.param(b" \n", "it is empty", id="blank"),
        pytest.param(SLOW.read_bytes()[:5000], "breaks off", id="truncated"),
        pytest.param(b"SQLite format 3\x00\xff\xfe", "is binary", id="binary"),
        pytest.param(bytes(range(64)), "is binary", id="binary that is text to a decoder"),
        pytest.param(b"step time: 3 ms", "expecting value", id="plain text"),
        pytest.param(NESTED, "nested too deeply", id="deeply nested"),
        pytest.param("[" * 100_000, "nested too deeply", id="deeply nested from the start"),
        pytest.param("[1, 2]", "JSON of type array", id="an array"),
        pytest.param("null", "JSON of type null", id="null"),
        pytest.param('"text"', "JSON of type str", id="text"),
        pytest.param("{}", "found keys: none", id="an empty object"),
        pytest.param('{"loss": 1}', "found keys: loss", id="no known section"),
        pytest.param(b'{"a\xff": 1}', "is binary", id="bytes that are no text in a key"),
        pytest.param('{"a\\nb": 1}', "found keys: a?b", id="a line break in a key"),
        pytest.param('{"step_time": null}', "found keys: step_time", id="a null section alone"),
        pytest.param('{"duration_s": NaN, "system": {}}', "'duration_s' is nan", id="NaN"),
        pytest.param(
            '{"step_time": {"global": {"average": {"step_time_ms": -Infinity}}}}',
            "'step_time.global.average.step_time_ms' is -inf",
            id="minus infinity",
        ),
        pytest.param(
            '{"step_time": {"global": {"average": {"step_time_ms": 1e999}}}}',
            "'step_time.global.average.step_time_ms' is inf",
            id="a number too large",
        ),
        pytest.param(
            step_time(h2d_ms=None, step_time_ms=-3.5),
            "'step_time.global.average.step_time_ms' is -3.5",
            id="a negative time",
        ),
        pytest.param({"duration_s": -1, "system": {}}, "'duration_s' is -1", id="negative run"),
        pytest.param(
            {"step_time": {"groups": {"rows": {"3": {"metrics": {"input_wait_ms": -1}}}}}},
            "'step_time.groups.rows.3.metrics.input_wait_ms' is -1",
            id="a negative time of one rank",
        ),
        pytest.param(
            {"process": {"global": {"average": {"ram_peak_bytes": -1}}}},
            "'process.global.average.ram_peak_bytes' is -1",
            id="a negative amount of memory",
        ),
        pytest.param(
            {**step_time(step_time_ms=1), "steps": {"count": 2, "block_means_ms": [1, -2]}},
            "'steps.block_means_ms[1]' is -2",
            id="a negative time among the steps",
        ),
        pytest.param(
            {
                **step_time(step_time_ms=1),
                "steps": {"count": 2, "part_block_means_ms": {"residual": [-1], "input": [1, -2]}},
            },
            "'steps.part_block_means_ms.input[1]' is -2",
            id="a negative time of a phase; what is left over may be",
        ),
        pytest.param(
            {**step_time(step_time_ms=1), "steps": {"count": 2, "quantiles_ms": {"50": -1}}},
            "'steps.quantiles_ms.50' is -1",
            id="a negative quantile",
        ),
        pytest.param(
            step_time(step_time_ms=1, forward_ms="fast"),
            "'step_time.global.average.forward_ms' is of type",
            id="text for a number",
        ),
        pytest.param(
            step_time(step_time_ms=1, forward_ms={"mean": 1}),
            "'step_time.global.average.forward_ms' is of type",
            id="an object for a number",
        ),
        pytest.param(
            step_time(step_time_ms=10**400),
            "'step_time.global.average",
            id="an integer beyond every float",
        ),
        pytest.param({"step_time": [1]}, "'step_time' is of type", id="a section as array"),
        pytest.param(
            {"system": {}, "meta": {"world_size": "two"}},
            "'meta.world_size' is of type",
            id="text for a count",
        ),
        pytest.param("1" * 5000, "is not a run summary", id="a number of 5000 digits"),
    ],
)
def test_a_bad_file_is_refused_in_one_clear_line(
    tmp_path: Path, content: bytes | str | dict[str, Any], said: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(UnreadableSummary) as refusal:
        read_summary(path)
    message = str(refusal.value)
    assert said in message
    assert message.startswith(str(path)) and "\n" not in message and ";" in message


def test_what_is_left_after_a_subtraction_may_be_below_zero(tmp_path: Path) -> None:
    left = step_time(step_time_ms=1, residual_ms=-0.1, wait_ms=-0.2)
    system = {"global": {"average": {"gpu_mem_headroom_bytes": -1, "gpu_temp_c": -4}}}
    assert read_summary(write(tmp_path, {**left, "system": system})).step_time is not None


def test_a_file_beyond_any_summary_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    began_s = time.process_time()
    for read in (read_summary, read_compared):
        with pytest.raises(UnreadableSummary, match="too large for a run summary"):
            read(path)
    assert read_labels(path) is None
    assert time.process_time() - began_s < 1  # reading it would take longer


def test_a_file_that_memory_cannot_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    path = write(tmp_path, step_time(step_time_ms=1))
    monkeypatch.setattr("traceml.summaries.read.read_regular", fail)
    with pytest.raises(UnreadableSummary, match="too large for a run summary"):
        read_summary(path)


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="does not exist"):
        read_summary(tmp_path / "none.json")
    with pytest.raises(UnreadableSummary, match="cannot be read"):
        read_summary(tmp_path)


def test_a_file_of_a_windows_shell_is_read(tmp_path: Path) -> None:
    document = json.dumps(step_time(step_time_ms=2.0))
    for encoding in ("utf-8-sig", "utf-16"):
        assert read_summary(write(tmp_path, document.encode(encoding))).step_time is not None


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        write(tmp_path / "logs" / name, step_time(step_time_ms=1))
    return tmp_path / "logs"


def test_a_file_a_folder_and_a_name_lead_to_the_same_summary(logs: Path) -> None:
    summary = logs / "first" / "final_summary.json"
    for argument in (str(summary), str(summary.parent), "first"):
        assert locate(argument, logs) == summary


def test_an_unknown_name_is_told_which_runs_there_are(logs: Path) -> None:
    with pytest.raises(RunNotFound, match=r"no run 'frist'.*\(did you mean first\?\)") as error:
        locate("frist", logs)
    assert "(runs there, newest first: " in str(error.value)
    assert "second" in str(error.value)


@pytest.mark.parametrize("record", ["rank0.ring", "rank0.steps", "run.json"])
def test_an_unfinished_run_is_pointed_to_recover(logs: Path, record: str) -> None:
    (logs / "killed").mkdir()
    (logs / "killed" / record).touch()
    with pytest.raises(RunNotFound, match=r"traceml recover .*killed$"):
        locate("killed", logs)


def test_the_command_to_recover_a_run_may_be_copied(tmp_path: Path) -> None:
    folder = tmp_path / "my runs" / "killed"
    folder.mkdir(parents=True)
    (folder / "run.json").touch()
    with pytest.raises(RunNotFound) as refusal:
        locate("killed", folder.parent)
    command = str(refusal.value).partition("rebuild it with: ")[2]
    assert shlex.split(command) == ["traceml", "recover", str(folder)]


def test_a_folder_that_is_no_run_is_not_pointed_to_recover(logs: Path) -> None:
    (logs / "empty").mkdir()
    with pytest.raises(RunNotFound, match=r"holds no final_summary\.json") as refusal:
        locate("empty", logs)
    assert "recover" not in str(refusal.value)


@pytest.mark.parametrize("argument", ["x" * 5000, "a\0b"], ids=["too long", "a null byte"])
def test_an_impossible_name_is_an_answer_too(logs: Path, argument: str) -> None:
    with pytest.raises(RunNotFound):
        locate(argument, logs)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=8), part, max_size=3)
    ),
    max_leaves=8,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key of a document."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


def assert_read_or_refused(path: Path) -> None:
    """Either the file becomes a summary that can be written again, or the refusal names it."""
    try:
        summary = read_summary(path)
    except TraceMLError as refusal:
        assert str(path) in str(refusal)
    else:
        assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary


@pytest.mark.slow
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_mutated_summary_is_read_or_refused_and_never_crashes(
    tmp_path: Path, data: st.DataObject
) -> None:
    document = json.loads(SLOW.read_bytes())
    spots = places(document)
    for index in data.draw(st.lists(st.integers(0, len(spots) - 1), max_size=3)):
        container, key = spots[index]
        container[key] = data.draw(JSON_VALUES)
    path = write(tmp_path, json.dumps(document))
    assert_read_or_refused(path)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cut=st.integers(0, 27_000), noise=st.binary(max_size=12))
@example(cut=1, noise=b"")
def test_a_damaged_summary_is_read_or_refused_and_never_crashes(
    tmp_path: Path, cut: int, noise: bytes
) -> None:
    content = SLOW.read_bytes()
    path = write(tmp_path, content[:cut] + noise + content[cut + len(noise) :])
    assert_read_or_refused(path)


SEED = Path(__file__).parents[1] / "data" / "seed" / "compare_slow.json"
MALFORMED = 10_000
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, -0.5, 1e-320, 1e308, -1e308, 10**30, 10**400, 2**63, 3.5),
    *(float("nan"), float("inf"), -float("inf")),
    *("", "x" * 300, "NaN", "\x00\x1b[2J", "\ud800", "1.5"),
    *([], {}, [[]], [None], {"": None}, {"value": -1, "idx": 3}, [1.5, "a", {}]),
)


def replaced(document: Any, chance: random.Random) -> bytes:
    """Up to four values become something else."""
    for _ in range(chance.randint(1, 4)):
        container, key = chance.choice(places(document))
        container[key] = copy.deepcopy(chance.choice(HOSTILE))
    return json.dumps(document).encode()


def renamed(document: Any, chance: random.Random) -> bytes:
    """Values stand where others belong, or are gone."""
    for _ in range(chance.randint(1, 4)):
        container, key = chance.choice(places(document))
        if isinstance(container, dict) and chance.random() < 0.5:
            del container[key]
        else:
            other, other_key = chance.choice(places(document))
            container[key] = copy.deepcopy(other[other_key])
    return json.dumps(document).encode()


def damaged(document: Any, chance: random.Random) -> bytes:
    """Bytes are gone, doubled or others."""
    content = bytearray(json.dumps(document).encode())
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(content))
        length = chance.choice((1, 1, 2, 20))
        piece = chance.choice((b"", chance.randbytes(length), bytes(content[place:][:length] * 2)))
        content[place : place + length] = piece
    return bytes(content)


def cut(document: Any, chance: random.Random) -> bytes:
    """The file breaks off."""
    content = json.dumps(document).encode()
    return content[: chance.randrange(len(content))]


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [replaced, renamed, damaged, cut])
def test_ten_thousand_malformed_summaries_are_refused_or_compared(
    tmp_path: Path, spoil: Callable[[Any, random.Random], bytes]
) -> None:
    """A quarter of them each; what can be read can be compared and shown."""
    chance = random.Random(spoil.__name__)
    sound = json.loads(SEED.read_bytes())
    blocks = [9.0, 8.0, 9.5, 8.1, 9.2]
    sound["steps"] = {"count": 9, "stdev_ms": 1.0, "block_means_ms": blocks}
    sound["steps"]["part_block_means_ms"] = {
        **dict.fromkeys(("input", "h2d", "forward", "backward"), blocks),
        **dict.fromkeys(("optimizer", "residual", "between", "wall"), blocks),
    }
    sound["params"] = {"seed": 1, "nested": {"lr": 0.1}}
    others = read_summary(SLOW), read_summary(write(tmp_path, json.dumps(sound)))
    read = 0
    for number in range(MALFORMED // 4):
        path = write(tmp_path, spoil(copy.deepcopy(sound), chance))
        try:
            summary = read_summary(path)
        except TraceMLError as refusal:
            assert str(path) in str(refusal) and "\n" not in str(refusal)
            continue
        read += 1
        comparison = compare(summary, others[number % 2], ("a", "b"))
        json.loads(to_json(comparison), parse_constant=pytest.fail)
        assert comparison_text(comparison) and comparison_markdown(comparison)
    assert read < MALFORMED // 4, "nothing was malformed"
