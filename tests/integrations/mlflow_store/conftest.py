"""What the tests with an MLflow server share: the server, and a few real runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_server import starting_mlflow_server, wait_for_server
from processes import run_traceml

SWEEP = Path(__file__).parents[3] / "examples" / "sweep.py"
RUNS = {"good": (0.01, 0), "again": (0.01, 1), "poor": (0.0001, 0)}
"""Learning rates and seeds; 0.0001 learns little in so few steps."""


@pytest.fixture(scope="session")
def starting_server() -> Iterator[str]:
    """The address of a tracking server that may still be starting."""
    pytest.importorskip("mlflow")
    pytest.importorskip("psycopg2")
    with starting_mlflow_server() as address:
        yield address


@pytest.fixture(scope="session")
def server(logs: Path, starting_server: str) -> str:
    """The address of a tracking server; it starts while the runs are made."""
    wait_for_server(starting_server)
    return starting_server


@pytest.fixture(autouse=True)
def settings(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MLflow's own settings, as a user has them; each test works in a folder of its own."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory, starting_server: str) -> Path:
    """The logs folder of a few trainings of the sweep."""
    place = tmp_path_factory.mktemp("sweep")
    for name, (rate, seed) in RUNS.items():
        words = ["--lr", str(rate), "--width", "32", "--optimizer", "adam", "--seed", str(seed)]
        done = run_traceml(["run", "--run-name", name, str(SWEEP), "--args", *words], place)
        assert done.status == 0, done.stderr
    return place / "logs"


@pytest.fixture
def client(server: str) -> Any:
    """MLflow's own client."""
    import mlflow

    return mlflow.MlflowClient(server)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command; its exit status, and what it printed on both streams."""
    from traceml.cli import main

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(list(words))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
