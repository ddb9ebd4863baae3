"""Runs over several machines: their folders are one run, on one clock."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factories import make_run
from node_runs import bring_to_head, split_run, write_nodes
from run_folders import write_run
from traceml.agent.close import recover, summarise
from traceml.api.artifact_contents import located
from traceml.api.find_runs import recover as recover_by_name
from traceml.cli import main
from traceml.model.environment import ENDING, TROUBLE_MARK
from traceml.model.errors import UsageError
from traceml.model.failure import AgentSaw, Death
from traceml.model.node import NodeWay
from traceml.store import folder as folders
from traceml.store.failures import write_seen
from traceml.store.folder_versions import scan_runs
from traceml.store.load import ARTIFACTS, load_run
from traceml.store.node_folders import (
    NODE,
    NODES,
    closing_words,
    free_name,
    node_folders,
    read_node,
    write_node,
)
from traceml.summaries.read import read_summary


def test_the_ranks_of_all_nodes_are_one_run(tmp_path: Path):
    run = make_run(ranks=4, slow_rank=3)
    one = load_run(write_run(tmp_path / "one", run))
    several = load_run(bring_to_head(*write_nodes(tmp_path, 2, run=run)))
    assert [record.rank.rank for record in several.ranks] == [0, 1, 2, 3]
    for alone, found in zip(one.ranks, several.ranks, strict=True):
        assert np.array_equal(alone.steps["wall_ns"], found.steps["wall_ns"])
    assert [node.state.name for node in several.nodes] == ["host-a", "host-b"]
    assert [node.ranks for node in several.nodes] == [(0, 1), (2, 3)]
    assert several.nodes[0].state.way is NodeWay.HEAD
    assert several.notes == ()


def test_a_run_on_one_machine_has_no_nodes(tmp_path: Path):
    found = load_run(write_run(tmp_path / "one", make_run(ranks=2)))
    assert found.nodes == ()
    assert found.samples_of_all_nodes == found.samples


def test_processes_of_two_nodes_with_one_number_stay_apart(tmp_path: Path):
    head, other = write_nodes(tmp_path, 2)
    write_seen(other, AgentSaw(deaths=(Death(2, 1000, 1_800_000_030.0, 137),)))
    found = load_run(bring_to_head(head, other))
    pids = {record.rank.rank: record.rank.pid for record in found.ranks}
    assert len(set(pids.values())) == 4
    assert (pids[0], pids[1]) == (1000, 1001)  # the head's keep theirs
    assert [death.pid for death in found.seen.deaths] == [pids[2]]
    assert [death.rank for death in found.seen.deaths] == [2]
    sampled = {
        process.rank: process.pid
        for sample in found.samples_of_all_nodes
        for process in sample.processes
    }
    assert sampled == pids


def test_clocks_that_differ_by_minutes_are_brought_together(tmp_path: Path):
    run = make_run(ranks=4)
    right = load_run(bring_to_head(*write_nodes(tmp_path / "right", 2, run=run)))
    wrong = load_run(bring_to_head(*write_nodes(tmp_path / "wrong", 2, ahead_s=300.0, run=run)))
    starts = [record.rank.unix_s(int(record.steps["start_ns"][0])) for record in right.ranks]
    assert [
        record.rank.unix_s(int(record.steps["start_ns"][0])) for record in wrong.ranks
    ] == pytest.approx(starts, abs=1e-6)
    assert [s.unix_s for s in wrong.nodes[1].samples] == [s.unix_s for s in right.nodes[1].samples]
    assert wrong.nodes[1].state.clock_offset_s == 300.0


def test_what_is_asked_by_rank_comes_from_every_node(tmp_path: Path):
    head = bring_to_head(*write_nodes(tmp_path, 2))
    summary = summarise(head)
    assert summary.process is not None
    assert list(summary.process.groups.rows) == ["0", "1", "2", "3"]
    assert summary.primary_diagnosis.kind == "COMPUTE_STRAGGLER"
    assert [node.name for node in summary.nodes] == ["host-a", "host-b"]
    assert summary.meta.nodes_observed == 2


# What is missing


def test_a_node_that_was_cut_off_is_named(tmp_path: Path):
    head = bring_to_head(*write_nodes(tmp_path, 2))
    copy = head / NODES / "host-b"
    state = read_node(copy)
    assert state is not None
    write_node(copy, replace(state, is_finished=False))
    summary = summarise(head)
    assert [node.is_complete for node in summary.nodes] == [True, False]
    assert summary.tracer is not None
    assert any("host-b was cut off" in note for note in summary.tracer.notes)


def test_a_node_with_a_newer_version_is_named(tmp_path: Path):
    head = bring_to_head(*write_nodes(tmp_path, 2))
    copy = head / NODES / "host-b"
    state = read_node(copy)
    assert state is not None
    write_node(copy, replace(state, record_format=99, traceml_version="9.0"))
    (note,) = load_run(head).notes
    assert "node host-b ran TraceML 9.0" in note


def test_logged_files_of_every_node_say_where_they_are(tmp_path: Path):
    """Both nodes log a file in a call with the same number; a third one shares the head's disk."""
    places = write_nodes(tmp_path, 3, run=make_run(ranks=6))
    for place in places:
        name = place.parent.name
        said = {"kind": "artifact", "id": "7-1", "name": name, "path": "model.pt", "unix_ns": 1}
        (place / "rank-9-7.messages").write_text(json.dumps(said) + "\n")
        kept = {"size_bytes": 3, "sha256": name, "stored": "artifacts/1/model.pt"}
        (place / ARTIFACTS).write_text(json.dumps({"7-1": kept}))
        (place / "artifacts/1").mkdir(parents=True)
        (place / "artifacts/1/model.pt").write_text("abc")
    head = bring_to_head(*places)
    shutil.copytree(places[2] / "artifacts", head / NODES / "host-c" / "artifacts")
    for node in ("host-b", "host-c"):
        state = read_node(head / NODES / node)
        assert state is not None
        write_node(head / NODES / node, replace(state, folder=f"/runs/{node}"))
    found = {artifact.name: artifact for artifact in load_run(head).artifacts}
    assert {name: each.sha256 for name, each in found.items()} == {name: name for name in found}
    assert found["host-a"].stored == "artifacts/1/model.pt"
    assert found["host-b"].stored is None
    assert found["host-b"].note == (
        "its content is on node host-b, in /runs/host-b/artifacts/1/model.pt"
    )
    assert found["host-c"].stored == "nodes/host-c/artifacts/1/model.pt"
    assert located("A", head, found["host-c"].stored, 3, None).read_text() == "abc"


