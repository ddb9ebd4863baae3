"""The connection to an MLflow tracking server: one place that imports MLflow and words its errors.

Address, credentials and certificates are those of the MLflow client's own configuration
(`MLFLOW_TRACKING_URI`, `MLFLOW_TRACKING_USERNAME`, …); TraceML keeps none of them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from traceml.model.errors import TraceMLError, UsageError
from traceml.model.printable import printable, shorten
from traceml.model.secrets import masked_message

SCHEME = "mlflow"
CONNECT_TIMEOUT_S = 10
CONNECT_RETRIES = 1
REQUEST_RETRIES = 3
"""MLflow's own default of seven waits for minutes."""
_MAX_ERROR_CHARS = 300
_QUIET = ("mlflow", "urllib3.connectionpool", "alembic")


class StoreUnreachable(UsageError):
    """A server that does not answer, or does not let us in."""


class NotAtServer(TraceMLError):
    """What was asked for is not at the server."""


class RefusedByServer(TraceMLError):
    """The server refuses a request because of what is in it."""


def split_address(word: str) -> tuple[str | None, str]:
    """Returns the tracking address of `mlflow`, `mlflow:RUN` or `mlflow+URI#RUN`, and the run.

    The address is `None` where the client's own configuration has it; the run is empty where none
    is named. The address that a browser shows for a run will do, after `mlflow+`.
    """
    head, _, rest = word.partition(":")
    if head == SCHEME:
        return None, rest.strip()
    uri, _, fragment = word.removeprefix(f"{SCHEME}+").partition("#")
    _refuse_credentials(uri)
    named = [part for part in fragment.split("?")[0].split("/") if part]
    if "runs" in named[:-1]:  # …/#/experiments/1/runs/ID/artifacts
        named = named[: named.index("runs") + 2]
    return uri.rstrip("/"), named[-1] if named else ""


