"""What the terminal view draws of a page, what its keys do; other people's words stay words."""

from __future__ import annotations

import asyncio
import os
import pty
import termios
from collections.abc import Iterator

import msgspec
import pytest

from drawn_runs import page_of, standing_of
from factories import make_late, make_run, make_waiting, on_nodes
from traceml.figures.page import RunPage
from traceml.model.errors import RunNotFound, UnreadableRecords
from traceml.tui.app import Attachment, Outcome
from traceml.tui.keyboard import Keyboard
from traceml.tui.palette import DARK, LIGHT
from tui_pages import HOSTILE, PAGE, hostile_page
from tui_pilot import LARGE, SMALL, look_again, seen, shown, wait


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_a_small_screen_has_verdict_table_and_output(size: tuple[int, int]) -> None:
    async def test() -> None:
        async with shown(size=size) as (app, _):
            text = seen(app)
        for words in ("INPUT-BOUND (critical)", "Why", "Next", "If fixed", "Dataloader Fetch"):
            assert words in text
        for row in ("Median", "Worst", "Worst Rank", "Skew %", "WAIT Share %"):
            assert f"\n {row}" in text
        assert "744/1200" in text
        if size == LARGE:
            for words in ("Head/Tail Delta", "RAM 12.0 GiB", "rank 3", "Step time by rank"):
                assert words in text

    wait(test())


def test_a_run_without_anything_yet_is_drawn_too() -> None:
    bare = RunPage(PAGE.head, msgspec.structs.replace(PAGE.verdict, next=None, gain=None), (), ())

    async def test() -> None:
        async with shown(lambda: bare) as (app, _):
            assert "INPUT-BOUND" in seen(app)
            assert "The output is not kept" in seen(app)

    wait(test())


def test_the_nodes_of_a_run_have_a_table_and_a_row_of_cells_each() -> None:
    late = make_late(make_run(ranks=4, communication_ms=4.0), 2, 3)
    page = page_of(on_nodes(make_waiting(late), 2), standing_of("live", None))

    async def test() -> None:
        async with shown(lambda: page, (160, 200)) as (app, _):
            text = seen(app)
        assert "Own time of every rank by node" in text
        assert "Nodes" in text
        assert "node-b" in text
        assert "local rank 0" in text

    wait(test())


# Other people's words


def test_words_that_mean_harm_stay_words() -> None:
    async def test() -> None:
        async with shown(hostile_page, LARGE) as (app, pilot):
            text = seen(app)
            await pilot.press("question_mark", "escape", "d", "o")
            await pilot.pause()
            text += seen(app)
        assert "[red]x[/red] [@click=app.bell]y[/]" in text
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
        assert HOSTILE not in text

    wait(test())


# Keys


def test_keys_change_what_is_seen_and_nothing_else() -> None:
    async def test() -> None:
        async with shown() as (app, pilot):
            before = seen(app)
            await pilot.press("question_mark")
            await pilot.pause()
            assert "leave this view; the run goes on" in seen(app)
            await pilot.press("escape")
            await pilot.press("o")
            await pilot.pause()
            assert "Dataloader Fetch" not in seen(app) and "step 1100" in seen(app)
            await pilot.press("escape")
            assert app.theme == DARK
            await pilot.press("d")
            assert app.theme == LIGHT
            await pilot.press("d", "i", "ctrl+backslash")  # nothing to type to
            await pilot.pause()
            assert seen(app) == before

    wait(test())


def test_tab_goes_from_pane_to_pane_and_arrows_scroll_it() -> None:
    async def test() -> None:
        async with shown() as (app, pilot):
            assert "step 1195" in seen(app) and "step 1100" not in seen(app)
            await pilot.press("tab", "home")
            await pilot.pause()
            assert "step 1100" in seen(app) and "step 1195" not in seen(app)
            await pilot.press("tab", "pagedown")
            await pilot.pause()
            assert "Dataloader Fetch" not in seen(app)

    wait(test())


