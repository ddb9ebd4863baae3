"""The viewer's style sheets: all are bundled into one, whatever page is shown."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

VIEWER = Path(__file__).parents[2] / "src" / "traceml" / "web" / "viewer" / "src"
RULE_OF_ONE_CLASS = re.compile(r"^\.([a-zA-Z][\w-]*)\s*\{", re.MULTILINE)


def test_no_class_has_rules_of_its_own_in_two_files() -> None:
    """Else a page changes when another one's file does."""
    files: dict[str, set[str]] = defaultdict(set)
    for path in VIEWER.rglob("*.css"):
        for name in RULE_OF_ONE_CLASS.findall(path.read_text()):
            files[name].add(path.name)
    assert len(files) > 100
    assert {name: places for name, places in files.items() if len(places) > 1} == {}
