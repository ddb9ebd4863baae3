"""The server as a browser and a program see it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

import traceml
from processes import (
    PATIENCE_S,
    PATIENT_VIEWS,
    PYTHON,
    STEPS,
    TRACEML,
    Running,
    kill,
    run_traceml,
    started,
    wait_until,
)
from served import Served, Viewer, address_in, serving
from traceml.text.open_metrics import OPEN_METRICS_TYPE, PROMETHEUS_TYPE


@pytest.mark.parametrize("page", ["/", "/runs/a", "/compare?a=a&b=b"])
def test_every_page_is_the_shell_without_a_redirect(server: Served, page: str) -> None:
    answer = server.get(page)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert b'<div id="app">' in answer.body
    assert re.findall(rb'(?:src|href)="(?!/static/|data:)', answer.body) == []


def test_the_page_of_a_run_that_is_not_there_says_so_in_its_status(server: Served) -> None:
    answer = server.get("/runs/gone")
    assert answer.status == 404
    assert b'<div id="app">' in answer.body


@pytest.mark.parametrize(
    ("address", "kind"),
    [("/api/runs", "runs"), ("/api/runs/a", "run"), ("/api/compare?a=a&b=b", "comparison")],
)
def test_every_page_is_there_for_programs(server: Served, address: str, kind: str) -> None:
    answer = server.get(address)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["type"] == kind
    assert answer.headers["cache-control"] == "no-store"


def test_prometheus_is_told_of_runs_that_just_ended(server: Served, logs: Path) -> None:
    for name in ("a", "b"):
        os.utime(logs / name / "final_summary.json")  # just now, however long this session lasts
    answer = server.get("/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, PROMETHEUS_TYPE)
    families = {each.name: each for each in parse_prometheus(answer.body.decode())}
    states = {
        each.labels["run"]: each.labels["state"] for each in families["traceml_run_state"].samples
    }
    assert states == {"a": "finished", "b": "finished"}
    taken = {each.labels["run"]: each.value for each in families["traceml_steps"].samples}
    assert taken == {"a": 60, "b": 60}
    as_open_metrics = server.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert as_open_metrics.headers["content-type"] == OPEN_METRICS_TYPE
    read = parse_open_metrics(as_open_metrics.body.decode())
    assert {each.name for each in read} >= {"traceml_step_duration_seconds", "traceml_steps"}


def test_the_list_has_the_runs(server: Served) -> None:
    page = server.get("/api/runs").json
    assert {row["name"] for row in page["rows"]} == {"a", "b"}
    assert (page["total"], page["run_count"]) == (2, 2)
    (row,) = server.get("/api/runs?sort=-name&offset=1&limit=1&columns=steps").json["rows"]
    assert (row["name"], row["cells"]) == ("a", ["a", "60"])


def test_the_list_is_asked_with_words_groups_and_a_baseline(server: Served) -> None:
    assert server.get("/api/runs?q=FINISHED+nobody").json["total"] == 0
    page = server.get("/api/runs?q=name+%3D+%22a%22&base=b&max_age=10").json
    assert ([row["name"] for row in page["rows"]], page["baseline"]["name"]) == (["a"], "b")
    (group,) = server.get("/api/runs?group=status&columns=steps").json["groups"]
    assert (group["count"], group["cells"][:2]) == (2, ["finished", "2"])
    columns = server.get("/api/columns?search=step_time&limit=1").json
    assert (columns["columns"][0]["key"], columns["total"] > 1) == ("step_time_ms", True)


def test_runs_are_exported_as_csv(server: Served) -> None:
    answer = server.get("/export.csv?columns=name,steps&sort=-name")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="runs.csv"'
    assert answer.body == b"name,steps\nb,60\na,60\n"
    assert server.get("/export.csv?columns=name&run=a&run=gone").body == b"name\na\n"
    assert server.get("/export.csv?columns=name&q=nobody").body == b"name\n"
    grouped = server.get("/export.csv?group_by=status&columns=steps").body.decode()
    assert grouped.splitlines()[1].startswith("finished,2,60")


def test_runs_can_be_searched(server: Served) -> None:
    found = server.get("/api/search?filter=status+%3D+%22finished%22&sort=-name&columns=name,steps")
    assert (found.status, found.headers["cache-control"]) == (200, "no-store")
    assert found.json["runs"] == [{"name": "b", "steps": 60}, {"name": "a", "steps": 60}]
    assert server.get("/api/search?filter=name+%3D+%22b%22&limit=1").json["total"] == 1
    later = server.get("/api/search?q=finished&sort=name&columns=name&offset=1").json
    assert (later["runs"], later["total"]) == ([{"name": "b"}], 2)
    assert server.get("/api/search?filter=steps>1&q=nobody").json["total"] == 0
    assert server.get("/api/search?group_by=name&columns=steps&offset=1&limit=1").json["groups"]
    (group,) = server.get("/api/search?group_by=status&columns=steps").json["groups"]
    assert (group["group"], group["count"]) == ({"status": "finished"}, 2)
    assert group["columns"]["steps"]["mean"] == 60.0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("filter=steps+%3E", "expected a value after"),
        ("filter=stauts+%3D+1", "did you mean status"),
        ("sort=nothing", "no run has 'nothing'"),
        ("limit=-1", "is no number of runs"),
        ("fliter=steps+%3E+1", "a search has no 'fliter' (did you mean filter?)"),
        ("group_by=,", "nothing to group by"),
        ("offset=1e3", "is no number of runs"),
        ("offset=%D9%A1", "is no number of runs"),
    ],
)
def test_a_search_that_cannot_be_understood_says_why(
    server: Served, query: str, words: str
) -> None:
    answer = server.get(f"/api/search?{query}")
    assert answer.status == 400
    assert words in answer.error


def test_an_error_says_at_which_place_of_the_filter_it_is(server: Served) -> None:
    for path in ("/api/search", "/api/runs", "/export.csv"):
        answer = server.get(f"{path}?q=steps+%3E+1+and+stauts+%3D+1")
        assert (answer.status, answer.json["at"]) == (400, 14)
        assert "did you mean status" in answer.json["problem"]
        assert answer.error.splitlines()[-1].index("^") == 14 + 2


def test_a_part_of_the_steps_is_there_in_detail(server: Served) -> None:
    answer = server.get("/api/runs/a/detail?first=10&last=20")
    assert answer.status == 200
    assert [figure["zooms"] for figure in answer.json["figures"]] == [True]


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/api/runs/gone", 404, "there is no run 'gone'"),
        ("/api/runs/a/detail", 400, "first='' is not a step"),
        ("/api/runs/a/detail?first=2&last=1", 400, "the steps 2 to 1 are none"),
        ("/api/runs/a/detail?first=-1&last=1", 400, "expected a whole number"),
        (f"/api/runs/a/detail?first=1&last={'9' * 40}", 400, "expected a whole number"),
        ("/api/compare?a=a", 400, "needs runs on both sides"),
        ("/api/compare?a=a&b=gone", 404, "there is no run 'gone'"),
        ("/api/events?page=/nowhere", 400, "there is no page '/nowhere'"),
        ("/api/events?page=/", 400, "asked for again instead, at /api/runs"),
        ("/api/runs?offset=-1", 400, "is no number of runs"),
        ("/api/runs?fliter=1", 400, "a search has no 'fliter'"),
        ("/api/runs?max_age=soon", 400, "is no number of seconds"),
        ("/api/events?page=//[", 400, "there is no page '//['"),
        ("/api/nothing", 404, "there is nothing at '/api/nothing'"),
        ("/runs/a/", 404, "there is nothing at '/runs/a/'"),
    ],
)
def test_what_cannot_be_answered_is_said(
    server: Served, address: str, status: int, words: str
) -> None:
    answer = server.get(address)
    assert answer.status == status
    assert words in answer.error


def test_a_head_request_has_no_body_and_ends(server: Served) -> None:
    for page in ("/", "/api/runs", "/api/events?page=/runs/a"):
        answer = server.get(page, method="HEAD")
        assert (answer.status, answer.body) == (200, b"")


def test_the_viewers_files_may_be_kept_for_ever(server: Served) -> None:
    (script,) = re.findall(r'src="(/static/viewer.js\?v=\w+)"', server.get("/").body.decode())
    plain = server.get(script)
    assert plain.status == 200
    assert "immutable" in plain.headers["cache-control"]
    zipped = server.get(script, Accept_Encoding="gzip, br")
    assert zipped.headers["content-encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == plain.body
    assert server.get("/static/viewer.js").headers["cache-control"] == "no-cache"
    again = server.get("/static/viewer.js", If_None_Match=plain.headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_a_finished_run_is_sent_once(server: Served) -> None:
    with server.viewer("/runs/a") as viewer:
        assert viewer.next()[0] == "page"
    assert viewer.page == server.get("/api/runs/a").json


def test_a_comparison_can_be_looked_at_too(server: Served) -> None:
    with server.viewer("/compare%3Fa=a%26b=b") as viewer:
        name, page = viewer.next()
    assert (name, page["type"]) == ("page", "comparison")


LIVE = (
    STEPS
    + """
