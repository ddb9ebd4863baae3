"""The page's texts as the terminal shows them; text from a run is never markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.text import Text

from traceml.figures.page import Fact, FindingCard, Head, RunPage, RunState, Tile, Tone
from traceml.model.printable import printable
from traceml.model.quantities import NOT_MEASURED
from traceml.tui.palette import MARKS, SEVERITY_WORDS, Ink

MAX_NAME_CHARS = 40
PROGRESS_CELLS = 12
MAX_RANKS = 8
_GAP = "   "
_STATES: dict[RunState, Tone] = {
    "live": "good",
    "finished": "info",
    "failed": "crit",
    "lost": "warn",
}


def plain(text: str, style: str = "") -> Text:
    """Returns foreign text without markup and control characters."""
    return Text().append(printable(text), style)  # what is put behind it has its own style


def head_line(head: Head, width: int, ink: Ink) -> Text:
    """Returns the run's name and state in one line; the least important facts are left out
    first."""
    name = head.name if len(head.name) <= MAX_NAME_CHARS else f"{head.name[: MAX_NAME_CHARS - 1]}…"
    state = _STATES[head.state]
    line = plain(f" {name} ", "bold")
    mark = "●" if head.state == "live" else MARKS[state]  # not over yet, however good it looks
    line.append_text(plain(f"{mark} {head.state_words}", ink.tone(state)))
    if head.progress is not None:
        line.append(f"  {_progress(head.progress)}", style=ink["info"])
    for words in (head.steps, head.throughput, head.elapsed, head.remaining, head.ranks):
        if (
            words not in (None, "", NOT_MEASURED)
            and cell_len(line.plain) + 3 + cell_len(words) <= width
        ):
            line.append(" · ", style=ink["muted"])
            line.append_text(plain(words))
    return _one_line(line)


def _progress(progress: float) -> str:
    full = round(progress * PROGRESS_CELLS)
    return "█" * full + "░" * (PROGRESS_CELLS - full)


def verdict_lines(page: RunPage, width: int, ink: Ink) -> Iterator[Text]:
    """Returns the verdict, why, what to do next, and the expected gain."""
    verdict = page.verdict
    yield status_words(verdict.severity, verdict.status, ink)
    said = {"Why": verdict.why, "Next": verdict.next, "If fixed": verdict.gain}
    yield from _labelled(said, width, ink)
    for note in page.notes:
        yield plain(note, ink["warn"])


def _labelled(said: Mapping[str, str | None], width: int, ink: Ink) -> Iterator[Text]:
    """Returns the non-empty sentences, each after its label."""
    known = {label: words for label, words in said.items() if words}
    indent = max(map(len, known), default=0) + 2
    for label, words in known.items():
        lines = wrap(printable(words), max(width - indent, 1), break_on_hyphens=False)
        line = plain(f"{label:<{indent}}", ink["muted"])
        yield line.append(f"\n{' ' * indent}".join(lines))


def status_words(severity: Tone, status: str, ink: Ink) -> Text:
    """Returns a diagnosis with its mark and severity."""
    words = plain(f"{MARKS[severity]} {status}", f"bold {ink.tone(severity)}")
    if severity in SEVERITY_WORDS:
        words.append(f" ({SEVERITY_WORDS[severity]})", style=ink.tone(severity))
    return words


def finding_lines(found: FindingCard, told: str, width: int, ink: Ink) -> Iterator[Text]:
    """Returns a finding; if the verdict has told it already, only its evidence."""
    first = plain(f"{found.section}: ", ink["muted"])
    first.append_text(status_words(found.severity, found.status, ink))
    for words in filter(None, (_ranks(found), found.since)):
        first.append_text(plain(f" · {words}", ink["muted"]))
    yield first
    if found.summary != told:
        yield plain(found.summary)
        yield from _labelled({"Next": found.action, "If fixed": found.gain}, width, ink)
    if found.evidence:
        yield Text(_GAP).join(_fact(fact, ink) for fact in found.evidence)


def _ranks(found: FindingCard) -> str:
    named = ", ".join(map(str, found.ranks[:MAX_RANKS]))
    more = ", …" if len(found.ranks) > MAX_RANKS else ""
    return f"rank{'s' if len(found.ranks) > 1 else ''} {named}{more}" if named else ""


def _fact(fact: Fact, ink: Ink) -> Text:
    return plain(f"{fact.label} ", ink["muted"]).append_text(plain(fact.value))


def tile_lines(tiles: Sequence[Tile], width: int, ink: Ink) -> Text:
    """Returns numbers side by side, as many as fit on a line."""
    return flow((_tile(tile, ink) for tile in tiles), width)


def _tile(tile: Tile, ink: Ink) -> Text:
    words = plain(f"{tile.label} ", ink["muted"])
    words.append_text(plain(tile.value, f"bold {ink.tone(tile.tone)}".strip()))
    if tile.note:
        words.append_text(plain(f" {tile.note}", ink["muted"]))
    return words


def flow(pieces: Iterable[Text], width: int) -> Text:
    """Returns pieces one after another, without breaking one that fits on a line of its own."""
    lines: list[Text] = []
    for piece in pieces:
        if lines and lines[-1].cell_len + len(_GAP) + piece.cell_len <= width:
            lines[-1].append(_GAP)
            lines[-1].append_text(piece)
        else:
            lines.append(piece.copy())
    return Text("\n").join(lines)


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
