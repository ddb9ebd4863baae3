"""The viewer's types are those of the records it draws."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from traceml.figures import page
from traceml.web.typescript import typescript

SCHEMA = Path(page.__file__).parents[1] / "web" / "viewer" / "src" / "schema.ts"


def test_the_viewer_has_the_types_of_today():
    assert SCHEMA.read_text(encoding="utf-8") == typescript(), (
        "figures/page.py or figures/colours.py has changed: "
        "run `python -m traceml.web.typescript > src/traceml/web/viewer/src/schema.ts`"
    )


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('  type: "heatmap";', id="a tag"),
        pytest.param("  figures: readonly Figure[];", id="a union by its name"),
        pytest.param("  tone: Tone | null;", id="words to choose from, by their name"),
        pytest.param("  values: readonly (readonly (number | null)[])[];", id="rows of numbers"),
        pytest.param("  parts: readonly Branch[];", id="a record within itself"),
    ],
)
def test_a_field_is_written_as_typescript_reads_it(line):
    assert line in typescript().splitlines()


def test_a_kind_of_field_without_a_type_is_refused(monkeypatch):
    class Strange(msgspec.Struct):
        at: dict[str, int]

    Strange.__module__ = page.__name__
    monkeypatch.setattr(page, "Strange", Strange, raising=False)
    with pytest.raises(TypeError, match=r"without a TypeScript type.*web/typescript\.py"):
        typescript()
