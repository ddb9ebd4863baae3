"""The C file of the tracer in what is installed: there where it can be built, and never missed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from traceml.trace import build_recorder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of what a wheel is made of, without anything that was built."""
    root = tmp_path_factory.mktemp("sources") / "checkout"
    left_out = shutil.ignore_patterns("node_modules", "__pycache__", "_recorder.*", "static")
    shutil.copytree(ROOT / "src", root / "src", ignore=left_out)
    shutil.copytree(ROOT / "examples", root / "examples", ignore=left_out)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, root)
    return root


def wheel(checkout: Path, dist: Path, **environment: str) -> Path:
    script = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", script, str(dist)],
        cwd=checkout,
        env={**os.environ, "TRACEML_WITHOUT_VIEWER": "1", **environment},
        capture_output=True,
        check=True,
        timeout=600,
    )
    (found,) = dist.glob("*.whl")
    return found


def built_in(found: Path) -> list[str]:
    names = zipfile.ZipFile(found).namelist()
    assert "traceml/trace/recorder.c" in names
    return [name for name in names if "/_recorder." in name]


@pytest.mark.parametrize(
    "environment",
    [{"TRACEML_WITHOUT_C": "1"}, {"CC": "false"}, {"CC": "/no/such/compiler"}, {"CC": "cc 'no"}],
    ids=["not wanted", "a compiler that fails", "no compiler", "no command"],
)
def test_a_wheel_without_c_is_for_any_machine(checkout, tmp_path, environment):
    found = wheel(checkout, tmp_path, **environment)
    assert found.name.endswith("-py3-none-any.whl")
    assert built_in(found) == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_a_wheel_with_c_is_for_this_machine_and_works_there(checkout, tmp_path):
    if not (Path(build_recorder.sysconfig.get_path("include")) / "Python.h").is_file():
        pytest.skip("Python's headers are missing")
    found = wheel(checkout, tmp_path / "dist")
    (tag,) = parse_wheel_filename(found.name)[3]
    assert tag in set(sys_tags())  # pip takes it here
    assert str(tag).startswith(build_recorder.tag(""))
    assert built_in(found) == [f"traceml/trace/_recorder{build_recorder.suffix()}"]
    zipfile.ZipFile(found).extractall(tmp_path / "installed")
    script = "from traceml.trace import recorder; print(recorder.Recorder.__mro__[1])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    environment.pop("TRACEML_WITHOUT_C", None)
    command = [sys.executable, "-S", "-c", script]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout == "<class 'traceml.trace._recorder.Events'>\n"


def test_a_place_that_cannot_be_written_says_why(tmp_path, monkeypatch):
    monkeypatch.delenv("TRACEML_WITHOUT_C", raising=False)
    monkeypatch.setattr(build_recorder, "SOURCE", tmp_path / "missing" / "recorder.c")
    with pytest.raises(build_recorder.RecorderNotBuilt, match=r"missing|headers"):
        build_recorder.build()
