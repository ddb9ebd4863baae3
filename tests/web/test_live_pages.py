"""Pages that are looked at: made once, told on as changes, let go when nobody looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from traceml.figures.page import ComparisonPage, Verdict
from traceml.model.errors import RunNotFound
from traceml.web import live_pages
from traceml.web.live_pages import Channel, Pages, Viewer
from traceml.web.sources import Address

T = TypeVar("T")

VERDICT = Verdict("info", "NO CHANGE", "")
RUN = Address("run", ("a",))


class Counter:
    """A source whose page is another one every time it is looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.trouble: Exception | None = None

    def page(self) -> ComparisonPage:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        return ComparisonPage(str(self.looks), "b", (), VERDICT, None, ())

    def pause_s(self) -> float:
        return 0.01


def with_channel(work: Callable[[Counter, Channel], Awaitable[T]]) -> T:
    async def run() -> T:
        source = Counter()
        with ThreadPoolExecutor(1) as threads:
            channel = Channel(source, threads)
            try:
                return await asyncio.wait_for(work(source, channel), 30)
            finally:
                channel.close(None)
                await asyncio.sleep(0)  # the follower takes notice

    return asyncio.run(run())


async def told(viewer: Viewer, count: int) -> list[tuple[str, Any]]:
    """The next events of a viewer, by name and content."""
    found: list[tuple[str, Any]] = []
    async for event in viewer.events():
        lines = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
        if lines.get("event", "beat") != "beat":
            found.append((lines["event"], json.loads(lines["data"])))
        if len(found) == count:
            break
    return found


async def told_until(viewer: Viewer, name: str) -> list[tuple[str, Any]]:
    """Its events up to the first of this name."""
    found = await told(viewer, 1)
    while found[-1][0] != name:
        found += await told(viewer, 1)
    return found


def test_viewers_of_one_page_share_every_look() -> None:
    async def work(source: Counter, channel: Channel) -> None:
        seen = await asyncio.gather(*(told(channel.join(), 5) for _ in range(10)))
        assert all(each[0][0] == "page" for each in seen)
        assert all(name == "delta" for each in seen for name, _ in each[1:])
        last = [each[-1] for each in seen]
        assert max(json.dumps(event) for event in last) == json.dumps(last[0])
        assert source.looks < 15

    with_channel(work)


def test_a_viewer_that_does_not_read_gets_the_whole_page_when_it_does() -> None:
    async def work(source: Counter, channel: Channel) -> list[tuple[str, Any]]:
        viewer = channel.join()
        events = viewer.events()
        while not (await anext(events)).startswith(b"event: page"):
            continue
        missed = source.looks + 3 * live_pages.MAX_WAITING_EVENTS
        while source.looks < missed:
            await asyncio.sleep(0.005)
        assert viewer.is_behind
        return await told(viewer, 2)

    (first, page), (second, _) = with_channel(work)
    assert (first, second) == ("page", "delta")
    assert int(page["a"]) >= 3 * live_pages.MAX_WAITING_EVENTS


def test_a_page_on_which_nothing_happens_has_a_heart_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_pages, "BEAT_S", 0.01)

    async def run() -> bytes:
        events = Viewer(asyncio.Event()).events()
        await anext(events)  # how soon to come back
        return await anext(events)

    assert asyncio.run(asyncio.wait_for(run(), 30)) == b"event: beat\ndata: {}\n\n"


def test_nobody_is_looked_for_when_nobody_looks() -> None:
    async def work(source: Counter, channel: Channel) -> None:
        viewer = channel.join()
        await told(viewer, 2)
        channel.leave(viewer)
        assert channel._follower is not None
        await channel._follower  # a look that was under way is over
        looks = source.looks
        await asyncio.sleep(0.1)
        assert source.looks == looks

    with_channel(work)


def test_a_page_that_is_gone_is_told_once_and_comes_back_whole() -> None:
    async def work(source: Counter, channel: Channel) -> list[tuple[str, Any]]:
        viewer = channel.join()
        await told(viewer, 1)
        source.trouble = RunNotFound("deleted")
        *_, gone = await told_until(viewer, "gone")
        looks = source.looks
        while source.looks < looks + 3:
            await asyncio.sleep(0.005)
        source.trouble = None
        return [gone, *await told(viewer, 1)]

    gone, back = with_channel(work)
    assert gone == ("gone", {"error": "deleted"})
    assert back[0] == "page"


def test_a_disk_that_fails_for_a_moment_takes_no_page_away() -> None:
    async def work(source: Counter, channel: Channel) -> list[tuple[str, Any]]:
        viewer = channel.join()
        await told(viewer, 1)
        source.trouble = OSError("bad moment")
        looks = source.looks
        while source.looks < looks + 3:
            await asyncio.sleep(0.005)
        source.trouble = None
        return await told(viewer, 2)

    assert {name for name, _ in with_channel(work)} == {"delta"}


def test_a_bug_of_ours_is_said_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    async def work(source: Counter, channel: Channel) -> list[tuple[str, Any]]:
        source.trouble = KeyError("surprise")
        return await told(channel.join(), 1)

    ((name, data),) = with_channel(work)
    assert name == "gone"
    assert "KeyError: 'surprise'" in data["error"]
    assert "Traceback" in capsys.readouterr().err


def test_a_page_is_let_go_when_nobody_has_looked_for_a_while(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_pages, "KEPT_S", 0.05)

    async def run() -> None:
        pages = Pages(logs)
        await pages.channel(Address("run", ("a",))).whole()
        kept = pages.channel(RUN)
        viewer = kept.join()
        while len(pages._channels) > 1:
            await asyncio.sleep(0.01)
        assert pages.channel(RUN) is kept
        kept.leave(viewer)
        while pages._channels:
            await asyncio.sleep(0.01)
        pages.close()

    asyncio.run(asyncio.wait_for(run(), 30))
