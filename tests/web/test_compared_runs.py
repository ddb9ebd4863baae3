"""Pages of several runs at their addresses, as files to keep, and logged files to save."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from processes import wait_until
from served import Served, serving
from traceml.model.errors import RunNotFound, UsageError
from traceml.web.live_pages import Pages
from traceml.web.security import Policy
from traceml.web.server import application
from traceml.web.sources import Address, address_of, compared_address, source_of

LOGGED = b"<script>alert(1)</script>"


@pytest.fixture(scope="module")
def several(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `a` and `b`, two more that differ from `b`, and a logged file."""
    folder = tmp_path_factory.mktemp("several") / "logs"
    shutil.copytree(logs, folder)
    for place, name in enumerate(("c", "d")):
        shutil.copytree(logs / "b", folder / name)
        path = folder / name / "final_summary.json"
        summary = json.loads(path.read_text())
        summary |= {"duration_s": 50.0 + place, "params": {"lr": 0.1 * (place + 1)}}
        path.write_text(json.dumps(summary))
    kept = folder / "c/artifacts/0001/page.html"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(LOGGED)
    summary["artifacts"] = {
        "page.html": {"path": "/x", "stored": "artifacts/0001/page.html", "kind": "other"}
    }
    (folder / "c/final_summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="module")
def server(several: Path) -> Iterator[Served]:
    with serving(several) as served:
        yield served


@pytest.mark.parametrize(
    ("query", "address"),
    [
        ("run=a&run=b&run=c", Address("many", ("a", "b", "c"))),
        ("run=a&run=b&run=a&run=b&run=c", Address("many", ("a", "b", "c"))),
        ("run=a&run=b", Address("comparison", ("a",), ("b",))),
        ("a=a&a=c&b=b", Address("comparison", ("a", "c"), ("b",))),
    ],
    ids=["three", "named twice", "two", "two sides"],
)
def test_an_address_says_which_runs_are_compared(query: str, address: Address) -> None:
    assert address_of(f"/compare?{query}") == address


@pytest.mark.parametrize(
    ("runs", "a", "said"),
    [
        (["a"], [], "there is nothing to compare 'a' with"),
        (["a", "a"], [], "there is nothing to compare 'a' with"),
        ([str(n) for n in range(21)], [], "21 runs are too many for one page: expected up to 20"),
        (["a", "b"], ["c"], "not both at once"),
        ([], ["c"], "a comparison needs runs on both sides"),
    ],
    ids=["one", "one, twice", "twenty-one", "both ways", "one side"],
)
def test_an_address_that_compares_nothing_says_what_to_ask_for(
    runs: list[str], a: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        compared_address(runs, a, [])


def test_a_run_that_is_gone_is_named_and_the_others_are_compared(several: Path) -> None:
    source = source_of(Address("many", ("a", "gone", "b", "c")), several)
    page = source.page()
    assert page.title == "a and 2 more"
    assert any("there is no run 'gone'" in note for note in page.notes)
    assert source.page() is page
    with pytest.raises(RunNotFound, match="there is no run 'gone'"):
        source_of(Address("many", ("gone", "a", "b")), several).page()


def test_many_runs_are_there_for_programs(server: Served) -> None:
    answer = server.get("/api/compare?run=a&run=b&run=c&run=d")
    assert (answer.status, answer.json["type"]) == (200, "many")
    assert server.get("/compare?run=a&run=b&run=c").status == 200
    refused = server.get("/api/compare?" + "&".join(f"run={n}" for n in range(21)))
    assert (refused.status, "too many for one page" in refused.error) == (400, True)


def test_further_curves_are_asked_for_by_name(server: Served) -> None:
    answer = server.get("/api/compare/curves?run=a&run=b&run=c&metric=nothing")
    assert (answer.status, answer.json) == (200, {"figures": []})
    for names in ("", "&".join(f"metric={n}" for n in range(13))):
        answer = server.get(f"/api/compare/curves?a=a&b=b&{names}")
        assert answer.status == 400
        assert "expected 1 to 12" in answer.error


def test_finer_values_are_asked_for_by_steps(server: Served) -> None:
    for runs in ("run=a&run=b&run=c", "a=a&b=b"):
        answer = server.get(f"/api/compare/detail?{runs}&first=2&last=9&figure=metric-0")
        assert (answer.status, answer.json) == (200, {"figures": []})
    assert server.get("/api/compare/detail?a=a&b=b&first=9&last=2").status == 400


@pytest.mark.parametrize(
    ("query", "kinds", "name"),
    [
        ("run=a", ["run"], "a.html"),
        ("run=a&run=b", ["comparison"], "a_vs_b.html"),
        ("a=a&b=b", ["comparison"], "a_vs_b.html"),
        ("run=a&run=b&run=c", ["many", "comparison", "comparison"], "a_and_2_more-"),
    ],
)
def test_a_page_can_be_saved_as_one_file(
    server: Served, query: str, kinds: list[str], name: str
) -> None:
    answer = server.get(f"/report?{query}")
    assert answer.status == 200
    assert f"attachment; filename*=UTF-8''{name}" in answer.headers["content-disposition"]
    found = re.findall(
        rb'<script type="application/json" (?:id="page"|data-page)>(.*?)</script>', answer.body
    )
    assert [json.loads(each)["page"]["type"] for each in found] == kinds


def test_what_cannot_be_saved_says_so(server: Served) -> None:
    assert server.get("/report?run=nothing").status == 404
    assert server.get("/report").status == 400


def test_a_logged_file_is_saved_and_never_shown(server: Served) -> None:
    answer = server.get("/runs/c/file?name=page.html")
    assert (answer.status, answer.body) == (200, LOGGED)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox"
    assert server.get("/runs/c/file?name=page.html", "HEAD").headers["content-length"] == "25"
    for name in ("..%2Frun.json", "run.json", "%00", ""):
        assert server.get(f"/runs/c/file?name={name}").status == 404


def test_a_logged_file_is_closed_where_the_reader_is_gone_before_its_first_byte(
    several: Path,
) -> None:
    app = application(several, Policy("127.0.0.1", 80), Pages(several))
    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.4"},
        "method": "GET",
        "path": "/runs/c/file",
        "query_string": b"name=page.html",
        "headers": [(b"host", b"127.0.0.1:80")],
    }

    statuses = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.append(message["status"])
        raise OSError("gone")

    with contextlib.suppress(OSError, ClientDisconnect):
        asyncio.run(app(scope, receive, send))
    assert statuses == [200]

    def is_closed() -> bool:
        gc.collect()  # of what the exception referred to
        return "page.html" not in [each.resolve().name for each in Path("/proc/self/fd").iterdir()]

    wait_until(is_closed, "the file is closed")  # a server of another test may have it open, too