def test_output_is_followed_unless_somebody_looks_back() -> None:
    count = 100

    def printed() -> RunPage:
        lines = tuple(f"line {number}" for number in range(count))
        return msgspec.structs.replace(PAGE, output=lines)

    async def test() -> None:
        nonlocal count
        async with shown(printed) as (app, pilot):
            count = 200
            await look_again(app, pilot)
            assert "line 199" in seen(app)
            await pilot.resize_terminal(80, 30)
            await pilot.pause()
            assert "line 199" in seen(app)
            await pilot.press("tab", "home")
            count = 300
            await look_again(app, pilot)
            assert "line 0" in seen(app)
            await pilot.press("end")
            count = 400
            await look_again(app, pilot)
            assert "line 399" in seen(app)

    wait(test())


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
def test_a_view_from_outside_is_left_by_a_key(key: str) -> None:
    async def test() -> None:
        async with shown() as (app, pilot):
            await pilot.press(key)
        assert app.return_value is Outcome.LEFT

    wait(test())


def test_a_run_that_ends_is_left_to_its_summary() -> None:
    over = msgspec.structs.replace(PAGE, head=msgspec.structs.replace(PAGE.head, state="finished"))

    async def test() -> None:
        async with shown(lambda: over) as (app, _):
            pass
        assert app.return_value is Outcome.ENDED

    wait(test())


def test_parts_come_and_go_and_keep_their_order() -> None:
    step_time, memory, process, system = PAGE.parts
    pages = [(), (system,), (step_time, system), PAGE.parts, (memory, process)]
    titles = {part.title for part in PAGE.parts}

    async def test() -> None:
        async with shown(lambda: msgspec.structs.replace(PAGE, parts=pages[0]), (80, 100)) as (
            app,
            pilot,
        ):
            while pages:
                await look_again(app, pilot)
                found = [line.strip("─━") for line in seen(app).splitlines()]
                assert [one for one in found if one in titles] == [part.title for part in pages[0]]
                if len(pages) == 1:
                    break
                pages.pop(0)

    wait(test())


def test_what_may_be_mended_is_said_and_what_cannot_ends_the_view() -> None:
    troubles = [UnreadableRecords("run.json is damaged [b]x[/b]"), RunNotFound("gone")]

    def source() -> RunPage:
        raise troubles[0]

    async def test() -> None:
        async with shown(source) as (app, pilot):
            assert "run.json is damaged [b]x[/b]" in seen(app)
            troubles.pop(0)
            await look_again(app, pilot)
        assert app.failure is troubles[0]

    wait(test())


# The keyboard of the command behind the view


HANG_S = 60
"""Only a key that never arrives takes as long."""


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    for descriptor in (ours, theirs):
        os.close(descriptor)


async def read(descriptor: int) -> bytes:
    """What comes next from a terminal, while the view goes on."""
    is_ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, is_ready.set)
    try:
        await asyncio.wait_for(is_ready.wait(), HANG_S)
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, 100)


def test_what_is_typed_reaches_the_command(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    link, other_end = os.pipe()

    async def test() -> None:
        attachment = Attachment(link, Keyboard(ours))
        async with shown(attachment=attachment) as (app, pilot):
            assert os.get_terminal_size(theirs).columns == app._view.output.size.width
            await pilot.press("i", *"[b]q", "enter")
            assert await read(theirs) == b"[b]q\n"
            modes = termios.tcgetattr(theirs)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
            await pilot.press("escape", "i", *"secret")
            await pilot.pause()
            assert "secret" not in seen(app)
            await pilot.press("enter", "ctrl+d")
            assert await read(theirs) == b"secret\n"
            assert await read(theirs) == b""  # the end of the input
            os.close(other_end)
            while app.is_running:
                await pilot.pause(0.01)
        assert app.return_value is Outcome.ENDED

    wait(test())
    os.close(link)


def test_ctrl_c_goes_to_the_command_and_the_view_stays(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    modes = termios.tcgetattr(theirs)
    modes[3] &= ~(termios.ISIG | termios.ICANON)
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    link, other_end = os.pipe()

    async def test() -> None:
        async with shown(attachment=Attachment(link, Keyboard(ours))) as (app, pilot):
            await pilot.press("ctrl+c", "ctrl+backslash")
            await pilot.pause()
            assert await read(theirs) == b"\x03\x1c"
            assert app.is_running

    wait(test())
    os.close(link)
    os.close(other_end)


def test_a_command_that_does_not_read_holds_nobody_up(terminal: tuple[int, int]) -> None:
    keyboard = Keyboard(terminal[0])
    taken = 0
    while taken < 1000 and keyboard.write_line("x" * 4000):
        taken += 1
    assert taken < 1000
    keyboard.interrupt()
