"""The server's routes: pages for people, JSON for programs, and the stream that updates a page."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from traceml.api.artifact_contents import find_logged_file
from traceml.api.monitored_runs import MonitoredRuns
from traceml.compare.comparison_names import default_base, many_base, safe_name
from traceml.model.errors import RunNotFound, TraceMLError, UsageError
from traceml.store.query_language import QueryError
from traceml.store.regular_files import open_regular
from traceml.text.open_metrics import (
    OPEN_METRICS_TYPE,
    PROMETHEUS_TYPE,
    open_metrics_text,
    prometheus_text,
    wants_open_metrics,
)
from traceml.web import assets
from traceml.web.live_pages import Pages
from traceml.web.run_exploration import ExploredRuns
from traceml.web.run_histories import RunHistories
from traceml.web.run_search import SearchedRuns
from traceml.web.security import READ_ONLY, Guard, Policy, run_folder
from traceml.web.sources import Address, address_of, compared_address, run_address
from traceml.web.tagging import change_tags

_FOREVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"  # may be kept, but not shown without asking
_NEVER = "no-store"
_CHUNK_BYTES = 1 << 18
_DOWNLOAD = "application/octet-stream"
_HTML, _JSON, _EVENTS = "text/html; charset=utf-8", "application/json", "text/event-stream"
_CSV = "text/csv; charset=utf-8"
_MAX_CURVES = 12
"""Metrics whose curves are asked for at once."""
_MAX_FIGURES = 100
"""Charts that finer values are asked for at once."""
_LAST_STEP = 1 << 53
"""The largest integer of a browser."""

_Handler = Callable[[Request], Awaitable[Response]]


def application(logs: Path, policy: Policy, pages: Pages) -> ASGIApp:
    """Returns the whole application, behind its guard."""
    site = _Site(logs, pages, policy)
    routes = [
        Route("/", site.shell),
        Route("/runs/{name}", site.run),
        Route("/runs/{name}/file", _answering(site.logged_file)),
        Route("/compare", site.shell),
        Route("/report", _answering(site.report)),
        Route("/explore", site.shell),
        Route("/history", site.shell),
        Route("/static/{name}", site.static),
        Route("/api/runs", _answering(site.api_list)),
        Route("/api/runs/{name}", _answering(site.api_run)),
        Route("/api/runs/{name}/detail", _answering(site.api_detail)),
        Route("/api/runs/{name}/tags", _answering(site.tag), methods=["POST"]),
        Route("/api/search", _answering(site.api_search)),
        Route("/api/explore", _answering(site.api_explore)),
        Route("/api/explore/what-mattered", _answering(site.api_what_mattered)),
        Route("/api/explore/curves", _answering(site.api_curves)),
        Route("/api/history", _answering(site.api_history)),
        Route("/api/version", _answering(site.api_version)),
        Route("/api/columns", _answering(site.api_columns)),
        Route("/api/writing", _answering(site.api_writing)),
        Route("/export.csv", _answering(site.export)),
        Route("/api/compare", _answering(site.api_comparison)),
        Route("/api/compare/curves", _answering(site.api_further_curves)),
        Route("/api/compare/detail", _answering(site.api_finer)),
        Route("/api/events", _answering(site.events)),
        Route("/metrics", site.metrics),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found, 500: _our_bug})
    app.router.redirect_slashes = False
    return Guard(app, policy)


def _answering(handler: _Handler) -> _Handler:
    """Wraps a handler: an error that a user can act on becomes a response with its message."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except QueryError as error:
            return _error(400, str(error), at=error.at, problem=error.problem)
        except TraceMLError as error:
            return _error(400 if isinstance(error, UsageError) else 404, str(error))

    return handle