def test_a_remark_about_many_nodes_is_said_once(tmp_path: Path):
    head = bring_to_head(*write_nodes(tmp_path, 6, run=make_run(ranks=12)))
    for copy in node_folders(head):
        state = read_node(copy)
        assert state is not None
        write_node(copy, replace(state, is_finished=False))
        folders.write_mark(copy, TROUBLE_MARK, "no sensor can be read")
    last = head / NODES / "host-f"
    folders.write_mark(last, TROUBLE_MARK, "the disk is full")
    found = load_run(head).notes
    assert found[0] == "4 nodes (host-b, host-c, host-d, …): no sensor can be read"
    assert found[1] == "node host-f: the disk is full"
    assert found[2].startswith("5 nodes (host-b, host-c, host-d, …) were cut off before their end")
    assert len(found) == 3


def test_a_node_that_never_came_is_counted(tmp_path: Path):
    head, other, _ = write_nodes(tmp_path, 3)
    summary = summarise(bring_to_head(head, other))
    assert summary.tracer is not None
    assert any("1 node of 3 never reached" in note for note in summary.tracer.notes)
    assert "INCOMPLETE_DATA" in {issue.kind for issue in summary.step_time.issues}


@pytest.mark.parametrize(
    ("ranks", "brought", "expected"),
    [
        ((2, 1), 2, None),
        ((2, 1), 1, "1 node of 2 never reached"),
        ((4, 2, 2), 3, None),
        ((4, 2, 2), 2, "1 node of 3 never reached"),
    ],
)
def test_machines_that_have_different_numbers_of_ranks_are_counted(
    tmp_path: Path, ranks: tuple[int, ...], brought: int, expected: str | None
):
    run = make_run(ranks=max(ranks) * len(ranks))
    parts = [
        replace(
            part,
            manifest=replace(part.manifest, nodes=1),  # torchrun's options may not say how many
            ranks=tuple(
                replace(record, rank=replace(record.rank, world_size=sum(ranks), **place))
                for place, record in zip(
                    (
                        {"rank": sum(ranks[:node]) + local, "local_world_size": count}
                        for local in range(count)
                    ),
                    part.ranks[:count],
                    strict=True,
                )
            ),
        )
        for node, (part, count) in enumerate(zip(split_run(run, len(ranks)), ranks, strict=True))
    ]
    head, *others = write_nodes(tmp_path, parts=parts)
    found = load_run(bring_to_head(head, *others[: brought - 1]))
    said = [note for note in found.notes if "never reached" in note]
    assert [expected in note for note in said] == ([True] if expected else [])


