"""The terminal's pane of layers: the longest first, numbers in sight however long names are."""

from __future__ import annotations

from msgspec import structs

from factories import make_run
from layer_runs import kernel_step, layer_records, with_layers, with_norms
from traceml.figures.layers import layers_part
from traceml.figures.page import RunPage
from traceml.summaries.build import build
from tui_pages import PAGE
from tui_pilot import LARGE, SMALL, seen, shown, wait

LONG = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_tn_align8>(P)"


def page_with(own_ms: dict[str, float]) -> RunPage:
    kernels = (kernel_step(9.0, [(LONG, 12, 8_000_000, 0)], [1.0] * len(own_ms)),)
    record = layer_records(forward_ms=own_ms, backward_ms=own_ms, kernels=kernels)
    found = layers_part(build(with_layers(make_run(steps=40), record), 0.0, "0").layers)
    assert found is not None
    return structs.replace(PAGE, parts=(PAGE.parts[0], found, *PAGE.parts[1:]))


def screen_of(page: RunPage, size: tuple[int, int]) -> list[str]:
    lines: list[str] = []

    async def test() -> None:
        async with shown(lambda: page, size) as (app, pilot):
            app.screen.query_one("#parts").scroll_end(animate=False)
            pane = next(p for p in app.screen.query("Pane.titled") if p.border_title == "Layers")
            pane.scroll_visible(animate=False, top=True)
            await pilot.pause()
            lines.extend(seen(app).splitlines())

    wait(test())
    return lines


def test_the_layers_that_take_the_longest_are_listed_with_repeated_ones_as_one() -> None:
    own = {"": 0.5, "blocks.0.attn": 3.0, "blocks.1.attn": 3.0, "head": 4.0}
    lines = screen_of(page_with(own), LARGE)
    rows = [line for line in lines if "blocks.*.attn ×2" in line or "head " in line]
    assert len(rows) == 2 and "blocks.*.attn ×2" in rows[0]
    assert "12.00" in rows[0] and "8.00" in rows[1]


def test_a_long_kernel_s_name_gives_way_to_its_numbers_on_a_small_screen() -> None:
    lines = screen_of(page_with({"": 0.5, "head": 4.0}), SMALL)
    (row,) = [line for line in lines if "cutlass" in line]
    assert "…" in row and "8.0 ms" in row and "89%" in row


def test_gradient_norms_are_lines_as_high_as_their_logarithm() -> None:
    own = {"a": 1.0, "b": 1.0}
    norms = {"a": [1.0] * 20 + [1e6] * 20, "b": [1e3] * 40}
    record = with_norms(layer_records(forward_ms=own), norms)
    found = layers_part(build(with_layers(make_run(steps=40), record), 0.0, "0").layers)
    assert found is not None
    page = structs.replace(PAGE, parts=(PAGE.parts[0], found, *PAGE.parts[1:]))
    lines = screen_of(page, LARGE)
    at = next(n for n, line in enumerate(lines) if "Gradient norm by layer" in line)
    by_name = {name: next(li for li in lines[at:] if f" {name} " in li) for name in own}
    assert "▁" in by_name["a"] and "█" in by_name["a"] and "1e+06" in by_name["a"]
    assert set("▃▄▅") & set(by_name["b"]) and not set("▁█") & set(by_name["b"])


def test_a_hostile_layer_s_name_stays_in_its_line() -> None:
    name = "[red]x[/red] [@click=app.bell]y[/] \x1b[2J\n" + "z" * 200
    lines = screen_of(page_with({name: 4.0}), SMALL)
    assert not any("\x1b" in line for line in lines)
    row = next(line for line in lines if "[red]x[/red]" in line)
    assert row.split()[-3:] == ["8", "4", "4"]
