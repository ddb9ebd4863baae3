"""Tags and notes that are changed in a page: who may, what is written, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from served import Answer, Served, serving
from traceml.store.tags import MAX_TAG_CHARS, read_tags

HOSTILE = "<img src=x onerror=hurt()> größe 日本 %2e"


@pytest.fixture(scope="module")
def place(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A logs folder that may be written to."""
    folder = tmp_path_factory.mktemp("tagging") / "logs"
    for name in ("a", HOSTILE):
        shutil.copytree(logs / "a", folder / name)
    shutil.copytree(logs / "a", folder.parent / "beside")
    return folder


@pytest.fixture(scope="module")
def writable(place: Path) -> Iterator[Served]:
    with serving(place) as server:
        yield server


def change(server: Served, name: str, content: object, **headers: str) -> Answer:
    """Sends a change as a page does, with the token that the server tells it."""
    token = server.get("/api/writing").json["token"] or ""
    path = f"/api/runs/{quote(name, safe='')}/tags"
    return server.post(path, json.dumps(content).encode(), **{"x_traceml_token": token, **headers})


def test_tags_and_a_note_are_written_as_the_command_writes_them(
    writable: Served, place: Path
) -> None:
    answer = change(writable, HOSTILE, {"add": ["good", "größe"], "note": "a <b>\nb"})
    assert answer.status == 200, answer.body
    assert answer.json == {"tags": ["good", "größe"], "note": "a <b>\nb"}
    assert read_tags(place / HOSTILE).tags == ("good", "größe")
    answer = change(writable, HOSTILE, {"remove": ["good"]})
    assert answer.json == {"tags": ["größe"], "note": "a <b>\nb"}
    assert change(writable, HOSTILE, {"note": ""}).json["note"] is None
    found = writable.get("/api/runs?max_age=0&q=tags+contains+%22gr%C3%B6%C3%9Fe%22").json["rows"]
    assert [(row["name"], row["tags"]) for row in found] == [(HOSTILE, ["größe"])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "the change cannot be read"),
        ({"add": "good"}, "the change cannot be read"),
        ({"add": [1]}, "the change cannot be read"),
        ({"added": ["good"]}, "the change cannot be read"),
        ({"add": [""]}, "cannot be a tag"),
        ({"add": ["a,b"]}, "cannot be a tag"),
        ({"add": ["\x1b[31m"]}, "cannot be a tag"),
        ({"add": ["x" * (MAX_TAG_CHARS + 1)]}, "cannot be a tag"),
        ({"note": "x" * 10_001}, "the note has"),
        ({"note": "x" * (256 << 10)}, "more than 256 KiB"),
    ],
)
def test_what_cannot_be_a_tag_is_refused_and_nothing_is_written(
    writable: Served, place: Path, content: object, words: str
) -> None:
    answer = change(writable, "a", content)
    assert answer.status == 400
    assert words in answer.error
    assert not (place / "a" / "tags.jsonl").exists()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"add": ["\\ud800"]}', b"[" * 100_000])
def test_what_is_no_json_is_refused(writable: Served, place: Path, body: bytes) -> None:
    token = writable.get("/api/writing").json["token"]
    answer = writable.post("/api/runs/a/tags", body, x_traceml_token=token)
    assert answer.status == 400, answer.body
    assert not (place / "a" / "tags.jsonl").exists()


@pytest.mark.parametrize("name", ["gone", "..", "../beside", ".hidden", "a/../../beside", "a\0"])
def test_only_a_run_of_the_folder_is_tagged(writable: Served, place: Path, name: str) -> None:
    assert change(writable, name, {"add": ["good"]}).status in (404, 405)
    assert not (place.parent / "beside" / "tags.jsonl").exists()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_traceml_token": ""}, 403),
        ({"x_traceml_token": "x" * 32}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 403),
        ({"Sec_Fetch_Mode": "navigate"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_a_foreign_page_cannot_write(
    writable: Served, place: Path, headers: dict[str, str], status: int
) -> None:
    assert change(writable, "a", {"add": ["good"]}, **headers).status == status
    assert not (place / "a" / "tags.jsonl").exists()


def test_a_foreign_page_is_not_told_the_token(writable: Served) -> None:
    asked = writable.get("/api/writing", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")
    assert (asked.status, asked.json.keys()) == (403, {"error"})
    assert asked.headers["cross-origin-resource-policy"] == "same-origin"


def test_nothing_else_can_be_posted_to(writable: Served) -> None:
    token = writable.get("/api/writing").json["token"]
    for path in ("/", "/api/runs/a", "/api/runs", "/export.csv", "/api/runs/a/b/tags"):
        assert writable.post(path, b"{}", x_traceml_token=token).status == 405


def test_a_read_only_server_changes_nothing(place: Path) -> None:
    with serving(place, "--read-only") as server:
        assert server.get("/api/writing").json["token"] is None
        answer = change(server, "a", {"add": ["good"]})
        assert answer.status == 403
        assert "--read-only" in answer.error
    assert not (place / "a" / "tags.jsonl").exists()


def test_from_another_machine_a_change_needs_the_link_as_well(place: Path) -> None:
    with serving(place, "--host", "0.0.0.0") as server:
        link = server.address.partition("token=")[2]
        assert server.get("/api/writing").status == 401
        token = server.get("/api/writing", Authorization=f"Bearer {link}").json["token"]
        assert token != link
        body = b'{"add": ["remote"]}'
        for headers, status in (
            ({"x_traceml_token": token}, 401),
            ({"Authorization": f"Bearer {link}"}, 403),
            ({"Authorization": f"Bearer {link}", "x_traceml_token": token}, 200),
        ):
            path = "/api/runs/" + quote(HOSTILE, safe="") + "/tags"
            assert server.post(path, body, **headers).status == status
    assert "remote" in read_tags(place / HOSTILE).tags
