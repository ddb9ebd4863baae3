"""Whatever lies in a run folder, whoever reads it gets a result or one of our errors.

A seeded fuzzer damages every file of a run, a few hundred times in all, and has every reader read
it: no foreign exception, an error says what was found, what was expected and what to do, and no
terminal escape comes through. More of it:

    TRACEML_DAMAGED_CASES=2000 TRACEML_DAMAGED_SEED=7 pytest tests/test_damaged_input.py
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from damage import (
    STEPS,
    damage_bytes,
    damage_json,
    damage_numbers,
    damage_records,
    make_whole_run,
    nest_deeply,
    put_escapes_in,
    replace_file,
)
from traceml.api.agent_tools import AgentTools
from traceml.api.compare import find_changes
from traceml.api.comparison_pages import comparison_page as comparison_page_of
from traceml.api.comparison_pages import find_for_page, many_page
from traceml.api.export_run import RunExport
from traceml.api.find_runs import choose_summaries, recover, view
from traceml.api.query_runs import RunQuery, RunSearch
from traceml.api.run_list_page import ListQuery, RunLister
from traceml.api.watch import RunWatch
from traceml.figures.comparison_page import comparison_page
from traceml.figures.exported_timeline import write_timeline
from traceml.model import record_layout
from traceml.model.errors import TraceMLError
from traceml.store.load import load_run
from traceml.store.old_formats import STEPS_BY_VERSION
from traceml.store.perfetto_trace import PerfettoWriter
from traceml.summaries.read import read_summary
from traceml.text.comparison import comparison_text
from traceml.text.markdown import all_markdown
from traceml.text.run_list import aligned, run_table
from traceml.web.report_pages import reported

CASES = int(os.environ.get("TRACEML_DAMAGED_CASES", "24"))
"""Of each kind of file."""
SEED = int(os.environ.get("TRACEML_DAMAGED_SEED", "0"))

JSON = (
    *(damage_json, damage_json, damage_json),
    *(damage_numbers, damage_numbers),
    *(put_escapes_in, nest_deeply, damage_bytes),
)
RECORDS = (damage_records, damage_records, damage_bytes)
FILES: dict[str, tuple[Callable[[random.Random, bytes], bytes], ...]] = {
    "final_summary.json": JSON,
    "live.json": JSON,
    "run.json": JSON,
    "ending.json": JSON,
    "agent_saw.json": JSON,
    "artifacts.json": JSON,
    "lineage.json": JSON,
    "samples.jsonl": JSON,
    "stack_samples.jsonl": JSON,
    "marks/failure-*.json": JSON,
    "marks/trouble": (damage_bytes,),
    "output.log": (damage_bytes,),
    "rank-0-*.messages": JSON,
    "rank-0-*.steps": RECORDS,
    "rank-1-*.ring": RECORDS,
}
"""The files of a run by name, and how each is damaged."""
ALLOWED = "\n\xa0"
"""Line ends, and the blanks that indent rows of a page."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whole_run(tmp_path_factory.mktemp("whole") / "logs" / "good")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_reader_of_a_damaged_file_gives_a_result_or_an_error_of_ours(
    good: Path, tmp_path: Path, name: str
) -> None:
    wrong = []
    for case in range(CASES):
        chance = random.Random(f"{SEED} {name} {case}")
        logs = tmp_path / f"{case}"
        folder = logs / "run"
        shutil.copytree(good, folder)
        (path,) = list(folder.glob(name))[:1]
        how = _damage(chance, path, FILES[name])
        if name == "live.json":  # what is shown of a run that nobody saw end
            (folder / "final_summary.json").unlink()
            (folder / "ending.json").unlink()
        for reader in READERS if name in READ_BY_ALL else READERS_OF_FOLDERS:
            complaint = _complaint(reader, folder, good)
            if complaint:
                wrong.append(f"case {case} ({how}), {reader.__name__}: {complaint}")
        shutil.rmtree(logs)
    assert not wrong, f"{len(wrong)} of {CASES} cases\n" + "\n".join(wrong[:12])


def _damage(
    chance: random.Random,
    path: Path,
    ways: tuple[Callable[[random.Random, bytes], bytes], ...],
) -> str:
    if chance.random() < 0.15:
        return replace_file(chance, path)
    way = chance.choice(ways)
    path.write_bytes(way(chance, path.read_bytes()))
    return way.__name__


# The readers: each yields every text that people would see


def _view(folder: Path, good: Path) -> Iterator[str]:
    yield view(str(folder), folder.parent)


