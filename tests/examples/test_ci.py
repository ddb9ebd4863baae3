"""The CI templates of `examples/ci/`: their own commands benchmark a pull request in a real
repository."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from paced_training import paced_training
from processes import Finished, run
from repositories import commit, git, make_repository

CI = Path(__file__).parents[2] / "examples" / "ci"
ACTION, WORKFLOW, GITLAB = CI / "github/action.yml", CI / "github/workflow.yml", CI / "gitlab.yml"
STEP_S, SLOWER = 0.025, 1.05
COMMAND = "python train.py 60"
MAX_RUNS = "3"
"""With paced steps, three runs of each side are enough."""


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


@dataclass
class PullRequest:
    """A repository as CI checks it out: a branch changed the training, its base branch went on, and
    the two are merged."""

    folder: Path
    base: str
    head: str
    fork: str
    """Where the branch began, which the event of the pull request may still call its base."""


def pull_request(folder: Path, changed: str) -> PullRequest:
    fork = make_repository(folder, train=paced_training(STEP_S))
    git(folder, "switch", "--quiet", "--create", "change")
    commit(folder, train=changed)
    git(folder, "switch", "--quiet", "main")
    base = commit(folder, other="elsewhere = True\n")
    git(folder, "merge", "--quiet", "--no-ff", "--message", "the merge", "change")
    return PullRequest(folder, base, git(folder, "rev-parse", "HEAD"), fork)


def use_of_the_action() -> dict[str, Any]:
    """The step of the workflow that uses the action."""
    (job,) = load(WORKFLOW)["jobs"].values()
    (used,) = [step for step in job["steps"] if str(step.get("uses", "")).startswith("./")]
    found: dict[str, Any] = used
    return found


def action_environment(given: dict[str, str]) -> dict[str, str]:
    """What GitHub makes of the action's `env`: each input as it was given, else its default."""
    action = load(ACTION)
    (step,) = action["runs"]["steps"]
    values = {
        name: given.get(name, declared.get("default"))
        for name, declared in action["inputs"].items()
    }
    assert set(given) <= set(values)
    references = {
        name: re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text)
        for name, text in step["env"].items()
    }
    return {name: str(values[found[1]]) for name, found in references.items() if found}


@dataclass
class Judged:
    """What a template's commands did with a pull request."""

    request: PullRequest
    done: Finished
    shown: str

    @property
    def comparison(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            (self.request.folder / "traceml-bench.json").read_bytes()
        )
        return document


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """The GitHub action on a pull request whose steps take 5 % longer."""
    place = tmp_path_factory.mktemp("slower")
    request = pull_request(place / "repository", paced_training(STEP_S * SLOWER))
    (step,) = load(ACTION)["runs"]["steps"]
    summary = place / "summary.md"
    base = use_of_the_action()["with"]["base"]
    given = {"command": COMMAND, "base": base, "max-runs": MAX_RUNS}
    environment = {**action_environment(given), "GITHUB_STEP_SUMMARY": str(summary)}
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = run(bash, request.folder, env=environment)
    return Judged(request, done, summary.read_text() if summary.exists() else "")


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """The GitLab template on a merge request that changes a comment."""
    place = tmp_path_factory.mktemp("equal")
    request = pull_request(place / "repository", paced_training(STEP_S) + "# the same\n")
    job = load(GITLAB)[".traceml-bench"]
    environment = {
        **job["variables"],
        "COMMAND": COMMAND,
        "MAX_RUNS": MAX_RUNS,
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": request.fork,
        "CI_MERGE_REQUEST_TARGET_BRANCH_SHA": request.base,
        "CI_COMMIT_SHA": request.head,
    }
    done = run(["sh", "-ec", "\n".join(job["script"])], request.folder, env=environment)
    return Judged(request, done, done.stdout)


def test_a_regression_of_5_percent_fails_the_job_and_is_named(slower: Judged):
    assert slower.done.status == 1, slower.done.stderr
    assert slower.shown.startswith("### 🔴 TraceML: REGRESSION\n")
    assert re.search(r"Step time rose by \d\.\d ms \(\+\d\.\d%, 95% interval", slower.shown)
    assert "train.py &#124; 2 +-" in slower.shown, "the summary names the file that changed"
    assert slower.comparison["verdict"]["ratio"] == pytest.approx(SLOWER, abs=0.02)


def test_the_job_tells_which_commits_it_compared(slower: Judged):
    assert slower.comparison["a"] == f"HEAD^1 ({slower.request.base[:7]})"
    assert slower.comparison["b"] == f"HEAD ({slower.request.head[:7]})"
    assert slower.comparison["bench"]["a_command"] == COMMAND


def test_an_equal_change_passes(equal: Judged):
    assert equal.done.status == 0, equal.done.stderr
    assert equal.comparison["verdict"]["status"] in ("NO CHANGE", "INCONCLUSIVE")
    assert "Gate: passed" in equal.shown


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.slow) for each in ("slower", "equal")])
def judged(request: pytest.FixtureRequest) -> Judged:
    found: Judged = request.getfixturevalue(request.param)
    return found


def test_a_merge_is_compared_with_the_base_branch_that_is_in_it(judged: Judged):
    bench, request = judged.comparison["bench"], judged.request
    assert (bench["a_commit"], bench["b_commit"]) == (request.base, request.head)


def test_a_branch_that_is_not_merged_is_compared_with_where_it_began(tmp_path: Path):
    """GitLab without merged results, where that variable is empty."""
    job = load(GITLAB)[".traceml-bench"]
    environment = {
        **job["variables"],
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": "where-it-began",
        "CI_MERGE_REQUEST_TARGET_BRANCH_SHA": "",
        "CI_COMMIT_SHA": "its-head",
    }
    shown = 'traceml() { echo "$@"; }'
    done = run(["sh", "-ec", "\n".join([shown, *job["script"]])], tmp_path, env=environment)
    assert "--a-ref where-it-began --b-ref its-head " in done.stdout


def test_runs_alternate_and_stay_in_the_logs_folder(judged: Judged):
    names = [folder.name.rpartition("-")[2] for folder in judged.done.folders]
    assert names == ["a1", "b1", "b2", "a2", "a3", "b3"]


def test_the_users_working_tree_is_as_it_was(judged: Judged):
    request = judged.request
    assert git(request.folder, "rev-parse", "HEAD") == request.head
    assert git(request.folder, "status", "--porcelain", "--untracked-files=no") == ""
    assert len(git(request.folder, "worktree", "list").splitlines()) == 1


def test_the_workflow_gives_the_action_what_it_needs():
    used = use_of_the_action()
    inputs = load(ACTION)["inputs"]
    required = {name for name, declared in inputs.items() if declared.get("required")}
    assert required <= set(used["with"]) <= set(inputs)
    assert ACTION.read_text().count(f"{used['uses'].removeprefix('./')}/action.yml") == 1


def test_the_summary_fits_into_a_comment(slower: Judged):
    assert len(slower.shown.encode()) < 60_000
    assert slower.shown.count("<details>") == slower.shown.count("</details>") > 0
