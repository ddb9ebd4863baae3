"""What mattered is computed once per question, however the page is drawn."""

from __future__ import annotations

import pytest

from listed_runs import list_run, list_sweep, metric
from traceml.api.explore_runs import MAX_REMEMBERED, RememberedImportance, explore_what_mattered
from traceml.api.query_runs import RunSearch
from traceml.compare import parameter_importance


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """The metrics for which it was computed what mattered, in order."""
    found: list[str] = []
    real = parameter_importance.what_mattered

    def counted(params, values, name, higher_is_better):
        found.append(name)
        return real(params, values, name, higher_is_better)

    monkeypatch.setattr(parameter_importance, "what_mattered", counted)
    return found


def test_another_pair_of_parameters_computes_nothing_anew(tmp_path, computed: list[str]) -> None:
    search, remembered = RunSearch(list_sweep(tmp_path)), RememberedImportance()
    first = explore_what_mattered(search, remembered, "", "val/loss")
    second = explore_what_mattered(search, remembered, "", "val/loss", "optimizer", "lr")
    assert first is not None and second is not None
    assert (second.down, second.across) == ("params.optimizer", "params.lr")
    assert first.correlation == second.correlation
    assert computed == ["val/loss"]


def test_new_runs_and_other_metrics_are_computed(tmp_path, computed: list[str]) -> None:
    search, remembered = RunSearch(list_sweep(tmp_path)), RememberedImportance()
    for name in ("val/loss", "accuracy", "val/loss"):
        explore_what_mattered(search, remembered, "", name)
    list_run(tmp_path, "new", {"lr": 0.5, "optimizer": "sgd"}, {"val/loss": metric(9.0)})
    found = explore_what_mattered(search, remembered, "", "val/loss")
    assert found is not None and found.notes[0].startswith("13 runs")
    assert computed == ["val/loss", "accuracy", "val/loss"]


def test_few_answers_are_remembered(computed: list[str]) -> None:
    remembered = RememberedImportance()
    names = [f"m{number}" for number in range(MAX_REMEMBERED + 1)]
    for name in (*names, names[-1], names[0]):
        remembered.what_mattered([{"lr": 1}], [1.0], name, None)
    assert computed == [*names, names[0]]
