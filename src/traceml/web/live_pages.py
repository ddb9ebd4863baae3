"""Live pages: each is made once for all its viewers, who are sent what changed."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from traceml.figures.page import Figure, Page
from traceml.model.errors import RunNotFound, TraceMLError
from traceml.web.delta import delta
from traceml.web.report import report
from traceml.web.sources import (
    Address,
    ComparisonSource,
    ManyRunsSource,
    PageSource,
    RunSource,
    source_of,
)

BEAT_S = 5.0
"""A viewer that receives nothing for twice as long considers the connection lost (live.ts)."""
KEPT_S = 60.0
"""A page without viewers is dropped after this time, so that a reload still finds it."""
MAX_WAITING_EVENTS = 8
"""For a viewer that does not read; after that it gets the whole page again."""
_THREADS = 2
_LOOK_AGAIN_S = 5.0

T = TypeVar("T")

_BEAT = b"event: beat\ndata: {}\n\n"
"""An event and not a comment, because a page's script does not see comments."""
_OVER = "The run is over, and its dashboard with it; `traceml ui` shows it again."


@dataclass(eq=False, slots=True)
class Viewer:
    """One connection that shows a page."""

    ready: asyncio.Event
    """Set whenever the viewer has received everything."""
    is_behind: bool = True
    """Whether it needs the whole page."""
    has_left: bool = False
    _is_reading: bool = False
    _waiting: deque[bytes] = field(default_factory=deque)
    _told: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, event: bytes) -> None:
        """Queues an event; if too many are waiting, all are dropped and the whole page follows."""
        if len(self._waiting) >= MAX_WAITING_EVENTS:
            self._waiting.clear()
            self.is_behind = True
            return  # until it reads again
        self._waiting.append(event)
        self._told.set()

    def leave(self) -> None:
        """Ends the stream after the queued events."""
        self.has_left = True
        self._told.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yields the queued events, with heartbeats between, until the stream ends."""
        yield b"retry: 1000\n\n"
        while self._waiting or not self.has_left:
            if self._waiting:
                yield self._waiting.popleft()
                continue
            if not await self._has_event():
                yield _BEAT

    async def _has_event(self) -> bool:
        """Waits for the next event; returns whether one came before a heartbeat is due."""
        self._told.clear()
        self._is_reading = True
        if self.is_behind:
            self.ready.set()
        try:
            await asyncio.wait_for(self._told.wait(), BEAT_S)
        except asyncio.TimeoutError:
            return False
        finally:
            self._is_reading = False
        return True

    @property
    def wants_all(self) -> bool:
        """Whether it is ready for the whole page."""
        return self.is_behind and self._is_reading


@dataclass(frozen=True, slots=True)
class PageState:
    """A page at one time."""

    page: Page | None = None
    plain: Any = None
    """The page as JSON."""
    error: str | None = None
    """Why there is no page."""
    at_s: float = 0.0


class Channel:
    """One page and its viewers."""

    def __init__(self, source: PageSource, threads: ThreadPoolExecutor) -> None:
        self.source = source
        self.viewers: set[Viewer] = set()
        self.used_s = time.monotonic()
        self._threads = threads
        self._one_at_a_time = asyncio.Lock()
        self._state = PageState(at_s=-1e9)
        self._follower: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    def join(self) -> Viewer:
        """Adds a viewer; the whole page comes first."""
        viewer = Viewer(self._ready)
        self.viewers.add(viewer)
        if self._follower is None or self._follower.done():
            self._follower = asyncio.create_task(self._follow())
            self._follower.add_done_callback(self._say_why_it_ended)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Removes a viewer."""
        self.viewers.discard(viewer)
        self._ready.set()  # the follower sees whether anybody is left
        self.used_s = time.monotonic()

    async def whole(self) -> bytes:
        """Returns the page as JSON; raises TraceMLError where there is none."""
        self.used_s = time.monotonic()
        async with self._one_at_a_time:
            if self._is_due():
                await self._refresh()
        if self._state.error is not None:
            raise RunNotFound(self._state.error)
        return await self._in_thread(msgspec.json.encode, self._state.page)

    async def detail(self, first_step: int, last_step: int) -> tuple[Figure, ...]:
        """Returns finer charts for a range of a run's steps."""
        self.used_s = time.monotonic()
        assert isinstance(self.source, RunSource)
        async with self._one_at_a_time:
            return await self._in_thread(self.source.detail, first_step, last_step)

    async def curves(self, names: Sequence[str]) -> tuple[Figure, ...]:
        """Returns the curves of further metrics of the runs that a page compares."""
        self.used_s = time.monotonic()
        assert isinstance(self.source, ComparisonSource | ManyRunsSource)
        return await self._in_thread(self.source.curves, names)

    async def finer(self, ids: Sequence[str], first: int, last: int) -> tuple[Figure, ...]:
        """Returns curves of compared runs between two steps, in a finer resolution."""
        self.used_s = time.monotonic()
        assert isinstance(self.source, ComparisonSource | ManyRunsSource)
        return await self._in_thread(self.source.finer, ids, first, last)

    async def file(self) -> bytes:
        """Returns the page as one HTML file; raises TraceMLError where there is none."""
        self.used_s = time.monotonic()
        async with self._one_at_a_time:
            return await self._in_thread(_as_file, self.source)

    async def refresh_now(self) -> None:
        """Sends the latest state to every viewer, whether it is due or not."""
        async with self._one_at_a_time:
            await self._refresh()

    def close(self, last: bytes | None) -> None:
        """Ends all viewers' streams, with a last event where there is one."""
        if self._follower is not None:
            self._follower.cancel()
        for viewer in self.viewers:
            if last is not None:
                viewer.send(last)
            viewer.leave()

    async def _follow(self) -> None:
        while self.viewers:
            async with self._one_at_a_time:
                if self._is_due():
                    await self._refresh()
                await self._catch_up()
            rest_s = self._state.at_s + self.source.pause_s() - time.monotonic()
            try:
                await asyncio.wait_for(self._ready.wait(), max(rest_s, 0.0))
            except asyncio.TimeoutError:
                continue
            self._ready.clear()

    def _is_due(self) -> bool:
        return time.monotonic() >= self._state.at_s + self.source.pause_s()

    async def _refresh(self) -> None:
        before = self._state
        self._state, change = await self._in_thread(_read_page, self.source, before)
        if change is None:
            return
        for viewer in self.viewers:
            if not viewer.is_behind:
                viewer.send(change)

    async def _catch_up(self) -> None:
        """Sends the whole page to viewers that have none, or missed something."""
        if not any(viewer.wants_all for viewer in self.viewers):
            return
        event = await self._in_thread(_whole_event, self._state)
        for viewer in self.viewers:
            if viewer.wants_all:
                viewer.is_behind = False
                viewer.send(event)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work, *arguments)

    def _say_why_it_ended(self, follower: asyncio.Task[None]) -> None:
        """Reports a bug of ours on the page, with the traceback in the server's output."""
        error = None if follower.cancelled() else follower.exception()
        if error is None:
            return
        traceback.print_exception(error)
        words = (
            f"the page cannot be made ({type(error).__name__}: {error}); see the server's output"
        )
        for viewer in self.viewers:
            viewer.send(_event("gone", {"error": words}))
            viewer.leave()


