"""A whole run folder, and ways to damage it: what a fuzzer feeds to everything that reads runs.

Damage knows the structure of what it damages: it replaces values in JSON by others of the wrong
type, size or sign, and fields of records by numbers that no tracer writes; besides, it cuts, flips
and zeroes bytes as disks and killed writers do.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from factories import make_run
from ring_steps import note_steps
from run_folders import write_run
from traceml.agent.close import summarise
from traceml.model import record_layout
from traceml.model.failure import AgentSaw, Death, Doing, FailureReport, Stall, Standing
from traceml.model.lineage import Changes, Code, Command, Data, Environment, Gpu, Hardware, Lineage
from traceml.model.run import Ending
from traceml.model.sample import CodeLine, StackBurst, StackSample
from traceml.store.failures import write_seen
from traceml.store.lineage import write_lineage
from traceml.store.logged import line
from traceml.store.old_formats import STEPS_BY_VERSION
from traceml.store.record_file import RankFiles
from traceml.store.stack_samples import StackSampleFile
from traceml.summaries.live_record import LiveIssue, LiveState
from traceml.summaries.read import read_summary
from traceml.trace import ring as rings
from traceml.trace.recorder import Recorder

ESCAPE = "\x1b[31mred\x1b]0;title\x07\u202e\r\n\t"
"""Colours, a window's title, writing from right to left, and a line of its own."""
HUGE = 10**400
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.0, -0.0, 0.5, -1e-9, 1e-320),
    *(2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), HUGE, -HUGE),
    *(1e18, 1e300, 1.7e308, -1.7e308, float("inf"), float("-inf"), float("nan")),
    *("", "0", "NaN", "text", ESCAPE, "x" * 5000, "\ud800", "a/../b", "null"),
    *([], {}, [[]], [None], {"": None}, ["a", 1, None], {"value": {}}, {ESCAPE: ESCAPE}),
)
"""What stands where something else was expected."""
WHOLE = (0, 1, 7, 2**31, 2**53, 2**62, 2**63 - 1, -1, -(2**63), 2**64, HUGE)
REAL = (0.0, 5e-324, 1e-300, 1e-9, 1.0, 1e18, 1e200, 1.7e308, -1e-300, -1.0, -1.7e308)
MAX_DEPTH = 100_000
"""Deeper than any reader's recursion reaches."""

STEPS = 2 * 60 + 8
"""Of a whole run: those of two ranks on disk, and those in a ring."""

MESSAGES: tuple[dict[str, Any], ...] = (
    {"kind": "settings", "pid": 1000, "autocast": "off", "tf32": True},
    {"kind": "params", "values": {"lr": 0.1, "model": "small", "nested": {"a": [1, 2]}}},
    {"kind": "loss", "step": 1, "value": 2.5},
    {"kind": "loss", "step": 9, "value": "nan", "finite_step": 8, "finite_value": 2.0},
    {
        "kind": "ddp",
        "communication_ns": 5_000_000,
        "overlap_ns": 4_000_000,
        "gradient_bytes": 1 << 20,
        "buckets": 3,
        "has_hook": False,
    },
    {"kind": "artifact", "name": "model", "path": "/nowhere/model.pt"},
    {"kind": "lost", "pieces": 3},
    {
        "kind": "folded",
        "values": {
            "accuracy": {
                "count": 4,
                "finite": 4,
                "total": 2.0,
                "minimum": "0.1",
                "maximum": "0.9",
                "first": [1, 1],
                "first_value": "0.1",
                "last": [4, 4, "0.9"],
                "first_not_finite": [1 << 63, None],
            }
        },
    },
)


