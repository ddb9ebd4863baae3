"""Writes the JSON Schemas of what commands print, from the types that it is made of.

make docs
"""

from __future__ import annotations

from pathlib import Path

from traceml.cli.schema import SCHEMA_FOLDER
from traceml.figures.json_documents import DOCUMENTS, make_schema


def schemas() -> dict[Path, str]:
    """Each schema's file with what it should hold."""
    return {
        SCHEMA_FOLDER / document.file_name: make_schema(document) for document in DOCUMENTS.values()
    }


if __name__ == "__main__":
    for path, content in schemas().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