def _compare(folder: Path, good: Path) -> Iterator[str]:
    for a, b in ((folder, good), (good, folder)):
        comparison, _ = find_changes([str(a)], [str(b)], folder.parent)
        yield comparison_text(comparison)
        yield all_markdown((comparison,))
        yield from _texts(msgspec.to_builtins(comparison_page(comparison)))


def _compared_pages(folder: Path, good: Path) -> Iterator[str]:
    runs, _ = find_for_page([good, folder])
    pages = [comparison_page_of(runs[:1], runs[1:], folder.parent)]
    again = replace(runs[1], name="again")
    pages += [many_page([*runs, again], folder.parent)[0]]
    for page in pages:
        yield from _texts(msgspec.to_builtins(page))


def _page(folder: Path, good: Path) -> Iterator[str]:
    watch = RunWatch(folder)
    yield from _texts(msgspec.to_builtins(watch.page()))
    msgspec.json.encode(watch.detail(1, 40))
    watch.page()


def _list(folder: Path, good: Path) -> Iterator[str]:
    lister = RunLister(folder.parent, RunSearch(folder.parent))
    page = msgspec.to_builtins(lister.page(ListQuery(columns="*")))
    for choice in (*page["columns"], *page["groupings"]):
        del choice["key"]  # what the page asks with, and does not show
    yield from _texts(page)
    yield from (each.label for each in lister.columns("", 200).columns)


def _query(folder: Path, good: Path) -> Iterator[str]:
    found = RunSearch(folder.parent).search(RunQuery("status is not missing", "-step_time_ms"))
    for run in found:
        dict(run)
    yield from found.notes
    keys = found.choose_columns("*")
    yield aligned(run_table(keys, [found.column(key) for key in keys], 0.0), None)[0]


def _choose(folder: Path, good: Path) -> Iterator[str]:
    yield from map(str, choose_summaries(["params.lr=0.1"], folder.parent))


def _report(folder: Path, good: Path) -> Iterator[str]:
    found = reported([str(folder / "final_summary.json")], folder.parent)
    yield found.text
    msgspec.json.encode(found.pages)


def _report_of_another_file(folder: Path, good: Path) -> Iterator[str]:
    yield reported([str(folder / "lineage.json")], folder.parent).text


def _load(folder: Path, good: Path) -> Iterator[str]:
    load_run(folder)
    yield ""


def _recover(folder: Path, good: Path) -> Iterator[str]:
    yield recover(str(folder), folder.parent)
    yield view(str(folder), folder.parent)


def _export(folder: Path, good: Path) -> Iterator[str]:
    export = RunExport(str(folder), folder.parent)
    for table in export.tables:  # as text they would take ten times as long, for every case
        assert all(len(chunk) == len(table.columns) for chunk in table.chunks())
    export.print_table("findings", "csv", io.BytesIO())
    write_timeline(PerfettoWriter(io.BytesIO()), export.records, export.summary)
    yield "\n".join(export.notes)


def _agent_tools(folder: Path, good: Path) -> Iterator[str]:
    tools = AgentTools([folder.parent], folder.parent)
    for ask in (tools.verdict, tools.code, lambda run: tools.findings(run, None)):
        yield json.dumps(ask(folder.name).result)


READERS = (
    _view,
    _compare,
    _compared_pages,
    _page,
    _list,
    _query,
    _choose,
    _report,
    _report_of_another_file,
    _load,
    _recover,
    _export,
    _agent_tools,
)
READ_BY_ALL = ("final_summary.json", "run.json")
READERS_OF_FOLDERS = (_compared_pages, _page, _list, _query, _recover, _export)
"""Those that read more than the summary and the manifest; `recover` loads the whole run."""


def _texts(value: Any) -> Iterator[str]:
    """Every text in a page."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _complaint(reader: Callable[[Path, Path], Iterator[str]], folder: Path, good: Path) -> str:
    """What is wrong with how a reader took it; empty where nothing is."""
    try:
        for text in reader(folder, good):
            if not _is_harmless(text):
                return f"unprintable text {text[:200]!r}"
    except TraceMLError as error:
        return _complaint_of_error(str(error))
    except Exception as error:  # noqa: BLE001 - the very thing that is looked for
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = "" if last is None else f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
        return f"{type(error).__name__}: {str(error)[:120]} at {where.rpartition('traceml/')[2]}"
    return ""


def _is_harmless(text: str) -> bool:
    return all(letter.isprintable() or letter in ALLOWED for letter in text)


def _complaint_of_error(said: str) -> str:
    if not said.isprintable():
        return f"unprintable error {said[:200]!r}"
    if "; " not in said and ": " not in said:
        return f"an error that says too little: {said!r}"
    return ""


# Damage that once got through


def _change(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    path = folder / name
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


@pytest.fixture
def damaged(good: Path, tmp_path: Path) -> Path:
    """A run of one's own to damage."""
    return Path(shutil.copytree(good, tmp_path / "logs" / "run"))


