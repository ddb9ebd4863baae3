"""The layers of a model as a page shows them: a tree by name, with its numbers by column."""

from __future__ import annotations

from msgspec import Struct


class LayerColumn(Struct, frozen=True):
    """One quantity of every row; `None` is not measured."""

    id: str
    label: str
    unit: str
    decimals: int
    """How many digits every value is written with behind its point."""
    whole: tuple[float | None, ...]
    """By row, with the layers below it."""
    own: tuple[float | None, ...] | None = None
    """Without them; `None` where that is the same, or means nothing."""


class LayerTreeRow(Struct, frozen=True):
    """One layer, or all those whose names differ in a number alone."""

    name: str
    """Dotted."""
    label: str
    """What the name adds to that of the row above it in the tree."""
    parent: int
    """The row above it in the tree, as its place in the list; -1 for none."""
    kind: str
    layers: int = 1
    """How many layers it stands for."""
    bound: str = ""
    """What limits it; empty where that is not known, or differs."""
    worst_rank: str = ""
    """The rank that is slower than the median one, or than the other of two, by the most; empty
    with a single rank."""


class LayerRows(Struct, frozen=True):
    """The rows of a tree, and their numbers."""

    rows: tuple[LayerTreeRow, ...]
    """A row comes after the one above it in the tree."""
    columns: tuple[LayerColumn, ...]


class LayerBar(Struct, frozen=True):
    """A bar of every row, made of the values of some columns of one unit."""

    label: str
    columns: tuple[str, ...]
    """Their ids …"""
    colours: tuple[str, ...]
    """… and the names of their colours in the palette."""


class LayerTree(Struct, frozen=True, tag="layers"):
    """Which layer takes the time and the memory."""

    id: str
    title: str
    single: LayerRows
    """Every layer by itself."""
    grouped: LayerRows | None
    """Layers that repeat as one row; `None` where none do."""
    bars: tuple[LayerBar, ...]
    flames: tuple[str, ...]
    """The columns that can be the width in the flame view, by their ids; the first one is made of
    the others."""
    caption: str | None = None
