"""MLflow, as the benchmark of the index has it: asked the same question."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.run_index import OPTIMIZERS

for package in ("mlflow", "sqlalchemy", "alembic"):
    pytest.importorskip(package)


@pytest.mark.slow
def test_mlflow_answers_the_question_of_the_benchmark(tmp_path: Path) -> None:
    from benchmarks.mlflow_store import make_store

    found = make_store(tmp_path, 60, 12, 12, OPTIMIZERS)()
    assert 0 < len(found) < 60
    for each in found:
        assert each.data.params["p0"] == "adam"
        assert each.data.metrics["m3"] > 0.2 and each.data.metrics["m7"] < 0.9