class _Site:
    """The handlers, one method each."""

    def __init__(self, logs: Path, pages: Pages, policy: Policy) -> None:
        self._logs, self._pages, self._policy = logs, pages, policy
        self._searched = SearchedRuns(logs)
        self._explored = ExploredRuns(logs, self._searched.search)
        self._histories = RunHistories(logs, self._searched.search)
        self._monitored = MonitoredRuns(logs)
        self._one_scrape = asyncio.Lock()
        try:
            self._assets = assets.load()
            self._shell = assets.shell(self._assets)
        except assets.ViewerMissing:
            self._assets, self._shell = {}, assets.sorry()

    async def shell(self, request: Request) -> Response:
        """Returns the page in which the viewer draws."""
        return self._page(200)

    async def run(self, request: Request) -> Response:
        """Returns the same page; its status says whether the run exists."""
        try:
            run_folder(self._logs, request.path_params["name"])
        except RunNotFound:
            return self._page(404)
        return self._page(200)

    def _page(self, status: int) -> Response:
        status = status if self._assets else 503  # nothing to draw it with
        return Response(self._shell, status, {"cache-control": _NEVER}, _HTML)

    async def static(self, request: Request) -> Response:
        """Returns a file of the viewer, compressed in advance."""
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            return await _not_found(request, None)
        is_this = request.query_params.get("v") == asset.version
        headers = {
            "cache-control": _FOREVER if is_this else _ASK_AGAIN,
            "etag": asset.tag,
            "vary": "accept-encoding",
        }
        if asset.tag in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(asset.zipped, 200, headers, asset.kind)
        return Response(asset.content, 200, headers, asset.kind)

    async def api_list(self, request: Request) -> Response:
        """Returns a part of the list of runs; a page that shows it asks again and again."""
        self._pages.note_view()
        return _json(await self._searched.page(request.query_params))

    async def api_version(self, request: Request) -> Response:
        """Returns a word that is another one once a run has come, changed or gone."""
        self._pages.note_view()
        return _json(await self._searched.version())

    async def api_columns(self, request: Request) -> Response:
        """Returns the columns that the list of runs could show."""
        return _json(await self._searched.columns(request.query_params))

    async def api_writing(self, request: Request) -> Response:
        """Returns the token that changes need, or why nothing can be changed."""
        token = self._policy.write_token
        why = READ_ONLY if token is None else None
        return _json(msgspec.json.encode({"token": token, "why": why}))

    async def tag(self, request: Request) -> Response:
        """Changes the tags and the note of a run; returns what holds then."""
        return _json(await change_tags(self._logs, request.path_params["name"], request))

    async def export(self, request: Request) -> Response:
        """Returns runs as a CSV file."""
        content = await self._searched.export(request.query_params)
        headers = {
            "cache-control": _NEVER,
            "content-disposition": 'attachment; filename="runs.csv"',
        }
        return Response(content, 200, headers, _CSV)

    async def api_search(self, request: Request) -> Response:
        """Returns the runs that a filter lets through, or groups of them."""
        return _json(await self._searched.answer(request.query_params))

    async def api_explore(self, request: Request) -> Response:
        """Returns the charts over the runs that a filter lets through."""
        return _json(await self._explored.page(request.query_params))

    async def api_what_mattered(self, request: Request) -> Response:
        """Returns which parameters a metric depends on."""
        return _json(await self._explored.what_mattered(request.query_params))

    async def api_curves(self, request: Request) -> Response:
        """Returns the history of a metric by group of runs."""
        return _json(await self._explored.curves(request.query_params))

    async def api_history(self, request: Request) -> Response:
        """Returns a metric of one command along commits."""
        return _json(await self._histories.page(request.query_params))

    async def api_run(self, request: Request) -> Response:
        """Returns a run's page."""
        return await self._whole(_run(request))

    async def api_comparison(self, request: Request) -> Response:
        """Returns a comparison's page."""
        return await self._whole(_compared(request))

    async def api_further_curves(self, request: Request) -> Response:
        """Returns charts of metrics that a comparison's page does not have from the start."""
        names = list(dict.fromkeys(request.query_params.getlist("metric")))
        if not 1 <= len(names) <= _MAX_CURVES:
            raise UsageError(
                f"{len(names)} metrics were named: expected 1 to {_MAX_CURVES}; ask for "
                "/api/compare/curves?run=NAME&run=NAME&metric=loss"
            )
        figures = await self._pages.channel(_compared(request)).curves(names)
        return _json(msgspec.json.encode({"figures": figures}))

    async def api_finer(self, request: Request) -> Response:
        """Returns curves of compared runs over a range of steps."""
        first, last = _range(request)
        ids = request.query_params.getlist("figure")[:_MAX_FIGURES]
        figures = await self._pages.channel(_compared(request)).finer(ids, first, last)
        return _json(msgspec.json.encode({"figures": figures}))

    async def logged_file(self, request: Request) -> Response:
        """Sends a file that a run logged, whatever it holds, as something to save."""
        folder = run_folder(self._logs, request.path_params["name"])
        name = request.query_params.get("name", "")
        path = await run_in_threadpool(find_logged_file, folder, name)
        headers = _as_download(path.name)
        file = await run_in_threadpool(_opened, path)
        size = os.fstat(file.fileno()).st_size
        headers["content-length"] = str(size)
        if request.method == "HEAD":
            file.close()
            return Response(None, 200, headers, _DOWNLOAD)
        return StreamingResponse(_chunks(file, size), 200, headers, _DOWNLOAD)

    async def report(self, request: Request) -> Response:
        """Returns a run's page or a comparison's as one HTML file to keep."""
        names = request.query_params.getlist("run")
        is_one = len(set(names)) == 1 and not request.query_params.getlist("a")
        address = run_address(names[0]) if is_one else _compared(request)
        content = await self._pages.channel(address).file()
        return Response(content, 200, _as_download(f"{_file_name(address)}.html"), _HTML)

    async def _whole(self, address: Address) -> Response:
        return _json(await self._pages.channel(address).whole())

    async def api_detail(self, request: Request) -> Response:
        """Returns a run's charts over a range of its steps."""
        first, last = _range(request)
        figures = await self._pages.channel(_run(request)).detail(first, last)
        return _json(msgspec.json.encode({"figures": figures}))

    async def metrics(self, request: Request) -> Response:
        """Returns the runs in progress, and those that just ended, for Prometheus."""
        async with self._one_scrape:
            values = await run_in_threadpool(self._monitored.values)
        headers = {"cache-control": _NEVER}
        if wants_open_metrics(request.headers.get("accept", "")):
            return Response(open_metrics_text(values), 200, headers, OPEN_METRICS_TYPE)
        return Response(prometheus_text(values), 200, headers, PROMETHEUS_TYPE)

    async def events(self, request: Request) -> Response:
        """Streams a page and its changes, as server-sent events."""
        address = address_of(request.query_params.get("page", ""))
        headers = {"cache-control": _NEVER, "x-accel-buffering": "no"}
        if request.method == "HEAD":  # which has no end to wait for
            return Response(None, 200, headers, _EVENTS)
        return StreamingResponse(self._pages.events(address), 200, headers, _EVENTS)