def test_a_head_that_was_lost_is_named(tmp_path: Path):
    """Its machine is gone, and the folders of the others were put together."""
    _, second, third = write_nodes(tmp_path, nodes=3, run=make_run(ranks=6))
    for folder in (second, third):
        state = read_node(folder)
        assert state is not None
        write_node(folder, replace(state, head_machine="host-a"))
    (note,) = load_run(second).notes
    assert note.startswith("these are the records of one machine alone: its run was collected on ")
    (note,) = load_run(bring_to_head(second, third)).notes
    assert note.startswith("the run folder of host-a, which collected the run, is not here")


def test_nodes_that_all_have_one_hostname_have_names_of_their_own(tmp_path: Path):
    """As containers often do; the head, too, and also where its own name was not kept free."""
    first, *others = write_nodes(tmp_path, 3, run=make_run(ranks=3))
    for folder in (first, *others):
        state = read_node(folder)
        assert state is not None
        write_node(folder, replace(state, name="one", hostname="one", node_id=folder.parent.name))
    assert free_name(first / NODES, "one") == "one-2"
    recover(first, others)
    recover(first, others)  # again, which adds nothing
    names = [node.state.name for node in load_run(first).nodes]
    assert names == ["one", "one-2", "one-3"]
    (first / NODES / "one-2").rename(first / NODES / "one")
    assert [node.state.name for node in load_run(first).nodes] == ["one-1", "one", "one-3"]
    assert len(summarise(first).nodes) == 3


def test_a_head_that_was_named_and_never_answered_has_collected_nothing(tmp_path: Path):
    folders_of_nodes = write_nodes(tmp_path, nodes=3, run=make_run(ranks=6))
    for folder in folders_of_nodes:
        state = read_node(folder)
        assert state is not None
        never = replace(state, way=NodeWay.HTTP, clock_offset_s=None, head_machine="nobody")
        write_node(folder, never)
    first, second, _ = folders_of_nodes
    words = str(closing_words(second))
    assert words.startswith("nobody, which --head names, has taken no records of host-b; they are")
    assert "copy that to nobody" not in words and "`traceml recover RUN run`" in words
    (note,) = load_run(second).notes
    assert note.startswith("these are the records of one machine alone: nobody, which --head names")
    recover(first, [second])
    (note,) = load_run(first).notes
    assert note.startswith("1 node of 3 never reached")


def test_what_the_head_refused_is_said(tmp_path: Path):
    head = bring_to_head(*write_nodes(tmp_path, 2))
    (head / NODES / "refused.json").write_text(json.dumps({"token": 3}))
    summary = summarise(head)
    assert summary.tracer is not None
    assert any("3 requests without the run's token were refused" in n for n in summary.tracer.notes)


def test_damage_in_nodes_is_passed_over(tmp_path: Path):
    head = bring_to_head(*write_nodes(tmp_path, 2))
    (head / NODES / "host-b" / NODE).write_text('{"name": 3')
    (head / NODES / "elsewhere").symlink_to(tmp_path)
    (head / NODES / "empty").mkdir()
    (head / NODES / "refused.json").write_text("[]")
    assert [path.name for path in node_folders(head)] == ["host-b"]
    assert len(load_run(head).ranks) == 4


def test_a_node_whose_folder_is_damaged_is_left_out_and_named(tmp_path: Path):
    head = bring_to_head(*write_nodes(tmp_path, 2))
    (head / NODES / "host-b" / folders.MANIFEST).write_text("{")
    found = load_run(head)
    assert [record.rank.rank for record in found.ranks] == [0, 1]
    assert any("node host-b is left out" in note for note in found.notes)


# Recovery


def test_the_folder_of_one_node_alone_is_no_summary_of_all_ranks(tmp_path: Path):
    _, other = write_nodes(tmp_path, 2, run=make_run(ranks=4))
    assert " · 2 of 4 ranks · " in str(recover(other).text).splitlines()[0]


def test_recovered_folders_equal_what_the_head_would_have_written(tmp_path: Path):
    head, *others = write_nodes(tmp_path / "run", 3, ahead_s=1.5)
    summarise(bring_to_head(head, *others))
    written = json.loads((head / folders.SUMMARY).read_text())
    apart = write_nodes(tmp_path / "apart", 3, ahead_s=1.5)
    recover(apart[1], [apart[2], apart[0]])  # in any order
    assert json.loads((apart[0] / folders.SUMMARY).read_text()) == written


