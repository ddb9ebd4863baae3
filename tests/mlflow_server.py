"""A real MLflow tracking server on a real PostgreSQL, both on loopback.

PostgreSQL is the one of the package `pgserver`, or the machine's own. It refuses to run as root, so
that root starts it as `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes import PYTHON, free_port, wait_until

UNPRIVILEGED = "nobody"


@contextmanager
def starting_mlflow_server() -> Iterator[str]:
    """Start both; the address of the server, which `wait_for_server` waits for."""
    with tempfile.TemporaryDirectory(prefix="traceml-mlflow-") as place, _postgres() as database:
        port = free_port()
        command = [PYTHON, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--workers", "1", "--backend-store-uri", database]
        command += ["--artifacts-destination", f"{place}/artifacts"]
        settings = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        address = f"http://127.0.0.1:{port}"
        environment = {**os.environ, **settings}
        with _running(command, Path(place), signal.SIGKILL, env=environment):
            yield address


def wait_for_server(address: str) -> None:
    """Wait until the server answers."""
    wait_until(lambda: _answers(f"{address}/health"), f"{address} answers")


@contextmanager
def _postgres() -> Iterator[str]:
    """Start PostgreSQL in a new folder; the address of its database as MLflow wants it."""
    with tempfile.TemporaryDirectory(prefix="traceml-postgres-") as name:
        place = Path(name)
        owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            known = pwd.getpwnam(UNPRIVILEGED)
            os.chown(place, known.pw_uid, known.pw_gid)
            owner = {"user": known.pw_uid, "group": known.pw_gid, "extra_groups": []}
        programs = _programs(place, owner)
        data = place / "data"
        make = [programs / "initdb", "-D", data, "-U", "mlflow", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run(make, cwd=place, check=True, capture_output=True, **owner)
        port = free_port()
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        options += ["-c", "fsync=off", "-c", "full_page_writes=off"]
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(port), *options]
        with _running(command, place, signal.SIGQUIT, **owner):  # it ends at once, with its own
            wait_until(lambda: _listens(port), "PostgreSQL listens")
            yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"


def _programs(place: Path, owner: dict[str, Any]) -> Path:
    """The folder of PostgreSQL's programs: the first that its user may run."""
    package = importlib.util.find_spec("pgserver")  # there are none of it for every Python
    places = [str(Path(package.origin).with_name("pginstall") / "bin")] if package else []
    places += [str(Path(found).parent) for found in (shutil.which("postgres"),) if found]
    places += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    for each in places:
        try:
            subprocess.run(
                [f"{each}/initdb", "--version"], cwd=place, check=True, capture_output=True, **owner
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return Path(each)
    pytest.skip(f"no PostgreSQL can be run: {', '.join(places) or 'pgserver is not installed'}")


@contextmanager
def _running(command: Sequence[str], cwd: Path, end: int, **options: Any) -> Iterator[None]:
    """Run a program and what it starts, until a signal ends them."""
    with (cwd / "log").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, stdout=output, stderr=output, start_new_session=True, **options
        )
    try:
        yield
    finally:
        os.killpg(process.pid, end)
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