import pathlib, time
while not pathlib.Path("stop").exists():
    time.sleep(0.005)
    take_steps(1)
"""
)


def _until(viewer: Viewer, what: str, condition: object) -> None:
    assert callable(condition)
    wait_until(lambda: viewer.next() and condition(viewer.page), what)


def test_a_live_run_is_followed_to_its_end_by_what_changes(tmp_path: Path) -> None:
    words = [TRACEML, "run", "--run-name", "live", "train.py"]
    with started(words, tmp_path, LIVE) as run, serving(tmp_path / "logs") as server:
        wait_until(lambda: server.get("/api/runs/live").status == 200, "the run is there")
        with server.viewer("/runs/live") as viewer:
            _until(viewer, "it is live", lambda page: page["head"]["state"] == "live")
            steps = viewer.page["head"]["steps"]
            _until(viewer, "steps are added", lambda page: page["head"]["steps"] != steps)
            assert server.get("/api/runs").json["rows"][0]["state"] == "live"
            (tmp_path / "stop").touch()
            assert run.finish().status == 0
            _until(viewer, "it is over", lambda page: page["head"]["state"] == "finished")
            listed = server.get("/api/runs?max_age=0").json["rows"]
            assert [row["state"] for row in listed] == ["finished"]
            wait_until(
                lambda: server.get("/api/runs/live").json == viewer.page or viewer.next(),
                "the page that was made of changes is the page",
            )


def test_many_viewers_of_one_run_see_the_same(tmp_path: Path) -> None:
    words = [TRACEML, "run", "--run-name", "live", "train.py"]
    with started(words, tmp_path, LIVE), serving(tmp_path / "logs") as server:
        wait_until(lambda: server.get("/api/runs/live").status == 200, "the run is there")

        seen: list[set[str]] = [set() for _ in range(10)]

        def look(number: int) -> None:
            with server.viewer("/runs/live") as viewer:
                viewer.next()

                def has_what_all_have() -> bool:
                    name, change = viewer.next()
                    if name == "delta":
                        seen[number].add(json.dumps(change))
                    return bool(set.intersection(*seen))

                wait_until(has_what_all_have, "each change is made once for all")

        with ThreadPoolExecutor(10) as viewers:
            list(viewers.map(look, range(10)))
        (tmp_path / "stop").touch()
        assert set.intersection(*seen)


def test_a_run_that_is_deleted_while_looked_at_is_gone(logs: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(logs / "a", tmp_path / "logs" / "a")
    with serving(tmp_path / "logs") as server, server.viewer("/runs/a") as viewer:
        assert viewer.next()[0] == "page"
        copied.rename(tmp_path / "deleted")  # at once: half a run is a page as well
        name, data = viewer.next()
        assert name == "gone"
        assert "there is no run 'a'" in data["error"]
        assert server.get("/api/runs/a").status == 404


def test_a_run_that_takes_the_name_of_another_is_shown_instead(logs: Path, tmp_path: Path) -> None:
    place, other = tmp_path / "logs" / "x", tmp_path / "other"
    shutil.copytree(logs / "a", place)
    shutil.copytree(logs / "b", other)
    manifest = json.loads((other / "run.json").read_bytes())
    (other / "run.json").write_text(json.dumps(manifest | {"command": ["python", "other.py"]}))
    with serving(tmp_path / "logs") as server, server.viewer("/runs/x") as viewer:
        viewer.next()
        shutil.rmtree(place)
        shutil.copytree(other, place)
        _until(viewer, "the other run", lambda page: "other.py" in page["head"]["command"])
        assert "other.py" in server.get("/api/runs/x").json["head"]["command"]


def test_broken_folders_leave_the_others_in_the_list(logs: Path, tmp_path: Path) -> None:
    place = tmp_path / "logs"
    shutil.copytree(logs / "a", place / "a")
    for name, content in {"empty": b"", "cut": b'{"run_name": "cu', "other": b"[1, 2]"}.items():
        (place / name).mkdir()
        (place / name / "run.json").write_bytes(content)
    (place / "a file").write_text("no run")
    (tmp_path / "elsewhere").mkdir()
    with serving(place, cwd=tmp_path / "elsewhere") as server:
        page = server.get("/api/runs").json
        assert "a" in {row["name"] for row in page["rows"]}
        for name in ("empty", "cut", "other"):
            answer = server.get(f"/api/runs/{name}")
            assert answer.status == 404
            assert name in answer.error


def test_no_logs_folder_yet_is_an_empty_list_that_fills(logs: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "logs") as server:
        assert server.get("/api/runs").json["rows"] == []
        assert "there is no folder logs here yet" in server.running.stderr_path.read_text()
        shutil.copytree(logs / "a", tmp_path / "logs" / "a")
        wait_until(lambda: server.get("/api/runs").json["rows"], "the run appears")


def test_a_run_is_called_as_its_folder_is(logs: Path, tmp_path: Path) -> None:
    shutil.copytree(logs / "a", tmp_path / "logs" / "copy of a")
    with serving(tmp_path / "logs") as server:
        (row,) = server.get("/api/runs").json["rows"]
        assert row["name"] == "copy of a"
        assert server.get("/api/runs/copy%20of%20a").json["head"]["name"] == "copy of a"


def test_a_taken_port_leads_to_the_next_free_one(logs: Path, server: Served) -> None:
    with serving(logs, "--port", str(server.port)) as other:
        assert other.port != server.port
        assert f"port {server.port} is taken" in other.running.stderr_path.read_text()
        assert other.get("/").status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_its_streams(logs: Path, number: signal.Signals) -> None:
    with serving(logs) as server, server.viewer("/runs/a") as viewer:
        viewer.next()
        server.running.send(number)
        assert viewer.next() == ("end", None)
        done = server.running.finish()
    assert done.status == 0
    assert "Traceback" not in done.stderr


def test_whoever_does_not_read_is_cut_off_without_a_word(logs: Path) -> None:
    with serving(logs) as server, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.connect(("127.0.0.1", server.port))
        request = f"GET /static/viewer.js HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
        deaf.sendall(8 * request.encode())
        assert deaf.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL) == b"HTTP/1.1 200"
        server.running.send(signal.SIGTERM)
        done = server.running.finish()
    assert done.status == 0
    assert "Traceback" not in done.stderr


def test_a_dashboard_shows_the_end_of_its_run_and_stays_for_who_looks(tmp_path: Path) -> None:
    words = ["run", "--mode=dashboard", "--run-name", "live", "train.py"]
    with started([PYTHON, "-c", PATIENT_VIEWS, *words], tmp_path, LIVE) as run:
        server = Served(run, wait_until(lambda: address_in(run), "the dashboard is there"))
        assert server.address.endswith("/runs/live")
        with server.viewer("/runs/live") as viewer:
            _until(viewer, "it is live", lambda page: page["head"]["state"] == "live")
            (tmp_path / "stop").touch()
            _until(viewer, "it is over", lambda page: page["head"]["state"] == "finished")
            done = run.finish()  # the launcher waits for nobody
            assert (done.status, "Traceback" in done.stderr) == (0, False)
            assert "the dashboard stays for who has it open" in done.stderr
        assert server.get("/runs/live").status == 200, "a reload finds it"
        (left,) = done.left()
        kill(left)
    done.wait_until_none_is_left()


def test_a_dashboard_that_stays_ends_when_nobody_has_looked_for_long(logs: Path) -> None:
    words = [TRACEML, "ui", "--logs-dir", logs, "--port", "0", "--run", "a", "--until-run-ends"]
    with subprocess.Popen(
        [*map(str, words), "--stay", "0.3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        server = Served(cast("Running", None), found[0])
        with server.viewer("/runs/a") as viewer:
            assert viewer.next()[0] == "page"
            process.stdin.close()
            assert process.stdout.readline() == "stays\n"
            assert server.get("/api/runs/a").status == 200
        assert process.wait(PATIENCE_S) == 0


def test_without_anybody_behind_it_a_dashboard_ends(logs: Path) -> None:
    """Standard input is the launcher's word that it is there; here it ends at once."""
    with serving(logs, "--run", "a", "--until-run-ends") as server:
        assert server.running.finish().status == 0