def _refuse_credentials(uri: str) -> None:
    found = urlsplit(uri)
    if found.scheme in ("http", "https") and (found.username or found.password):
        raise UsageError(
            f"the address of {printable(str(found.hostname))} holds a user or a password, which "
            "would be seen by everybody who lists processes; leave them out and set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )


class MlflowServer:
    """An open connection to a tracking server."""

    def __init__(self, uri: str | None) -> None:
        """Connects; raises UsageError where MLflow is missing, and StoreUnreachable."""
        mlflow = _import_mlflow()
        if uri is None and not mlflow.is_tracking_uri_set():
            raise UsageError(
                "no MLflow server is known: MLFLOW_TRACKING_URI is not set; set it, or write the "
                "address, such as mlflow+http://127.0.0.1:5000"
            )
        self.uri: str = uri or mlflow.get_tracking_uri()
        self.client: Any = self._connected(mlflow)

    def _connected(self, mlflow: Any) -> Any:
        with (
            _client_settings(
                MLFLOW_HTTP_REQUEST_TIMEOUT=CONNECT_TIMEOUT_S,
                MLFLOW_HTTP_REQUEST_MAX_RETRIES=CONNECT_RETRIES,
            ),
            self.said_plainly("connecting"),
        ):
            client = mlflow.MlflowClient(tracking_uri=self.uri)
            try:
                client.search_experiments(max_results=1)
            except mlflow.exceptions.MlflowException as error:
                if _status(error) == 404:
                    raise StoreUnreachable(
                        f"what answers at {self.shown} is no MLflow tracking server (404); check "
                        "the address, and whether a path belongs to it"
                    ) from None
                raise
        return client

    @property
    def shown(self) -> str:
        """The address for people: without what could be a secret."""
        found = urlsplit(self.uri)
        host = (found.netloc or "").rpartition("@")[2]
        return printable(f"{found.scheme}://{host}{found.path}" if host else self.uri)

    def link(self, experiment_id: str, run_id: str) -> str:
        """Returns where a browser shows a run; `mlflow:RUN_ID` where the store has no pages."""
        if self.uri.startswith(("http://", "https://")):
            return f"{self.shown}/#/experiments/{experiment_id}/runs/{run_id}"
        return f"{SCHEME}:{run_id}"

    @contextmanager
    def said_plainly(self, doing: str) -> Iterator[None]:
        """Turns what the client raises into one line: what was being done, and what to do."""
        from mlflow.exceptions import MlflowException

        try:
            with _client_settings(
                MLFLOW_HTTP_REQUEST_MAX_RETRIES=REQUEST_RETRIES,
                MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT="true",
                MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR="false",
            ):
                yield
        except MlflowException as error:
            raise self._worded(doing, error, _status(error)) from error
        except OSError as error:  # requests raises these too: all of its errors are OSErrors
            raise self._worded(doing, error, _status(error)) from error

    def _worded(self, doing: str, error: Exception, status: int | None) -> TraceMLError:
        text = _one_line(error)
        where = f"the MLflow server {self.shown}"
        if status in (401, 403):
            found = "does not know who asks" if status == 401 else "does not allow this"
            return StoreUnreachable(
                f"{where} {found} ({status}) while {doing}: {text}; set MLFLOW_TRACKING_USERNAME "
                "and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN) of an account that may"
            )
        if status == 404:
            return NotAtServer(f"{where} has no such thing while {doing}: {text}")
        if status is not None and 400 <= status < 500 and status != 429:
            return RefusedByServer(f"{where} refused {doing}: {text}")
        if reason := _no_connection(error):
            return StoreUnreachable(
                f"{where} does not answer ({reason}) while {doing}; check the address, and whether "
                "the server runs"
            )
        return StoreUnreachable(
            f"{where} failed while {doing}: {text}; its log says more, and the same command can be "
            "given again"
        )


def _import_mlflow() -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise UsageError(
            f"MLflow's client is not installed ({error}); install it with: "
            "pip install 'traceml-insight[mlflow]' (or mlflow-skinny)"
        ) from None
    for name in _QUIET:  # what matters is said by our own errors
        logging.getLogger(name).setLevel(logging.ERROR)
    return mlflow


@contextmanager
def _client_settings(**settings: object) -> Iterator[None]:
    """Sets what the client reads from the environment, as long as the user did not."""
    added: Mapping[str, str] = {
        name: str(value) for name, value in settings.items() if name not in os.environ
    }
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


_IN_TEXT = re.compile(r"(?:error code|status code|HTTP)[: ]+(\d{3})", re.IGNORECASE)
_NAMED = {
    "RESOURCE_DOES_NOT_EXIST": 404,
    "PERMISSION_DENIED": 403,
    "UNAUTHENTICATED": 401,
    "CUSTOMER_UNAUTHORIZED": 401,
}
"""Names of errors that come with other numbers in some versions."""


def _status(error: Exception) -> int | None:
    """Returns the HTTP status that an error of the client is about; `None` where there was no
    answer."""
    response = getattr(error, "response", None)
    if response is not None:
        return int(response.status_code)
    named = _NAMED.get(str(getattr(error, "error_code", "")))
    if named is not None:
        return named
    if found := _IN_TEXT.search(str(error)):
        return int(found[1])
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OSError):
        return _status(cause)
    is_of_server = type(error).__name__ == "RestException"
    status = getattr(error, "get_http_status_code", None)
    return int(status()) if callable(status) and (is_of_server or status() < 500) else None


_REASONS = {
    "connection refused": "nothing listens there",
    "name or service not known": "there is no such host",
    "name resolution": "there is no such host",
    "nodename nor servname": "there is no such host",
    "no address associated": "there is no such host",
    "timed out": "it took too long",
    "timeout": "it took too long",
    "network is unreachable": "the network is unreachable",
    "no route to host": "there is no way to that host",
    "connection reset": "it closed the connection",
    "remote end closed": "it closed the connection",
    "connection aborted": "it closed the connection",
    "certificate": "its certificate is not trusted",
    "max retries exceeded": "no answer, tried again without success",
}
"""By what the client's own texts say, in small letters."""


def _no_connection(error: Exception) -> str | None:
    """Returns why no connection was made; `None` where the server answered."""
    text = str(error).lower()
    return next((words for found, words in _REASONS.items() if found in text), None)


def _one_line(error: Exception) -> str:
    text = masked_message(" ".join(str(error).split()))
    text = re.sub(r"\b\w+Error\(.*object at 0x[0-9a-f]+>,?\s*", "", text)
    return shorten(printable(text), _MAX_ERROR_CHARS).rstrip(".")
