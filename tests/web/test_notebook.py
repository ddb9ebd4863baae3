"""`traceml.show`, in a notebook and outside of one."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

import traceml
from processes import PYTHON, STEPS, is_alive, run, run_traceml, wait_until
from traceml.model.errors import TraceMLError, UsageError


def framed(shown: Any) -> Any:
    """The page inside what a notebook draws."""
    (document,) = re.findall(r'srcdoc="(.*?)"', shown._repr_html_(), re.DOTALL)
    found = re.search(
        r'<script type="application/json" id="page">(.*?)</script>', html.unescape(document)
    )
    assert found
    return json.loads(found[1])["page"]


def summary(logs: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((logs / name / "final_summary.json").read_bytes())
    return found


def test_a_run_is_shown_by_its_name(logs: Path) -> None:
    shown = traceml.show("a", logs_dir=logs)
    assert framed(shown)["head"]["name"] == "a"
    assert repr(shown).strip() == (logs / "a/final_summary.txt").read_text().strip()


@pytest.mark.parametrize("form", ["folder", "file", "dict"])
def test_a_run_is_shown_in_every_form_it_has(logs: Path, form: str) -> None:
    forms: dict[str, Any] = {
        "folder": logs / "a",
        "file": str(logs / "a/final_summary.json"),
        "dict": summary(logs, "a"),
    }
    assert framed(traceml.show(forms[form]))["head"]["name"] == "a"


def test_runs_are_compared(logs: Path) -> None:
    for pair in (["a", "b"], (logs / "a", summary(logs, "b"))):
        shown = traceml.show(pair, logs_dir=logs)
        page = framed(shown)
        assert (page["type"], page["a"], page["b"]) == ("comparison", "a", "b")
        assert page["verdict"]["status"] in repr(shown)
    assert "B: b\n" in repr(shown), "a dict is called as its run is"


def test_a_comparison_is_shown_as_file_and_as_dict(logs: Path, tmp_path: Path) -> None:
    done = run_traceml(["compare", logs / "a", logs / "b"], tmp_path)
    assert done.status == 0, done.stderr
    path = tmp_path / "compare/a_vs_b.json"
    for comparison in (path, json.loads(path.read_bytes())):
        assert framed(traceml.show(comparison))["type"] == "comparison"


def test_the_frame_may_run_the_viewer_and_nothing_else(logs: Path) -> None:
    markup = traceml.show("a", logs_dir=logs)._repr_html_()
    assert 'sandbox="allow-scripts"' in markup
    assert markup.count("<") == 2, "the frame's two tags; the page is escaped inside"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gone", "no run 'gone'"),
        ({}, "is not a run summary"),
        ([], "no run was given"),
        (7, "a int cannot be shown"),
        ([7], "a int cannot be shown"),
        ({"step_time": {1, 2}}, "holds what JSON cannot"),
        ({(1, 2): 3}, "holds what JSON cannot"),
        ({"step_time": 7}, "a dict that was given is not a usable run summary"),
    ],
)
def test_what_cannot_be_shown_is_said(logs: Path, asked: Any, said: str) -> None:
    with pytest.raises(TraceMLError, match=re.escape(said)):
        traceml.show(asked, logs_dir=logs)


def test_without_a_run_there_is_nothing_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEML_RUN_FOLDER", raising=False)
    with pytest.raises(UsageError, match=r"call traceml.init\(\) first"):
        traceml.show()


def test_showing_loads_the_standard_library_alone(logs: Path) -> None:
    code = f"""
import sys
before = set(sys.modules)
import traceml
traceml.show("a", logs_dir={str(logs)!r})
loaded = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(*sorted(loaded - sys.stdlib_module_names))
"""
    done = run([PYTHON, "-c", code], logs)
    assert done.stdout.split() == ["traceml"], done.stderr


LIVE = """
import traceml
traceml.init(run_name="live")
import sys, time, threading
shown = traceml.show()
assert traceml.show()._repr_html_() == shown._repr_html_(), "one server for all cells"
print(shown._repr_html_(), threading.active_count(), flush=True)
print(repr(shown), flush=True)
"""


def _ask(address: str, path: str) -> Any:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200, content
    return json.loads(content)


def test_a_live_cell_follows_the_run_and_ends_with_the_kernel(tmp_path: Path) -> None:
    script = LIVE + STEPS + "while True:\n    take_steps(1)\n    time.sleep(0.01)\n"
    (tmp_path / "kernel.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if "TRACEML" not in name}
    with subprocess.Popen(
        [PYTHON, "kernel.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as kernel:
        try:
            assert kernel.stdout is not None
            markup, link = kernel.stdout.readline().decode(), kernel.stdout.readline().decode()
            (address,) = re.findall(r'<iframe [^>]*src="(.*?)"', markup)
            assert address.endswith("/runs/live")
            said = kernel.stdout.readline().decode()
            assert link.rstrip().endswith("</div> 1"), "no thread in the notebook's process"
            assert f"live at {address}" in said
            wait_until(lambda: _ask(address, "/api/runs/live")["head"]["steps"][0] != "0", "steps")
            children = psutil.Process(kernel.pid).children()
            (server,) = [each for each in children if "ui" in each.cmdline()]
        finally:
            kernel.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(server), "the server has ended with the kernel")
