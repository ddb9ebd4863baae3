"""`log_samples`: scores of single examples reach the run folder whatever shape they come in."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import pytest
import torch

import traceml
from traceml.model.environment import LOGGED_SAMPLES
from traceml.store.logged_samples import read_logged_samples
from traceml.trace import sample_log


class Hostile:
    def __getattr__(self, name):
        raise LookupError(name)


def logged(traced, name="samples"):
    traced.finish()
    return read_logged_samples(traced.folder).get(name)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(
            [
                {"id": 1, "score": 0.5, "correct": True, "segment": "day"},
                {"id": 2, "score": 0.25, "correct": False, "segment": "night"},
            ],
            id="rows",
        ),
        pytest.param(
            {
                "id": [1, 2],
                "score": torch.tensor([0.5, 0.25], requires_grad=True),
                "correct": torch.tensor([True, False]),
                "segment": ("day", "night"),
            },
            id="columns",
        ),
        pytest.param(
            (
                {"id": torch.tensor(i), "score": s, "correct": i == 1, "segment": t}
                for i, s, t in ((1, torch.tensor(0.5), "day"), (2, 0.25, "night"))
            ),
            id="a generator of tensors",
        ),
    ],
)
def test_samples_come_in_rows_or_columns(traced, samples):
    traceml.log_samples(samples)
    found = logged(traced)
    assert found.scores == {"score": {"1": 0.5, "2": 0.25}, "correct": {"1": 1.0, "2": 0.0}}
    assert found.segments == {"1": "day", "2": "night"}


def test_one_sample_after_the_other_and_the_last_scores_count(traced):
    for epoch in range(3):
        for number in range(5):
            traceml.log_samples({"id": f"s{number}", "score": number + epoch}, step=epoch)
    assert logged(traced).scores == {"score": {f"s{number}": number + 2.0 for number in range(5)}}


@pytest.mark.parametrize("step", [5, np.int64(5), torch.tensor(5), torch.tensor([5])], ids=repr)
def test_a_step_of_numpy_or_torch_is_one(traced, step):
    traceml.log_samples({"id": 1, "score": 0.5}, step=step)
    assert _lines(traced)[0]["step"] == 5


@pytest.mark.parametrize("step", ["soon", float("nan"), 1 << 63, torch.ones(2), [1]], ids=repr)
def test_what_is_no_step_is_refused(traced, step, capfd):
    traceml.log_samples({"id": 1, "score": 0.5}, step=step)
    assert "step= takes a whole number" in capfd.readouterr().err
    assert _lines(traced) == []


def _lines(traced):
    traced.finish()
    files = traced.folder.glob(LOGGED_SAMPLES.format(pid="*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_test_sets_have_names(traced):
    traceml.log_samples({"id": 1, "score": 0.5}, name="a")
    traceml.log_samples({"id": 1, "score": 0.7}, name="b")
    traced.finish()
    found = read_logged_samples(traced.folder)
    assert {name: each.scores["score"] for name, each in found.items()} == {
        "a": {"1": 0.5},
        "b": {"1": 0.7},
    }


def test_a_large_test_set_is_kept_whole(traced):
    traceml.log_samples({"id": list(range(50_000)), "score": [0.5] * 50_000})
    assert len(logged(traced).scores["score"]) == 50_000


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (None, "pass a dict such as"),
        ("abc", "pass a dict such as"),
        (3, "pass a dict such as"),
        ([1, 2], "something else than dicts"),
        ({"score": 1.0}, "there is no 'id'"),
        ({"id": [1, 2], "score": [1.0]}, "different lengths"),
        ({"id": [1, 2], "score": 1.0}, "is no list"),
        ({"id": 1}, "there is no score"),
        ({"id": 1, "score": "good"}, "no finite number"),
        ({"id": 1, "score": float("nan")}, "no finite number"),
        ({"id": 1, "score": 10**400}, "no finite number"),
        ({"id": 1, "score": Hostile()}, "LookupError"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(traced, capfd, samples, why):
    for _ in range(3):
        traceml.log_samples(samples)
    traceml.log_samples({"id": 1, "score": 0.5})
    assert logged(traced).scores == {"score": {"1": 0.5}}
    (line,) = capfd.readouterr().err.splitlines()
    assert "log_samples" in line and why in line


def test_secrets_are_masked_and_the_file_is_private(traced):
    traceml.log_samples({"id": "sk-abcdefghijklmnopqrstuvwxyz0123456789", "score": 1.0})
    traced.finish()
    (path,) = traced.folder.glob("logged-samples-*.jsonl")
    assert "abcdefghij" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_limit_and_a_full_disk_are_said(traced, capfd, monkeypatch):
    monkeypatch.setattr(sample_log, "MAX_FILE_BYTES", 200)
    traceml.log_samples({"id": 1, "score": 0.5})
    traceml.log_samples({"id": list(range(100)), "score": [1.0] * 100})
    assert logged(traced).scores == {"score": {"1": 0.5}}
    assert "a process may log" in capfd.readouterr().err


def test_a_line_that_was_cut_costs_no_other(traced, capfd, monkeypatch):
    whole = os.write

    def half(file, content):
        return whole(file, content[: len(content) // 2])

    traceml.log_samples({"id": 1, "score": 0.5})
    with monkeypatch.context() as patched:
        patched.setattr(sample_log.os, "write", half)
        traceml.log_samples({"id": 2, "score": 0.5})
    traceml.log_samples({"id": 3, "score": 0.5})
    assert set(logged(traced).scores["score"]) == {"1", "3"}
    assert "disk is full" in capfd.readouterr().err


def test_without_a_run_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    traceml.log_samples({"id": 1, "score": 0.5})
    assert list(tmp_path.iterdir()) == []