def test_a_checkout_without_the_viewer_says_how_to_build_it(logs: Path, tmp_path: Path) -> None:
    package = Path(traceml.__file__).parent
    unbuilt = shutil.ignore_patterns("static", "viewer", "__pycache__")
    shutil.copytree(package, tmp_path / "src" / "traceml", ignore=unbuilt)
    here = {"PYTHONPATH": str(tmp_path / "src")}
    with serving(logs, cwd=tmp_path, env=here) as server:
        page = server.get("/runs/a")
        assert (page.status, b"pip install -e ." in page.body) == (503, True)
        assert server.get("/api/runs/a").status == 200
    done = run_traceml(["report", logs / "a", "-o", "r.html"], tmp_path, env=here)
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert "`pip install -e .` in the checkout builds them" in done.stderr


def test_a_lens_that_no_run_can_have_is_refused_with_those_there_are(server: Served) -> None:
    for path in ("/api/runs/a?lens=", "/api/runs/a/detail?first=1&last=9&lens="):
        assert server.get(f"{path}worst").status == 200
        refused = server.get(f"{path}rank-x")
        assert refused.status == 400
        assert "expected mean, median, worst or rank-N" in refused.error


def test_a_port_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    for option, value in (("--port", "70000"), ("--port", "x"), ("--host", "a/b")):
        done = run_traceml(["ui", option, value], tmp_path)
        assert done.status == 2
        assert value in done.stderr


def test_an_address_of_another_machine_is_one_line(tmp_path: Path) -> None:
    done = run_traceml(["ui", "--host", "192.0.2.1"], tmp_path)
    assert done.status == 2
    assert done.stderr.startswith("traceml ui: nothing can listen at 192.0.2.1:8765")