def _as_download(file_name: str) -> dict[str, str]:
    """Returns the headers of what is saved and never shown, let alone run."""
    return {
        "cache-control": _NEVER,
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file_name, safe='')}",
        "content-security-policy": "sandbox",  # should a browser show it all the same
    }


def _opened(path: Path) -> IO[bytes]:
    """Returns the open file. It closes itself when nobody refers to it any more: whoever asked may
    be gone before its first byte is sent."""
    try:
        return os.fdopen(open_regular(path), "rb", buffering=0)
    except OSError as error:
        raise RunNotFound(f"{path.name} cannot be read ({error.strerror}); it is gone") from None


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yields a file piece by piece, as long as it was when its length was told."""
    with file:
        while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk


def _compared(request: Request) -> Address:
    query = request.query_params
    return compared_address(*(query.getlist(name) for name in ("run", "a", "b")))


def _file_name(address: Address) -> str:
    """Returns what a report is called, without its ending."""
    if address.kind == "run":
        return safe_name(address.a[0])
    if address.kind == "many":
        return many_base(address.a).name
    sides = (address.a, address.b)
    names = tuple(f"{side[0]}+{len(side) - 1}" if len(side) > 1 else side[0] for side in sides)
    return default_base((names[0], names[1])).name


def _run(request: Request) -> Address:
    return run_address(request.path_params["name"], request.query_params.getlist("lens"))


def _range(request: Request) -> tuple[int, int]:
    first, last = (_step(request, name) for name in ("first", "last"))
    if first > last:
        raise UsageError(f"the steps {first} to {last} are none; ask for first <= last")
    return first, last


def _step(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) > _LAST_STEP:
        raise UsageError(
            f"{name}={text[:40]!r} is not a step: expected a whole number; "
            "ask for /api/runs/NAME/detail?first=100&last=200"
        )
    return int(text)


def _json(content: bytes) -> Response:
    return Response(content, 200, {"cache-control": _NEVER}, _JSON)


def _error(status: int, words: str, **more: object) -> Response:
    body = msgspec.json.encode({"error": words, **more})
    return Response(body, status, {"cache-control": _NEVER}, _JSON)


async def _not_found(request: Request, error: Exception | None) -> Response:
    return _error(
        404,
        f"there is nothing at {request.url.path[:80]!r}: pages are /, /runs/NAME, "
        "/compare?a=NAME&b=NAME, /compare?run=NAME&run=NAME, /explore and /history; "
        "start from the list of runs",
    )


async def _our_bug(request: Request, error: Exception) -> Response:
    """Returns an error page; the error itself is printed by the server."""
    words = f"the answer cannot be made ({type(error).__name__}: {error}); see the server's output"
    return _error(500, words)
