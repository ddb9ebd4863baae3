"""The order of commits, with branches that were merged."""

from __future__ import annotations

from pathlib import Path

import pytest

from repositories import commit, git, make_repository
from traceml.api.commit_history import CommitHistory


def test_commits_of_a_merged_branch_are_between_what_they_were_merged_into(tmp_path: Path):
    base = make_repository(tmp_path, train="0")
    git(tmp_path, "checkout", "--quiet", "-b", "side")
    side = commit(tmp_path, model="1")
    git(tmp_path, "checkout", "--quiet", "main")
    straight = commit(tmp_path, train="2")
    git(tmp_path, "merge", "--quiet", "--no-ff", "--message", "merged: a; b", "side")
    merged = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "checkout", "--quiet", "-b", "other", base)
    unmerged = commit(tmp_path, model="3")
    git(tmp_path, "checkout", "--quiet", "main")

    history = CommitHistory.around(tmp_path)
    assert history is not None
    order = sorted(history.places, key=history.places.__getitem__)
    assert order[0] == base and order[-1] == merged and set(order[1:-1]) == {side, straight}
    assert history.between(straight, merged) == (side,)
    assert set(history.between(base, merged) or ()) == {side, straight}
    assert history.between(merged, merged) == ()
    assert history.between(None, merged) is None
    told = history.subjects([merged, None, unmerged, base, merged])
    assert told == {merged: "merged: a; b", base: "a change"}
    assert history.subjects([unmerged, None]) == {}
    assert history.knows_any([None, side]) and not history.knows_any([unmerged, None])


def test_a_line_follows_the_branch_with_runs_of_more_commits(tmp_path: Path):
    base = make_repository(tmp_path, train="0")
    git(tmp_path, "checkout", "--quiet", "-b", "side")
    side = [commit(tmp_path, model=str(number)) for number in (1, 2)]
    git(tmp_path, "checkout", "--quiet", "main")
    straight = [commit(tmp_path, train=str(number)) for number in (3, 4, 5)]
    git(tmp_path, "merge", "--quiet", "--no-ff", "--message", "merged", "side")
    merged = git(tmp_path, "rev-parse", "HEAD")
    whole = CommitHistory.around(tmp_path)
    assert whole is not None

    def line(*runs: str) -> list[str]:
        places = whole.along(runs).places
        return sorted(places, key=places.__getitem__)

    assert line() == line(side[0], straight[0]) == [base, *straight, merged]
    assert line(*side, straight[0]) == [base, *side, merged]
    assert line(*side, *straight) == [base, *straight, merged]


@pytest.mark.slow
def test_a_clone_without_older_commits_is_shallow(tmp_path: Path):
    whole = tmp_path / "whole"
    make_repository(whole, train="0")
    commit(whole, train="1")
    git(tmp_path, "clone", "--quiet", "--depth", "1", whole.as_uri(), "clone")
    for folder, is_shallow in ((whole, False), (tmp_path / "clone", True)):
        history = CommitHistory.around(folder)
        assert history is not None and history.is_shallow() == is_shallow


@pytest.mark.slow
def test_a_folder_outside_any_repository_has_no_history(tmp_path: Path):
    assert CommitHistory.around(tmp_path) is None
    assert CommitHistory.around(tmp_path / "missing") is None
