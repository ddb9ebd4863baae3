"""`traceml schema`: the JSON Schema of what a command prints with `--format=json`."""

from __future__ import annotations

from pathlib import Path

from traceml.cli.parser import CommandParser, some_text
from traceml.figures.json_documents import DOCUMENTS
from traceml.model.errors import UsageError, did_you_mean

SCHEMA_FOLDER = Path(__file__).parent.parent / "schemas"
"""Where the package has the schemas, a file each; those of old versions stay."""


def main(words: list[str]) -> int:
    """Prints one schema, or the names of all."""
    options = _parser().parse_args(words)
    if options.name is not None:
        print(published_schema(options.name), end="")
        return 0
    width = max(map(len, DOCUMENTS))
    for document in DOCUMENTS.values():
        print(f"{document.name:<{width}}  version {document.version}  {document.command}")
    return 0


def published_schema(name: str) -> str:
    """Returns the schema of a document as the package has it; raises UsageError for a name that no
    document has."""
    document = DOCUMENTS.get(name)
    if document is None:
        raise UsageError(
            f"there is no schema {name!r}{did_you_mean(name, DOCUMENTS)}; "
            f"expected one of {', '.join(DOCUMENTS)}"
        )
    return (SCHEMA_FOLDER / document.file_name).read_text()


def _parser() -> CommandParser:
    parser = CommandParser(
        "schema",
        description="Print the JSON Schema (draft 2020-12) of what a command prints as JSON.",
        epilog="Keys may be added to a document under the same version. Where one is removed or "
        "changes its meaning, the version rises.",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        type=some_text,
        help="of the document; without it, all names are listed with their commands",
    )
    return parser
