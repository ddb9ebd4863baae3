"""Where trackio's server is, with the credentials that are never written down."""

from __future__ import annotations

import pytest

from traceml.store.trackio_writer import _with_credentials

OURS = "https://me:hunter2@trackio.example/?write_token=abc"


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://trackio.example", OURS),
        ("https://other.example/", "https://other.example/"),
        (None, None),
    ],
    ids=["the server of the environment", "another server", "no server"],
)
def test_the_credentials_of_the_scripts_server_are_those_of_the_environment(
    server: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_SERVER_URL", OURS)
    assert _with_credentials(server) == expected
