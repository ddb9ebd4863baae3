"""Who is answered, and who is not."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import run_traceml
from served import Served, serving


def test_only_this_machine_is_listened_to(server: Served) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((_other_address(), server.port), 5).close()


def _other_address() -> str:
    """An address of this machine that is not 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.2"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_our_own_names_are_answered(server: Served, name: str) -> None:
    assert server.get("/api/runs", Host=f"{name}:{server.port}").status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "localhost.evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost:{port}x",
        "localhost:",
        "[::1]:{port}",
        "2130706433:{port}",
        "user@localhost:{port}",
        "localhost:" + "9" * 5000,
        "",
    ],
)
@pytest.mark.parametrize(
    "page", ["/", "/api/runs", "/static/viewer.js", "/api/events?page=/runs/a"]
)
def test_another_host_is_refused_everywhere(server: Served, host: str, page: str) -> None:
    answer = server.get(page, Host=host.format(port=server.port))
    assert answer.status == 403
    assert "this server is not called" in answer.error


def test_two_hosts_are_refused(server: Served) -> None:
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nHost: evil\r\n\r\n"
    assert server.raw(request.encode()).split(b" ")[1] in (b"400", b"403")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"]
)
def test_another_origin_is_refused(server: Served, origin: str) -> None:
    answer = server.get("/api/runs", Origin=origin.format(port=server.port))
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_our_own_origin_is_answered(server: Served) -> None:
    assert server.get("/api/runs", Origin=f"http://127.0.0.1:{server.port}").status == 200


def test_a_foreign_page_cannot_fetch_and_a_link_on_it_can_be_followed(server: Served) -> None:
    for site in ("cross-site", "same-site"):
        assert server.get("/api/runs", Sec_Fetch_Site=site, Sec_Fetch_Mode="cors").status == 403
        assert server.get("/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_written(server: Served, method: str) -> None:
    for page in ("/", "/api/runs/a"):
        answer = server.get(page, method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.fixture(scope="module")
def beside_a_secret(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose logs folder has a run beside it, a link to that, and hidden ones."""
    place = tmp_path_factory.mktemp("beside")
    for folder in ("secret", "logs/.hidden", "logs/-dash"):
        shutil.copytree(logs / "a", place / folder)
    (place / "logs/out").symlink_to(place / "secret")
    (place / "logs/circle").symlink_to("circle")
    with serving(place / "logs") as server:
        yield server


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "%2e%2e",
        "..%2f..%2fetc",
        "%2e%2e%2fsecret",
        "..%5csecret",
        "%2fetc",
        "a%00",
        "a%0a",
        "%1b[31m",
        ".hidden",
        "-dash",
        "out",
        "circle",
        "x" * 5000,
        "%ff%fe",
        "a%2ffinal_summary.json",
    ],
)
def test_a_name_cannot_leave_the_logs_folder(beside_a_secret: Served, name: str) -> None:
    for address in (
        f"/api/runs/{name}",
        f"/api/runs/{name}/detail?first=0&last=1",
        f"/api/compare?a={name}&b={name}",
    ):
        answer = beside_a_secret.get(address)
        assert answer.status == 404, address
        assert answer.json.keys() == {"error"}
    with beside_a_secret.viewer(f"/runs/{name}") as viewer:
        assert viewer.next()[0] == "gone"


def test_what_cannot_be_opened_is_not_listed_and_said(beside_a_secret: Served) -> None:
    page = beside_a_secret.get("/api/runs").json
    assert page["rows"] == []
    assert [note.split(" is not listed")[0].rpartition("/")[2] for note in page["notes"]] == [
        "-dash",
        ".hidden",
        "out",
    ]


def test_a_link_to_a_run_beside_it_is_a_run(logs: Path, tmp_path: Path) -> None:
    shutil.copytree(logs / "a", tmp_path / "logs" / "a")
    (tmp_path / "logs" / "latest").symlink_to("a")
    with serving(tmp_path / "logs") as server:
        assert server.get("/api/runs/latest").status == 200


@pytest.mark.parametrize("page", ["/", "/api/runs", "/api/runs/gone", "/static/viewer.js", "/no"])
def test_every_answer_says_what_it_may_be_used_for(server: Served, page: str) -> None:
    headers = server.get(page).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "http://127.0.0.1:* http://localhost:*"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "cache-control" in headers
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET http://evil/ HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n",
    ],
    ids=["no host", "a null", "TLS", "a length below zero", "a proxy's request"],
)
def test_nonsense_is_refused_and_hurts_nobody(server: Served, request_bytes: bytes) -> None:
    assert server.raw(request_bytes + b"\r\n").split(b" ")[1] in (b"400", b"403")
    assert server.get("/").status == 200


class TestOtherMachines:
    def test_they_need_the_token_that_was_printed(self, logs: Path) -> None:
        with serving(logs, "--host", "0.0.0.0") as server:
            link, _, token = server.address.partition("?token=")
            assert len(token) >= 32
            assert link.endswith(f":{server.port}/")
            here = {"Host": f"{_other_address()}:{server.port}"}
            for page in ("/", "/api/runs", "/static/viewer.js", "/api/events?page=/runs/a"):
                assert server.get(page, **here).status == 401
            assert server.get(f"/api/runs?token={token}x", **here).status == 401
            opened = server.get(f"/?token={token}", **here)
            assert opened.status == 200
            cookie, *attributes = opened.headers["set-cookie"].split("; ")
            assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
            for kept in (cookie, f'other={{"a": "b c"}}; {cookie}; _xsrf=2|x|"'):
                assert server.get("/api/runs", Cookie=kept, **here).status == 200
            assert server.get("/api/runs", Authorization=f"Bearer {token}", **here).status == 200
            assert server.get("/api/runs", Cookie=cookie, Host=f"evil:{server.port}").status == 403

    def test_this_machine_needs_it_too_then(self, logs: Path) -> None:
        with serving(logs, "--host", "0.0.0.0") as server:
            assert server.get("/api/runs").status == 401

    def test_the_token_may_be_chosen(self, logs: Path) -> None:
        with serving(logs, "--host", "0.0.0.0", env={"TRACEML_TOKEN": "chosen"}) as server:
            assert server.address.endswith("?token=chosen")
            assert server.get("/api/runs?token=chosen").status == 200

    @pytest.mark.parametrize("token", ["two words", "a;b", "a&b=c", "größe", "x" * 201])
    def test_a_token_that_fits_no_link_is_refused(self, tmp_path: Path, token: str) -> None:
        words = ["ui", "--host", "0.0.0.0"]
        done = run_traceml(words, tmp_path, env={"TRACEML_TOKEN": token})
        assert (done.status, done.stderr.count("\n")) == (2, 1)
        assert "the token in TRACEML_TOKEN fits no link" in done.stderr
        assert token not in done.stderr

    def test_this_machine_alone_needs_none(self, logs: Path) -> None:
        with serving(logs, env={"TRACEML_TOKEN": "chosen"}) as server:
            assert server.get("/api/runs").status == 200
