"""`traceml history` over real run folders, with the commits of a real git repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from history_runs import TRAIN, write_traced
from repositories import commit, git, make_repository
from traceml.cli import main
from traceml.summaries.read import read_summary

COMMITS = 16
SLOWER_FROM = 9
WITHOUT_RUN = (7, 8)
RUN_TWICE = (0, 15)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Sixteen commits, one after the other."""
    folder = tmp_path_factory.mktemp("repository")
    commits = [make_repository(folder, train="step = 0")]
    commits += [commit(folder, train=f"step = {number}") for number in range(1, COMMITS)]
    return folder, commits


@pytest.fixture(scope="module")
def logs(repository: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of most commits, slower from one commit on; the newest commits were run first."""
    place = tmp_path_factory.mktemp("logs")
    commits = repository[1]
    for number, code in enumerate(commits):
        if number in WITHOUT_RUN:
            continue
        for turn in range(2 if number in RUN_TWICE else 1):
            write_traced(
                place,
                f"c{number}-{turn}",
                code,
                command=(*TRAIN, "--seed", str(turn)),
                started_s=-100.0 * number + turn,
                forward_ms=10.0 if number < SLOWER_FROM else 14.0,
                torch="2.10" if number < SLOWER_FROM else "2.11",
                seed=10 * number + turn,
            )
    write_traced(place, "failed", commits[-1], exit_status=1, command=TRAIN)
    write_traced(place, "elsewhere", commits[-1], host="other", command=TRAIN)
    write_traced(place, "evaluation", commits[-1], command=("python", "evaluate.py"))
    write_traced(place, "branch", "f" * 40, command=(*TRAIN, "--seed", "7"))
    return place


def history(logs: Path, *words: str) -> list[str]:
    return ["history", *words, "--logs-dir", str(logs)]


def read(logs: Path, capfd: pytest.CaptureFixture[str], *words: str) -> Any:
    status = main(history(logs, *words, "--format=json"))
    out, err = capfd.readouterr()
    assert status == 0, err
    return json.loads(out)


@pytest.fixture
def inside(repository: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Being in the repository; its commits."""
    monkeypatch.chdir(repository[0])
    return repository[1]


def test_the_first_commit_after_a_change_is_named_with_those_that_had_no_run(
    logs: Path, inside: list[str], capfd
):
    found = read(logs, capfd)
    assert found["order"] == "commit" and found["metric"] == "step_time_ms"
    (change,) = found["changes"]
    assert change["first_commit"] == inside[SLOWER_FROM]
    assert change["last_commit_before"] == inside[6]
    assert change["commits_between"] == [inside[7], inside[8]]
    assert change["effect"] == "worse" and change["first_subject"] == "a change"
    low, high = change["ratio_interval"]
    assert low < 41 / 37 < high
    assert change["also_different"] == [{"name": "torch", "before": "2.10", "after": "2.11"}]
    assert [level["runs"] for level in found["levels"]] == [8, 8]
    commits = [run["commit"] for run in found["runs"]]
    assert commits == sorted(commits, key=inside.index) and len(commits) == 16


def test_unlike_runs_are_left_out_and_named(logs: Path, inside: list[str], capfd):
    found = read(logs, capfd)
    left = {each["why"]: set(each["examples"]) for each in found["left_out"]}
    assert left == {
        "did not end well, or goes on": {"failed"},
        "another command, script, parameter or machine": {"elsewhere", "evaluation"},
        "its commit is not in the history of HEAD": {"branch"},
    }
    assert found["held_equal"]["command"] == "python train.py"
    assert found["held_equal"]["host"] == "node"
    assert {each["command"] for each in found["others"]} == {
        "python train.py",
        "python evaluate.py",
    }
    assert {"host": "other"} in [each["different"] for each in found["others"]]


def test_the_filter_and_the_command_choose_the_series(logs: Path, inside: list[str], capfd):
    assert len(read(logs, capfd, 'host = "other"')["runs"]) == 1
    found = read(logs, capfd, "--command", "evaluate")
    assert [run["run"] for run in found["runs"]] == ["evaluation"]
    assert "too few" in " ".join(found["notes"])
    assert main(history(logs, "--command", "nothing")) == 2
    assert "python evaluate.py" in capfd.readouterr().err


def test_scripts_of_one_name_in_different_folders_are_different_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    """Without a repository; a run that does not say where it ran is of neither."""
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "logs"
    for number in range(5):
        work = "one" if number % 2 else "two"
        write_traced(logs, f"{work}-{number}", None, folder=f"/home/{work}", content=work)
    write_traced(logs, "unknown", None)
    found = read(logs, capfd)
    assert {run["run"] for run in found["runs"]} == {"two-0", "two-2", "two-4"}
    assert found["held_equal"]["script_path"] == "/home/two/train.py"
    other = next(each for each in found["others"] if each["runs"] == 2)
    assert other["different"] == {"script_path": "/home/one/train.py"}
    found = read(logs, capfd, "--run", "one-1")
    assert {run["run"] for run in found["runs"]} == {"one-1", "one-3"}


@pytest.mark.slow
def test_one_script_in_several_places_is_one_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    """Two checkouts of a repository; a script that was moved; and one with a run that does not say
    where it ran."""
    monkeypatch.chdir(tmp_path)
    for number, root in enumerate(("/home/one", "/ci/7")):
        kept = {"repository": root, "folder": f"{root}/src", "content": root}
        write_traced(tmp_path / "checkouts", f"c{number}", f"{number}" * 40, **kept)
    for number, (place, content) in enumerate((("old", "1"), ("new", "1"), ("new", "2"))):
        kept = {"folder": f"/home/{place}", "content": content, "started_s": float(number)}
        write_traced(tmp_path / "moved", f"m{number}", None, **kept)
    write_traced(tmp_path / "unknown", "u0", None, folder="/home/one")
    write_traced(tmp_path / "unknown", "u1", None)
    for logs, runs in (("checkouts", 2), ("moved", 3), ("unknown", 2)):
        found = read(tmp_path / logs, capfd)
        assert (len(found["runs"]), found["others"]) == (runs, []), logs


def test_series_that_differ_in_one_parameter_are_put_together_on_demand(
    tmp_path: Path, inside: list[str], capfd
):
    """A commit introduced an option."""
    for number in range(4):
        words = ("--dropout", "0.1") if number >= 2 else ()
        command = (*TRAIN, *words)
        write_traced(tmp_path, f"r{number}", inside[number], command=command, seed=number)
    assert len(read(tmp_path, capfd)["runs"]) == 2
    main(history(tmp_path))
    assert "params.dropout" in capfd.readouterr().out
    assert len(read(tmp_path, capfd, "--ignore", "dropout")["runs"]) == 4
    assert main(history(tmp_path, "--ignore", "dropuot")) == 2
    assert main(history(tmp_path, "--ignore", "host")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("sources", "runs"), [({"width": "argparse"}, 14), ({}, 7)])
def test_a_default_that_a_commit_changes_is_a_change_and_no_other_series(
    sources: dict[str, str], runs: int, tmp_path: Path, inside: list[str], capfd
):
    """With the same command the script's own arguments follow from the code; what a script logs by
    a call may be anybody's choice."""
    for number in range(14):
        is_new = number >= 7
        forward_ms = 14.0 if is_new else 10.0
        name = f"r{number:02}"
        write_traced(tmp_path, name, inside[number], forward_ms=forward_ms, seed=number)
        path = tmp_path / name / "final_summary.json"
        summary = json.loads(path.read_text())
        summary |= {"params": {"width": 128 if is_new else 64}, "param_sources": sources}
        path.write_text(json.dumps(summary))
    found = read(tmp_path, capfd)
    assert len(found["runs"]) == runs
    assert ("params.width" in found["held_equal"]) == (not sources)
    different = [change["also_different"] for change in found["changes"]]
    expected = [{"name": "params.width", "before": 64, "after": 128}]
    assert different == ([expected] if sources else [])


def test_in_time_the_same_runs_are_an_improvement(logs: Path, inside: list[str], capfd):
    """They were run from the newest commit to the oldest, but for the first run of another one."""
    found = read(logs, capfd, "--order", "time")
    (change,) = found["changes"]
    assert change["effect"] == "better" and change["commits_between"] is None
    assert change["first_commit"] == inside[6]


def test_without_a_repository_the_order_is_that_of_time_and_it_is_said(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    monkeypatch.chdir(tmp_path)
    found = read(logs, capfd)
    assert found["order"] == "time"
    assert any("no git repository" in note for note in found["notes"])


def test_the_gate_fails_on_the_newest_regression_alone(logs: Path, inside: list[str], capfd):
    assert main(history(logs, "--fail-on", "regression")) == 1
    assert main(history(logs, "--fail-on", "regression", "--min-change", "50%")) == 0
    assert main(history(logs, "--fail-on", "regression", "--order", "time")) == 0
    assert main(history(logs, 'host = "nowhere"')) == 3
    assert main(history(logs, "--metric", "no_such")) == 2


def test_a_gate_with_too_few_commits_to_judge_does_not_pass(logs: Path, inside: list[str], capfd):
    """Eight runs of seven commits."""
    few = history(logs, 'torch = "2.10"')
    assert main(few) == 0
    assert main([*few, "--fail-on", "regression"]) == 3
    out = capfd.readouterr().out
    assert out.startswith("TOO FEW COMMITS: step_time_ms of 8 runs along commits")
    assert "too few commits to tell a change from noise (7): it takes 12" in out


@pytest.mark.slow
def test_summaries_alone_have_the_same_history(
    logs: Path, inside: list[str], tmp_path: Path, capfd
):
    """As CI keeps them from job to job: copies, in any order."""
    for folder in sorted(logs.iterdir(), reverse=True):
        if (folder / "final_summary.json").exists():
            (tmp_path / folder.name).mkdir()
            content = (folder / "final_summary.json").read_bytes()
            (tmp_path / folder.name / "final_summary.json").write_bytes(content)
    for words in ((), ("--order", "time"), ("--command", "evaluate")):
        whole, copied = (read(place, capfd, *words) for place in (logs, tmp_path))
        for key in ("runs", "changes", "held_equal"):
            assert copied[key] == whole[key], key


@pytest.mark.slow
def test_a_branch_that_was_merged_is_not_mixed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    """Training became slower on main while commits of a branch that began before that were run,
    too: none of them made it faster, and the merge did not make it slower."""
    folder, logs, started = tmp_path / "repository", tmp_path / "logs", iter(range(100))
    base = make_repository(folder, train="0")

    def traced(number: int, is_slow: bool) -> str:
        code = commit(folder, **{git(folder, "branch", "--show-current"): str(number)})
        write_traced(
            logs,
            f"{git(folder, 'branch', '--show-current')}-{number:02}",
            code,
            started_s=float(next(started)),
            forward_ms=14.0 if is_slow else 10.0,
            seed=number,
        )
        return code

    on_main = [traced(number, is_slow=number >= 6) for number in range(12)]
    git(folder, "checkout", "--quiet", "-b", "side", base)
    on_side = [traced(number, is_slow=False) for number in range(4)]
    git(folder, "checkout", "--quiet", "main")
    git(folder, "merge", "--quiet", "--no-ff", "--message", "merged", "side")
    on_main += [traced(number, is_slow=True) for number in range(12, 15)]
    write_traced(logs, "unversioned", None, started_s=99.0)
    monkeypatch.chdir(folder)
    found = read(logs, capfd)
    assert [run["commit"] for run in found["runs"]] == on_main
    (change,) = found["changes"]
    assert (change["first_commit"], change["effect"]) == (on_main[6], "worse")
    left = {each["why"].partition(",")[0]: each["runs"] for each in found["left_out"]}
    assert left == {
        "its commit is on a merged branch": len(on_side),
        "it has no commit on record": 1,
    }


@pytest.mark.slow
def test_a_shallow_clone_is_named_and_does_not_pass_the_gate(
    repository: tuple[Path, list[str]],
    logs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd,
):
    """What CI fetches where nothing is said: the newest commit alone."""
    git(tmp_path, "clone", "--quiet", "--depth", "1", repository[0].as_uri(), "clone")
    monkeypatch.chdir(tmp_path / "clone")
    found = read(logs, capfd)
    assert len(found["runs"]) == 2
    (note,) = [note for note in found["notes"] if "shallow clone" in note]
    assert "15 runs" in note and "fetch-depth: 0" in note
    assert main(history(logs, "--fail-on", "regression")) == 3


def test_a_clone_with_all_commits_is_not_called_shallow(logs: Path, inside: list[str], capfd):
    """A run of another branch is left out there as well."""
    assert not any("shallow" in note for note in read(logs, capfd)["notes"])


@pytest.mark.slow
def test_runs_on_any_host_say_that_the_host_changed(tmp_path: Path, inside: list[str], capfd):
    for number in range(12):
        is_new = number >= 6
        write_traced(
            tmp_path,
            f"r{number:02}",
            inside[number],
            started_s=float(number),
            host="new" if is_new else "old",
            forward_ms=14.0 if is_new else 10.0,
            seed=number,
        )
    assert "host" in read(tmp_path, capfd)["held_equal"]
    (change,) = read(tmp_path, capfd, "--any-host")["changes"]
    assert change["also_different"] == [{"name": "host", "before": "old", "after": "new"}]


@pytest.mark.slow
def test_two_versions_that_alternated_in_time_are_judged_by_their_runs(
    tmp_path: Path, inside: list[str], capfd
):
    """As traceml bench runs them: A B B A A B …; a block of each would be two witnesses."""
    for number in range(12):
        is_new = number % 4 in (1, 2)
        write_traced(
            tmp_path,
            f"r{number:02}",
            inside[int(is_new)],
            started_s=float(number),
            forward_ms=14.0 if is_new else 10.0,
            seed=number,
        )
    found = read(tmp_path, capfd)
    assert (found["unit"], found["units"]) == ("run", 12)
    (change,) = found["changes"]
    assert change["first_commit"] == inside[1]


def test_text_and_markdown_say_what_the_json_says(logs: Path, inside: list[str], capfd):
    main(history(logs))
    text = capfd.readouterr().out
    assert text.splitlines()[0] == "1 CHANGE: step_time_ms of 16 runs along commits"
    assert f"first commit after it: {inside[SLOWER_FROM][:10]} a change" in text
    assert f"2 commits in between: {inside[7][:10]}, {inside[8][:10]}" in text
    assert "also different: torch 2.10 -> 2.11" in text
    main(history(logs, "--format", "markdown"))
    head, _, *rest = capfd.readouterr().out.splitlines()
    assert head == "**TraceML history: 1 CHANGE**"
    assert all(not line or line.startswith("    ") for line in rest)


def test_earlier_predictions_are_scored_and_stand_beside_new_ones(
    repository: tuple[Path, list[str]], tmp_path: Path, inside: list[str], capfd
):
    """Input-bound, mended by workers, and input-bound again."""
    slow, fast = {"input_ms": 40.0}, {"input_ms": 1.0}
    versions = [(0, slow, ("--num-workers", "0")), (1, fast, ("--num-workers", "4")), (2, slow, ())]
    for number, (code, parts, words) in enumerate(versions):
        for turn in range(2):
            write_traced(
                tmp_path,
                f"v{number}-{turn}",
                inside[code],
                command=(*TRAIN, *words),
                started_s=100.0 * number + turn,
                seed=10 * number + turn,
                **parts,
            )
    found = read(tmp_path, capfd)
    (score,) = found["scores"]
    assert score["kinds"] == ["INPUT_BOUND"]
    assert (score["before_run"], score["after_run"]) == ("v0-1", "v1-0")
    assert score["step_ms"] == pytest.approx(76, rel=0.02)
    assert score["actual_ms"] == pytest.approx(37, rel=0.02)
    assert score["saved_share"] == pytest.approx(
        (score["step_ms"] - score["actual_ms"]) / (score["step_ms"] - score["predicted_ms"])
    )
    assert 0.9 < score["saved_share"] < 1.05
    (predicted,) = [each for each in found["predictions"] if each["kind"] == "INPUT_BOUND"]
    assert predicted["score"]["median_saved_share"] == score["saved_share"]
    main(history(tmp_path))
    text = capfd.readouterr().out
    assert text.startswith("TOO FEW COMMITS")
    assert "INPUT_BOUND: 76.0 ms" in text and "% of the saving (v0-1 -> v1-0" in text
    assert "an earlier fix saved" in text
    newest = read_summary(tmp_path / "v2-1" / "final_summary.json")
    (stored,) = [each for each in newest.what_if if each.kind == "INPUT_BOUND"]
    assert stored.score is not None
    assert stored.score.median_saved_share == pytest.approx(score["saved_share"])
    text = " ".join((newest.text or "").split())
    assert "If fixed 76" in text and "; an earlier fix saved" in text
    first = read_summary(tmp_path / "v0-1" / "final_summary.json")
    assert [each.score for each in first.what_if] == [None] * len(first.what_if)
