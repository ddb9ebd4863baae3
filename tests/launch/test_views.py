"""`--mode=dashboard` and `--html-report`: shown beside the training, and never at its cost."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from processes import (
    PATIENCE_S,
    PYTHON,
    STEPS,
    TRACEML,
    Running,
    kill,
    run,
    run_traceml,
    started,
    wait_until,
)

WAITS = (
    STEPS
    + """\
import os, time
print("the training begins", flush=True)
while not os.path.exists("go"):
    take_steps(1)
    time.sleep(0.01)
raise SystemExit(3)
"""
)
DASHBOARD = [TRACEML, "run", "--mode=dashboard", "--run-name", "one", "train.py"]


def address_of(running: Running) -> str:
    """Where the dashboard says that it is."""
    said = wait_until(
        lambda: re.search(r"http://[\d.:]+/\S*", running.stderr_path.read_text()),
        "the dashboard says where it is",
    )
    return said[0]


def get(address: str) -> tuple[int, str]:
    parts = urlsplit(address)
    connection = HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    connection.request("GET", parts.path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def server_of(running: Running) -> psutil.Process:
    def found() -> list[psutil.Process]:
        children = psutil.Process(running.pid).children()
        with suppress(psutil.NoSuchProcess):  # one of them has ended meanwhile
            return [one for one in children if "ui" in one.cmdline()]
        return []

    (server,) = wait_until(found, "the dashboard's server runs")
    return server


def test_a_dashboard_shows_the_run_while_it_goes_on_and_ends_with_it(tmp_path: Path) -> None:
    with started(DASHBOARD, tmp_path, WAITS) as running:
        address = address_of(running)
        assert get(address)[0] == 200
        status, text = get(address.replace("/runs/", "/api/runs/"))
        assert status == 200
        assert json.loads(text)["head"]["state"] == "live"
        (tmp_path / "go").touch()
        done = running.finish()
    assert done.status == 3
    assert done.stdout == "the training begins\n"
    assert (done.folder / "output.log").read_text() == "the training begins\n"
    assert json.loads((done.folder / "run.json").read_bytes())["mode"] == "dashboard"
    done.assert_nothing_is_left()


def test_a_dashboard_that_is_killed_is_said_and_nothing_else(tmp_path: Path) -> None:
    with started(DASHBOARD, tmp_path, WAITS) as running:
        address_of(running)
        kill(server_of(running))
        wait_until(
            lambda: "the dashboard exited" in running.stderr_path.read_text(),
            "the launcher says so",
        )
        (tmp_path / "go").touch()
        done = running.finish()
    assert done.status == 3
    assert "Verdict" in done.stderr
    done.assert_nothing_is_left()


def test_a_killed_launcher_takes_its_dashboard_along(tmp_path: Path) -> None:
    with started(DASHBOARD, tmp_path, WAITS) as running:
        address_of(running)
        running.send(signal.SIGKILL)
        done = running.finish()
        done.wait_until_none_is_left()
    done.assert_nothing_is_left()


def test_a_signal_reaches_the_script_and_not_the_dashboard(tmp_path: Path) -> None:
    with started(DASHBOARD, tmp_path, WAITS, start_new_session=True) as running:
        address = address_of(running)
        os.killpg(running.pid, signal.SIGUSR1)
        done = running.finish()
    assert done.status == 128 + signal.SIGUSR1
    assert address in done.stderr
    done.assert_nothing_is_left()


WITHOUT_SERVER = """\
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *_: None if name == "uvicorn" else find(name)
from traceml.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_a_server_the_run_goes_on_and_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "without.py").write_text(WITHOUT_SERVER)
    (tmp_path / "train.py").write_text("print('trained')")
    done = run([PYTHON, "without.py", "run", "--mode=dashboard", "train.py"], tmp_path)
    assert (done.status, done.stdout) == (0, "trained\n")
    (line,) = done.lines_of_ours()
    assert "pip install 'traceml-insight[web]'" in line
    assert json.loads((done.folder / "run.json").read_bytes())["mode"] == "summary"


@pytest.mark.parametrize("script", ["take_steps(5)", "raise SystemExit(3)"], ids=["well", "badly"])
def test_a_report_lies_beside_the_summary(tmp_path: Path, script: str) -> None:
    done = run_traceml(["run", "--html-report", "train.py"], tmp_path, STEPS + script)
    assert done.status == (3 if "Exit" in script else 0)
    report = done.folder / "report.html"
    assert done.lines_of_ours() == [f"traceml: the report is {report}"]
    assert "<!doctype html" in report.read_text()[:100].lower()
    done.assert_nothing_is_left()


def test_a_report_that_cannot_be_written_is_a_line(tmp_path: Path) -> None:
    script = STEPS + (
        "import os\ntake_steps(5)\nos.mkdir(os.environ['TRACEML_RUN_FOLDER'] + '/report.html')\n"
        "raise SystemExit(3)\n"
    )
    done = run_traceml(["run", "--html-report", "train.py"], tmp_path, script)
    assert done.status == 3
    (line,) = done.lines_of_ours()
    assert line.startswith("traceml: the report could not be written: ")
    assert "Verdict" in done.stderr