def make_whole_run(folder: Path) -> Path:
    """A run of two ranks with every file that a run can have, a failure and a stall among them."""
    run = make_run(ranks=2, steps=60, gpu=True, h2d_ms=2.0, between_ms=4.0)
    write_run(folder, run, Ending(run.manifest.started_unix_s + 90, 1))
    pid = run.ranks[0].rank.pid
    failure = FailureReport(
        rank=0,
        error="ValueError",
        message="bad batch",
        step=50,
        phase="forward",
        where="train.py:12 in main",
        pid=pid,
        unix_s=run.manifest.started_unix_s + 80,
        traceback='Traceback (most recent call last):\n  File "train.py"\nValueError: bad batch',
    )
    logged = [
        {"kind": "metrics", "step": step, "unix_ns": step, "values": {"loss": 2.0 / step}}
        for step in range(1, 20)
    ]
    said = [*MESSAGES, *logged, {"kind": "failure", **asdict(failure)}]
    (folder / f"rank-0-{pid}.messages").write_bytes(
        b"".join(line(number, json.dumps(each).encode()) for number, each in enumerate(said, 1))
    )
    marks = folder / "marks"
    marks.mkdir()
    (marks / "trouble").write_text("torch 1.13 is too old")
    (marks / f"failure-{pid}-host-a.json").write_text(json.dumps(asdict(failure)))
    (marks / f"script-{pid}-host-a").touch()
    standing = Standing(rank=1, pid=pid + 1, doing=Doing.COLLECTIVE, steps=50, where="train.py:3")
    write_seen(
        folder,
        AgentSaw(
            deaths=(Death(0, pid, run.manifest.started_unix_s + 81, 1),),
            stalls=(Stall(1_800_000_010.0, 1_800_000_020.0, 0.04, (standing,)),),
        ),
    )
    write_lineage(folder, LINEAGE)
    (folder / "artifacts.json").write_text(
        json.dumps({"/nowhere/model.pt": {"size_bytes": 3, "sha256": "ab"}})
    )
    (folder / "output.log").write_text(f"epoch 1\n{ESCAPE} 10%|█\r100%\n")
    looked = StackSample(1_800_000_002.0, 20, "residual", CodeLine("main", "train.py", 3))
    StackSampleFile(folder).append(StackBurst(0, pid, "py-spy", 20, 0, (looked,)))
    summarise(folder)
    summary = read_summary(folder / "final_summary.json")
    issues = [
        LiveIssue(**msgspec.structs.asdict(issue), section="step_time")
        for issue in (summary.step_time.issues if summary.step_time else ())
    ]
    state = LiveState(1_800_000_080.0, 50, tuple(issues), summary)
    (folder / "live.json").write_bytes(msgspec.json.encode(state))
    _write_ring(folder / f"rank-1-{pid + 7}.ring", folder)
    return folder


LINEAGE = Lineage(
    captured_unix_s=1_800_000_001.0,
    code=Code("/src", "git@host:repo", "ab" * 20, "main", True, Changes("cd" * 32)),
    command=Command(("python", "train.py"), "train.py", ("--lr", "1"), "/src", "ef" * 32),
    environment=Environment("3.11.7", "/bin/python", "2.13.0"),
    packages={"numpy": "2.0"},
    hardware=Hardware("host-a", "Linux", cores=2, gpus=(Gpu("H200", 1 << 37),)),
    data=Data(dvc={"data": "abc"}),
    variables={"OMP_NUM_THREADS": "1"},
)


def _write_ring(path: Path, folder: Path) -> None:
    """A ring with a few steps that nobody has brought to disk."""
    (files, *_) = RankFiles.all_in(folder)
    head = files.head()
    assert head is not None
    ring = rings._create_sized(path, 64, 4)
    ring.identify(head.rank)
    recorder = Recorder()
    recorder.move_to(ring.mapping, ring.event_base, ring.event_capacity)
    note_steps(recorder, 8)
    ring.write_message(json.dumps(MESSAGES[1]).encode())
    recorder.forget()  # it writes elsewhere, and lets go of the ring
    ring.close()


# Damage

Damage = Callable[[random.Random, bytes], bytes]


def damage_json(chance: random.Random, content: bytes) -> bytes:
    """A document with one to three of its values replaced; or a line of such documents."""
    lines = content.splitlines() if b'\n{"' in content else [content]
    place = chance.randrange(len(lines))
    document = json.loads(lines[place])
    for _ in range(chance.randint(1, 3)):
        document = _replaced(chance, document)
    lines[place] = json.dumps(document).encode("utf-8", "surrogatepass")
    return b"\n".join(lines) + b"\n"


def damage_numbers(chance: random.Random, content: bytes) -> bytes:
    """The same document or lines, with numbers of the right type and of no sense in many places."""
    lines = content.splitlines() if b'\n{"' in content else [content]
    share = chance.choice((0.02, 0.2, 0.9))
    return b"\n".join(
        json.dumps(_with_extremes(chance, json.loads(each), share)).encode() for each in lines
    )