def _nested(folder: Path) -> None:
    (folder / "lineage.json").write_bytes(b"[" * 100_000)


def _parts_of_a_tiny_step(folder: Path) -> None:
    times = {"step_time_ms": 5e-324, "forward_ms": 1e300, "input_wait_ms": 1e300}
    _change(
        folder,
        "final_summary.json",
        lambda found: found["step_time"]["global"]["average"].update(times),
    )


def _samples_too_few_for_a_number(folder: Path) -> None:
    rates = {"samples_per_s": 5e-324, "steps_per_s": 1e300}
    _change(
        folder,
        "final_summary.json",
        lambda found: found["step_time"]["global"]["average"].update(rates),
    )


def _huge_evidence(folder: Path) -> None:
    def change(found: Any) -> None:
        for issue in found["step_time"]["issues"]:
            issue["evidence"] = {"huge_ms": 10**400, "large_bytes": 2**63 - 1, "much_s": 1e300}

    _change(folder, "final_summary.json", change)


def _zeros_at_the_end(folder: Path) -> None:
    """What a machine leaves whose power failed: the file has its size, and no content there."""
    (path,) = folder.glob("rank-0-*.steps")
    content = path.read_bytes()
    path.write_bytes(content[:-2000] + bytes(2000))


def _a_number_that_jumps(folder: Path) -> None:
    (path,) = folder.glob("rank-0-*.steps")
    content = bytearray(path.read_bytes())
    record = STEPS_BY_VERSION[record_layout.VERSION]
    field = record.fields["sequence"][1]  # type: ignore[index]
    begin = len(content) - 30 * record.itemsize + field
    content[begin : begin + 8] = (2**63).to_bytes(8, "little")
    path.write_bytes(content)


def _a_mark_that_is_no_text(folder: Path) -> None:
    (folder / "marks" / "trouble").write_bytes(b"\xff\xfe\x00trouble")


def _a_folder_for_messages(folder: Path) -> None:
    (path,) = folder.glob("rank-0-*.messages")
    path.unlink()
    path.mkdir()


def _half_a_character(folder: Path) -> None:
    """JSON can escape it, and no file can hold it."""
    (path,) = folder.glob("rank-0-*.messages")
    said = {"number": 99, "kind": "params", "values": {"name \ud800": "value \udfff"}}
    path.write_bytes(path.read_bytes() + json.dumps(said).encode() + b"\n")
    known = {"/nowhere/model.pt": {"size_bytes": 3, "sha256": "\ud800"}}
    (folder / "artifacts.json").write_text(json.dumps(known))


@pytest.mark.parametrize(
    "hurt",
    [
        _half_a_character,
        _nested,
        _parts_of_a_tiny_step,
        _samples_too_few_for_a_number,
        _huge_evidence,
        _zeros_at_the_end,
        _a_number_that_jumps,
        _a_mark_that_is_no_text,
        _a_folder_for_messages,
    ],
    ids=lambda hurt: hurt.__name__.strip("_").replace("_", " "),
)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__.strip("_"))
def test_what_once_raised_a_foreign_exception(
    damaged: Path, good: Path, hurt: Callable[[Path], None], reader: Callable[..., Iterator[str]]
) -> None:
    hurt(damaged)
    assert _complaint(reader, damaged, good) == ""


def test_only_the_damaged_records_are_left_out_and_that_is_said(damaged: Path) -> None:
    _zeros_at_the_end(damaged)
    text = recover(str(damaged), damaged.parent)
    found = read_summary(damaged / "final_summary.json")
    lost = -(-2000 // STEPS_BY_VERSION[record_layout.VERSION].itemsize)
    assert found.step_time is not None and found.tracer is not None
    assert found.tracer.steps_recorded == STEPS - lost
    assert f"{lost} step records of rank-0-" in " ".join(text.split())


def test_a_record_whose_number_is_wrong_costs_no_other(damaged: Path) -> None:
    _a_number_that_jumps(damaged)
    recover(str(damaged), damaged.parent)
    found = read_summary(damaged / "final_summary.json")
    assert found.tracer is not None and found.tracer.steps_recorded == STEPS - 1


def test_an_integer_that_fits_no_column_is_refused_by_name(damaged: Path) -> None:
    _change(damaged, "final_summary.json", lambda found: found.update(exit_status=2**70))
    with pytest.raises(TraceMLError, match="'exit_status' is too large; expected an integer of"):
        view(str(damaged), damaged.parent)
