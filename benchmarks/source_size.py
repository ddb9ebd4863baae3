"""How large the source is: lines of code, and files that are hardly worth opening.

A line of code is one that is neither blank nor a comment nor part of a docstring.
"""

from __future__ import annotations

import ast
from pathlib import Path

from benchmarks.figure import Figure

SOURCE = Path(__file__).parents[1] / "src"
SMALL_FILE_LINES = 50


def run() -> list[Figure]:
    """The size of the Python in `src/`."""
    files = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    code = sum(map(code_lines, files.values()))
    small = [path for path, text in files.items() if _is_small(path, text)]
    return [
        Figure("lines of code", "fewer", code, "lines", note=f"in {len(files)} files"),
        Figure(f"files of ≤ {SMALL_FILE_LINES} lines, rules aside", "≤ 15", len(small), "files"),
    ]


def code_lines(text: str) -> int:
    """How many lines of a module are code."""
    lines = text.splitlines()
    is_code = [bool(line.strip()) and not line.strip().startswith("#") for line in lines]
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            docstring = node.body[0]
            for number in range(docstring.lineno, (docstring.end_lineno or 0) + 1):
                is_code[number - 1] = False
    return sum(is_code)


def _is_small(path: Path, text: str) -> bool:
    is_exempt = path.name == "__init__.py" or path.parent.name == "rules"
    return not is_exempt and len(text.splitlines()) <= SMALL_FILE_LINES