def _with_extremes(chance: random.Random, value: Any, share: float) -> Any:
    if isinstance(value, dict):
        return {name: _with_extremes(chance, part, share) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_extremes(chance, part, share) for part in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or chance.random() > share:
        return value
    return chance.choice(WHOLE if isinstance(value, int) else REAL)


def put_escapes_in(chance: random.Random, content: bytes) -> bytes:
    """The same document or lines, with terminal escapes in every text that it holds."""
    lines = content.splitlines() if b'\n{"' in content else [content]
    return b"\n".join(json.dumps(_escaped(json.loads(each))).encode() for each in lines) + b"\n"


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _escaped(part) for name, part in value.items()} | (
            {f"{ESCAPE}name": _escaped(next(iter(value.values())))} if value else {}
        )
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    return f"{value}{ESCAPE}{value}" if isinstance(value, str) else value


def nest_deeply(chance: random.Random, content: bytes) -> bytes:
    """A document that is nested deeper than recursion reaches, alone or as a value."""
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    if chance.random() < 0.3:
        return deep
    return (
        b'{"params":' + deep + b',"values":' + deep + b',"kind":"metrics",' + content.lstrip()[1:]
    )


def _replaced(chance: random.Random, document: Any) -> Any:
    """The document with one value changed, wherever it stands."""
    places = list(_places(document))
    if not places:
        return chance.choice(JUNK)
    inside, key = chance.choice(places)
    how = chance.random()
    if how < 0.1:
        if isinstance(inside, dict):
            del inside[key]
        else:
            inside.clear()
    elif how < 0.2:
        other, name = chance.choice(places)
        inside[key] = json.loads(json.dumps(other[name])) if name in _keys(other) else None
    elif how < 0.3 and isinstance(inside[key], (int, float)):
        inside[key] = inside[key] * chance.choice((-1, 0, 10**18, 10**300, 1e-300))
    elif how < 0.35:
        inside[key] = [inside[key]] * chance.choice((1, 2, 70))
    else:
        inside[key] = chance.choice(JUNK)
    return document


def _keys(inside: Any) -> Any:
    return inside.keys() if isinstance(inside, dict) else range(len(inside))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document where a value stands: the object or list, and the key."""
    for key in _keys(value) if isinstance(value, (dict, list)) else ():
        yield value, key
        yield from _places(value[key])


def damage_bytes(chance: random.Random, content: bytes) -> bytes:
    """Bytes cut, flipped, zeroed, doubled or put in: what disks and killed writers leave."""
    held = bytearray(content)
    first, last = sorted(chance.randrange(len(held) + 1) for _ in range(2))
    how = chance.randrange(6)
    if how == 0:
        return bytes(held[:first])
    if how == 1:
        return bytes(held[first:])
    if how == 2:
        held[first:last] = bytes(last - first)
    elif how == 3:
        held[first:first] = held[first:last]
    elif how == 4:
        held[first:first] = chance.randbytes(chance.randrange(1, 64))
    else:
        for _ in range(chance.randint(1, 20)):
            held[chance.randrange(len(held))] ^= 1 << chance.randrange(8)
    return bytes(held)


def damage_records(chance: random.Random, content: bytes) -> bytes:
    """A ring or a file of step records with numbers in it that no tracer writes."""
    held = bytearray(content)
    numbers = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**40, -2, 59)
    begin = chance.choice((0, record_layout.COUNTERS_OFFSET, record_layout.step_slots_offset(0)))
    record = STEPS_BY_VERSION[record_layout.VERSION].itemsize
    whole = range(begin, max(begin + 8, len(held) - 8), 8)
    for _ in range(chance.randint(1, 4)):
        at = chance.choice(whole)
        number = chance.choice(numbers).to_bytes(8, "little", signed=True)
        for each in range(at, len(held) - 8, record) if chance.random() < 0.3 else (at,):
            held[each : each + 8] = number
    return bytes(held)


def replace_file(chance: random.Random, path: Path) -> str:
    """Put something that is no file, or an odd one, in its place; says what."""
    path.unlink()
    how = chance.choice(("folder", "pipe", "link", "circle", "empty", "zeros", "gone"))
    if how == "folder":
        path.mkdir()
        (path / "inside").touch()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to("/etc/hostname")
    elif how == "circle":
        path.symlink_to(path)
    elif how != "gone":
        path.write_bytes(bytes(4096) if how == "zeros" else b"")
    return how