class Pages:
    """Every page that has viewers, or had some until recently."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._channels: dict[Address, Channel] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "traceml-pages")
        self._is_over = False
        self._viewed_s: float | None = None
        self._cleaning: asyncio.TimerHandle | None = None

    def channel(self, address: Address) -> Channel:
        """Returns the channel of a page."""
        if address not in self._channels:
            self._channels[address] = Channel(source_of(address, self._logs), self._threads)
        if self._cleaning is None:
            self._cleaning = asyncio.get_running_loop().call_later(KEPT_S, self._let_go)
        return self._channels[address]

    async def events(self, address: Address) -> AsyncIterator[bytes]:
        """Yields what a viewer of a page is sent."""
        if self._is_over:
            return
        channel = self.channel(address)
        viewer = channel.join()
        self._viewed_s = time.monotonic()
        try:
            async for event in viewer.events():
                yield event
        finally:
            channel.leave(viewer)
            self._viewed_s = time.monotonic()

    def note_view(self) -> None:
        """Notes that somebody looks at a page that is not followed: the list of runs."""
        self._viewed_s = time.monotonic()

    @property
    def was_viewed(self) -> bool:
        """Whether anybody has looked at a page so far."""
        return self._viewed_s is not None

    async def wait_until_unviewed(self, for_s: float) -> None:
        """Returns when nobody has looked at a page for so long, from now on."""
        began_s = time.monotonic()
        while True:
            viewed_s = max(began_s, self._viewed_s or began_s)
            if any(channel.viewers for channel in self._channels.values()):
                viewed_s = time.monotonic()
            rest_s = viewed_s + for_s - time.monotonic()
            if rest_s <= 0:
                return
            await asyncio.sleep(min(rest_s, _LOOK_AGAIN_S))

    async def refresh(self, patience_s: float) -> None:
        """Sends every viewer the latest state."""
        looked_at = [channel for channel in self._channels.values() if channel.viewers]
        if looked_at:
            looks = [asyncio.create_task(channel.refresh_now()) for channel in looked_at]
            await asyncio.wait(looks, timeout=patience_s)

    async def finish(self, patience_s: float) -> None:
        """Sends every viewer the last state, and that nothing follows."""
        await self.refresh(patience_s)
        self.close(_event("gone", {"error": _OVER, "is_over": True}))

    def close(self, last: bytes | None = None) -> None:
        """Ends every stream."""
        self._is_over = True
        if self._cleaning is not None:
            self._cleaning.cancel()
        for channel in self._channels.values():
            channel.close(last)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _let_go(self) -> None:
        oldest_s = time.monotonic() - KEPT_S
        for address, channel in list(self._channels.items()):
            if not channel.viewers and channel.used_s <= oldest_s:
                del self._channels[address]
        loop = asyncio.get_running_loop()
        self._cleaning = loop.call_later(KEPT_S, self._let_go) if self._channels else None


def _read_page(source: PageSource, before: PageState) -> tuple[PageState, bytes | None]:
    """Returns the current page, and the event with what changed since the one before."""
    now_s = time.monotonic()
    try:
        page = source.page()
    except (TraceMLError, OSError) as error:
        if isinstance(error, OSError) and before.page is not None:
            return replace(before, at_s=now_s), None  # a disk's bad moment: what was seen stays
        look = PageState(error=str(error), at_s=now_s)
        return look, None if before.error == look.error else _whole_event(look)
    if page is before.page:
        return PageState(page, before.plain, None, now_s), None
    look = PageState(page, msgspec.to_builtins(page), None, now_s)
    if before.page is None:
        return look, _whole_event(look)
    change = delta(before.plain, look.plain)
    return look, None if change is None else _event("delta", change)


def _as_file(source: PageSource) -> bytes:
    pages = source.file_pages() if isinstance(source, ManyRunsSource) else (source.page(),)
    return report(pages).encode()


def _whole_event(look: PageState) -> bytes:
    if look.error is not None:
        return _event("gone", {"error": look.error})
    return _event("page", look.page)


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