def test_a_run_whose_end_nobody_saw_does_not_last_until_it_is_recovered(tmp_path: Path):
    long_ago_s = 1_700_000_000
    run = make_run(ranks=2)
    ranks = tuple(
        replace(each, rank=replace(each.rank, unix_ns=long_ago_s * 10**9)) for each in run.ranks
    )
    head, other = write_nodes(tmp_path, 2, run=replace(run, ranks=ranks, samples=()))
    for folder in (head, other):
        (folder / ENDING).unlink()
        for path in folder.iterdir():
            os.utime(path, (long_ago_s + 20, long_ago_s + 20))
    recover(head, [other])
    ending = folders.read_ending(head)
    assert ending is not None
    assert ending.unix_s == long_ago_s + 20


def test_a_node_that_never_joined_is_added_once(tmp_path: Path):
    head, other = write_nodes(tmp_path, 2)
    (head / NODE).unlink()
    (other / NODE).unlink()
    for _ in range(2):
        recover_by_name(str(head), tmp_path, [str(other)])
    summary = read_summary(head / folders.SUMMARY)
    assert [(node.name, node.way) for node in summary.nodes] == [
        ("host-a", "head"),
        ("host-b", "copied"),
    ]
    assert [node.ranks for node in summary.nodes] == [(0, 1), (2, 3)]


def test_folders_of_two_runs_are_not_put_together(tmp_path: Path):
    head, other = write_nodes(tmp_path, 2)
    state = read_node(other)
    assert state is not None
    write_node(other, replace(state, run_id="another"))
    with pytest.raises(UsageError, match="not of the same run"):
        recover(head, [other])
    (other / NODE).unlink()
    stranger = split_run(make_run(ranks=8), 2)[1]
    with pytest.raises(UsageError, match="not of the same run"):
        recover(head, [write_run(tmp_path / "stranger", stranger)])


def test_a_run_of_another_day_or_with_the_same_ranks_is_no_node_that_never_joined(tmp_path: Path):
    head, other = write_nodes(tmp_path, 2)
    (other / NODE).unlink()
    twin = shutil.copytree(head, tmp_path / "twin")
    (twin / NODE).unlink()
    manifest, ending = folders.read_manifest(other), folders.read_ending(other)
    assert ending is not None
    next_day = {"started_unix_s": manifest.started_unix_s + 86_400}
    folders.write_manifest(other, replace(manifest, **next_day))
    folders.write_ending(other, replace(ending, unix_s=ending.unix_s + 86_400))
    for stranger in (other, twin):
        with pytest.raises(UsageError, match="not of the same run"):
            recover(head, [stranger])


def _commands(words: str) -> list[list[str]]:
    return [shlex.split(each)[1:] for each in re.findall(r"`(traceml recover [^`]*)`", words)]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"run_id": "of-a-wrong-token", "clock_offset_s": None}, id="wrong token"),
        pytest.param({"trouble": "no route"}, id="the link was cut at the end"),
        pytest.param({"way": NodeWay.SHARED}, id="the head was gone"),
    ],
)
def test_the_recovery_that_a_node_advises_at_its_end_works(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    head, other = write_nodes(tmp_path / "apart", 2)
    state = read_node(other)
    assert state is not None
    is_shared = changes.get("way") is NodeWay.SHARED
    head_folder = str(tmp_path / "logs" / "job") if is_shared else ""
    write_node(other, replace(state, is_finished=is_shared, head_folder=head_folder, **changes))
    folder = shutil.copytree(head, tmp_path / "logs" / "job")
    if is_shared:
        (folder / NODES).mkdir()
        shutil.move(other, folder / NODES / "host-b")
        other = folder / NODES / "host-b"
    else:  # as a person copies it to where the head's folder is
        other = shutil.copytree(other, tmp_path / "logs" / "job.host-b")
    (command,) = _commands(str(closing_words(other)))
    monkeypatch.chdir(tmp_path)
    assert main(["job" if word == "RUN" else word for word in command]) == 0
    summary = read_summary(folder / folders.SUMMARY)
    assert [node.ranks for node in summary.nodes] == [(0, 1), (2, 3)]
    assert [note for note in summary.tracer.notes if "recover" in note] == []
    assert main(["job" if word == "RUN" else word for word in command]) == 0  # changes nothing
    assert len(read_summary(folder / folders.SUMMARY).nodes) == 2


def test_a_node_that_has_moved_into_its_run_is_no_run_of_its_own(tmp_path: Path):
    head, other = write_nodes(tmp_path, 2)
    (head.parent / "run.host-b").symlink_to(bring_to_head(head, other) / NODES / "host-b")
    found = scan_runs(head.parent)
    assert (list(found.versions), found.notes) == (["run"], ())


def test_names_of_nodes_are_free(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert free_name(tmp_path, "a") == "a-3"
    assert free_name(tmp_path / "missing", "a") == "a"
