"""The viewer as it is shipped: small, whole, and silent towards the network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from traceml.web import assets

ROOT = Path(__file__).parents[2]
VIEWER = Path("src/traceml/web/viewer")
STATIC = Path("src/traceml/web/static")

MAX_BYTES = 1_200_000
MAX_ZIPPED_BYTES = 450_000


def test_the_bundle_is_as_small_as_promised():
    files = assets.load().values()
    assert sum(len(file.content) for file in files) <= MAX_BYTES
    assert sum(len(file.zipped) for file in files) <= MAX_ZIPPED_BYTES


def test_the_bundle_names_no_address_to_ask():
    """Namespaces of XML are names; a licence says where it is from."""
    text = "".join(file.content.decode() for file in assets.load().values())
    found = set(re.findall(r"(?:https?|wss?)://[\w./-]+", text))
    strangers = {
        address
        for address in found
        if not address.startswith("http://www.w3.org/") and not address.endswith("LICENSE")
    }
    assert strangers == set()


def test_a_class_is_styled_for_itself_in_one_style_sheet_alone():
    """All of them are in every page: a second file's `.picker` would change the first one's."""
    sheets: dict[str, set[str]] = {}
    for path in sorted((ROOT / VIEWER / "src").rglob("*.css")):
        text = re.sub(r"/\*.*?\*/|@media[^{]*print.*", "", path.read_text(), flags=re.DOTALL)
        for selectors in re.findall(r"([^{};]+)\{", text):
            for alone in re.findall(r"(?:^|,)\s*(\.[\w-]+)\s*(?=,|$)", selectors):
                sheets.setdefault(alone, set()).add(path.name)
    assert {"styles.css", "explore.css", "run_list.css"} <= set().union(*sheets.values())
    assert {name: found for name, found in sheets.items() if len(found) > 1} == {}


def test_the_lock_names_no_registry_and_every_package_by_its_content():
    packages = json.loads((ROOT / VIEWER / "package-lock.json").read_text())["packages"]
    packages.pop("")
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert [name for name, package in packages.items() if "integrity" not in package] == []


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of what a wheel is made of, the built viewer included."""
    root = tmp_path / "checkout"
    left_out = shutil.ignore_patterns("node_modules", "__pycache__")
    shutil.copytree(ROOT / "src", root / "src", ignore=left_out)
    shutil.copytree(ROOT / "examples", root / "examples", ignore=left_out)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, root)
    return root


def build(checkout: Path, kind: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Build with a registry that nobody answers at: what is not built yet cannot be built."""
    dist = checkout.parent / "dist"
    nowhere = {
        "npm_config_registry": "http://127.0.0.1:9/",
        "npm_config_cache": str(checkout.parent / "npm"),
        "npm_config_fetch_retries": "0",
    }
    script = f"import sys; from hatchling.build import build_{kind}; build_{kind}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", script, str(dist)],
        cwd=checkout,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
    )
    return done, dist


def test_a_wheel_holds_the_bundle_and_none_of_its_sources(checkout):
    done, dist = build(checkout, "wheel")
    assert done.returncode == 0, done.stderr
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if name.startswith("traceml/web/static/")} == {
        "traceml/web/static/viewer.css",
        "traceml/web/static/viewer.js",
        "traceml/web/static/viewer.licences.txt",
    }
    assert [name for name in names if "viewer/" in name or "node_modules" in name] == []


def test_a_changed_viewer_is_built_again_and_says_why_it_cannot_be(checkout):
    main = checkout / VIEWER / "src" / "main.tsx"
    main.write_text(main.read_text() + "// changed\n")
    done, dist = build(checkout, "wheel")
    assert done.returncode != 0
    assert "npm ci" in done.stderr and "npm registry" in done.stderr
    assert "TRACEML_WITHOUT_VIEWER=1" in done.stderr
    assert not list(dist.glob("*.whl"))
