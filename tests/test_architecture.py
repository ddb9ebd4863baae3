"""Keeps the diagram of the packages true: who may import whom, and who owns which library."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "traceml"

LAYERS = (
    ("cli",),
    ("web", "tui"),
    ("api",),
    ("launch", "agent"),
    ("figures",),
    ("text",),
    ("compare",),
    ("summaries",),
    ("diagnose",),
    ("facts",),
    ("store",),
    ("steps",),
    ("model",),
)
"""From the top: a package may import those of lower layers, and none beside it in its own."""
TRAINER = ("integrations", "trace", "steps", "model")
"""The training process's own column, from the top."""
FRONT_DOOR = ("__init__", "decorators", "__main__")

OWNERS = {
    "numpy": {"store", "facts", "compare", "figures"},
    "msgspec": {"store", "summaries", "compare", "agent", "figures", "web"},
    "PIL": {"store"},
    "google": {"store"},
    "mcp": {"cli"},
    "mlflow": {"store"},
    "opentelemetry": {"agent"},
    "pandas": {"api"},
    "polars": {"api"},
    "psutil": {"agent"},
    "pyarrow": {"store"},
    "pynvml": {"agent"},
    "accelerate": {"integrations"},
    "ray": {"integrations"},
    "requests": {"agent"},
    "transformers": {"integrations"},
    "scipy": {"compare"},
    "sklearn": {"compare"},
    "starlette": {"web"},
    "tensorboard": {"store"},
    "textual": {"tui"},
    "trackio": {"store"},
    "rich": {"tui"},
    "torch": {"trace"},
    "uvicorn": {"web"},
    "wandb": {"store"},
}
"""The packages that may import each library; what is not here nobody may."""

FRAMEWORKS = {
    "Lightning": ("lightning", "pytorch-lightning"),
    "Hugging Face: Trainer, and TRL's trainers": ("transformers", "trl"),
    "Accelerate": ("accelerate",),
    "DeepSpeed": ("deepspeed",),
    "Ray Train": ("ray",),
    "torchtitan, torchtune": (),  # loops in their style: they are no packages that scripts import
    "timm, Ultralytics, and loops of your own": ("timm", "ultralytics"),
}
"""The sections of docs/frameworks.md, and the extras of what each is about."""

PURE = ("steps", "facts", "diagnose", "compare", "text", "summaries", "figures")
IMPURE = frozenset(
    [
        "io",
        "logging",
        "os",
        "pathlib",
        "random",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
        "time",
    ]
)
MAY_READ_FILES = {"summaries/read.py"}

SMALL_FILE_LINES, MAX_SMALL_FILES = 50, 15

NO_ROOMS = {"utils", "util", "core", "common", "helpers", "base", "misc"}

GUARDS = [
    "agent/error_log.py",  # around each reading of the machine: the other readings go on
    "agent/loop.py",  # around the agent's loop
    "agent/node_link.py",  # around a node's link to the head, which is tried again
    "api/log_to_tracker.py",  # around a tracker's package, in a process of its own: said at the end
    "cli/compare.py",  # around the gate: a bug of ours must not exit as a regression does
    "integrations/library_support.py",  # around calls of the script's own loggers, at the end
    "launch/supervise.py",  # around the launcher's last resort: the status stays the training's
    "trace/inject/sitecustomize.py",  # around our arrival: the user's `import torch` must not fail
    "trace/session.py",  # around every hook in the training process …
    "trace/session.py",  # … and around those that run in every step
]
"""The places that catch everything; each says or counts what it caught."""


@dataclass(frozen=True)
class Import:
    """One import, wherever in a module it stands."""

    module: str
    by: str
    line: int

    @property
    def place(self) -> str:
        return f"src/traceml/{self.by}:{self.line}"


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(), str(path))


MODULES = dict(modules())


def package_of(file: str) -> str:
    return file.removesuffix(".py").split("/")[0]


def imports() -> Iterator[Import]:
    for file, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    yield Import(name.name, file, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}:{node.lineno}: imports are absolute"
                for name in node.names:
                    yield Import(f"{node.module}.{name.name}", file, node.lineno)


def packages_below(package: str) -> set[str]:
    if package in ("integrations", "trace"):
        return set(TRAINER[TRAINER.index(package) :])
    depth = next(place for place, layer in enumerate(LAYERS) if package in layer)
    return {package}.union(*LAYERS[depth + 1 :])


def packages() -> set[str]:
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_every_package_has_its_line_in_the_diagram():
    drawn = {package for layer in LAYERS for package in layer} | set(TRAINER)
    assert packages() == drawn
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert files == set(FRONT_DOOR), "a module outside every package"


def test_no_package_has_a_name_that_says_nothing():
    names = {part.removesuffix(".py") for file in MODULES for part in file.split("/")}
    assert not names & NO_ROOMS


def test_imports_point_down_only():
    wrong = []
    for found in imports():
        by, (top, _, rest) = package_of(found.by), found.module.partition(".")
        if top != "traceml" or by in FRONT_DOOR:
            continue
        package = rest.split(".")[0]
        if package in packages():
            if package not in packages_below(by):
                wrong.append(f"{found.place} imports {found.module}: {by} stands below {package}")
        elif by == "trace" or package not in ("", "__version__"):
            wrong.append(f"{found.place} imports {found.module} through traceml/__init__.py")
    assert not wrong, "\n".join(wrong)


def test_every_library_is_imported_by_its_owners_alone():
    wrong = []
    for found in imports():
        top = found.module.split(".")[0]
        if top == "traceml" or top in sys.stdlib_module_names:
            continue
        if package_of(found.by) not in OWNERS.get(top, set()):
            wrong.append(f"{found.place} imports {top}")
    assert not wrong, "\n".join(wrong)


def test_pure_packages_know_no_clock_disk_or_environment():
    wrong = [
        f"{found.place} imports {found.module}"
        for found in imports()
        if package_of(found.by) in PURE
        and found.module.split(".")[0] in IMPURE
        and found.module != "pathlib.PurePath"  # names of files, and no file
        and found.by not in MAY_READ_FILES
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_package_says_in_one_sentence_what_it_does(package: str):
    tree = MODULES[f"{package}/__init__.py"]
    sign = ast.get_docstring(tree) or ""
    assert sign.endswith(".") and "\n" not in sign and ". " not in sign
    if package != "cli":  # that of the command line is also its dispatcher
        assert len(tree.body) == 1, "a package's __init__.py holds nothing but its docstring"


def test_few_files_are_too_small_to_be_worth_opening():
    """Rules are one file each, and a package's own file holds one sentence: they do not count."""
    small = [
        file
        for file in MODULES
        if not file.endswith("__init__.py")
        and not file.startswith("diagnose/rules/")
        and len((PACKAGE / file).read_text().splitlines()) <= SMALL_FILE_LINES
    ]
    assert len(small) <= MAX_SMALL_FILES, f"merge some of them: {', '.join(small)}"


def test_every_framework_of_the_guide_has_an_extra_and_a_test():
    guide = (ROOT / "docs/frameworks.md").read_text()
    assert re.findall(r"^## (.+)$", guide, re.MULTILINE) == list(FRAMEWORKS)
    project = (ROOT / "pyproject.toml").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests/integrations").glob("test_*.py"))
    for extra in (extra for extras in FRAMEWORKS.values() for extra in extras):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"no extra {extra}"
        module = extra.replace("-", "_")
        asks_for_it = rf'(importorskip|skip_without)\("{module}[".]'
        assert re.search(asks_for_it, tests), f"no test with the real {module}"


def test_every_class_has_a_name_of_its_own():
    names: dict[str, list[str]] = {}
    for file, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name.lstrip("_"), []).append(f"{file}:{node.lineno}")
    names.pop("TraceMLCallback")  # what users import, by the same name for every framework
    assert {name: places for name, places in names.items() if len(places) > 1} == {}


def test_every_module_says_what_it_is_for():
    assert [file for file, tree in MODULES.items() if not ast.get_docstring(tree)] == []


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    kinds = [None] if handler.type is None else ast.walk(handler.type)
    broad = any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
        for kind in kinds
    )
    passes_on = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return broad and not passes_on


def _suppresses(node: ast.AST) -> bool:
    """Whether errors end here without an `except`: an `__exit__` that returns True, or `suppress`
    of everything."""
    if isinstance(node, ast.FunctionDef) and node.name == "__exit__":
        returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
        return any(isinstance(value, ast.Constant) and value.value is True for value in returned)
    if not isinstance(node, ast.Call) or getattr(node.func, "id", None) != "suppress":
        return False
    return any(getattr(each, "id", None) in ("Exception", "BaseException") for each in node.args)


def test_only_the_guards_catch_everything():
    found = [
        file
        for file, tree in MODULES.items()
        for node in ast.walk(tree)
        if _suppresses(node) or (isinstance(node, ast.ExceptHandler) and _catches_everything(node))
    ]
    assert found == GUARDS


def _in_training() -> Iterator[tuple[str, ast.Module]]:
    return ((file, tree) for file, tree in MODULES.items() if package_of(file) == "trace")


CANNOT_BE_A_HANDLERS = {"FileExistsError", "ImportError", "StopIteration", "SyntaxError"}
"""Errors that no signal's handler is expected to raise: those may be swallowed unseen."""


def test_no_except_in_the_training_process_swallows_what_a_signals_handler_raised():
    """A `TimeoutError` is an `OSError`: every handler that goes on asks whose error it has."""
    wrong = []
    for file, tree in _in_training():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            kinds = {each.id for each in ast.walk(node.type or node) if isinstance(each, ast.Name)}
            names = {
                each.id.lstrip("_")
                for line in node.body
                for each in ast.walk(line)
                if isinstance(each, ast.Name)
            }
            passes_on = isinstance(node.body[-1], ast.Raise)
            is_harmless = passes_on or kinds <= CANNOT_BE_A_HANDLERS
            if not is_harmless and "is_interruption" not in names:
                wrong.append(f"src/traceml/{file}:{node.lineno}")
    assert not wrong, "\n".join(wrong)


def test_no_python_of_ours_runs_where_an_exception_is_discarded():
    """In finalizers, callbacks of weak references, audit hooks and at-fork handlers."""
    wrong = []
    for file, tree in _in_training():
        for node in ast.walk(tree):
            name = getattr(node, "attr", None) or getattr(node, "name", None)
            is_callback = (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", None) == "ref"
                and len(node.args) > 1
            )
            forbidden = {"__del__", "WeakSet", "WeakKeyDictionary", "finalize", "addaudithook"}
            if is_callback or name in forbidden:
                wrong.append(f"src/traceml/{file}:{node.lineno}")
            if name == "register_at_fork" and file != "trace/forked.py":
                wrong.append(f"src/traceml/{file}:{node.lineno}: see trace/forked.py")
    assert not wrong, "\n".join(wrong)


def _loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.splitlines()[-1].split())  # what the code itself printed comes before


def test_importing_traceml_loads_nothing_heavy():
    loaded = _loaded_after("import traceml")
    assert not loaded & OWNERS.keys()
    assert {name for name in loaded if name.startswith("traceml.")} == set()


def test_the_command_line_loads_nothing_heavy_to_show_its_help():
    loaded = _loaded_after("from traceml.cli import main; main(['--help'])")
    assert not loaded & OWNERS.keys()


def test_the_training_process_loads_the_standard_library_torch_and_the_tracer_alone(tmp_path):
    """Whatever torch brings along is torch's; what comes with tracing on top of it is ours."""
    training = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.zeros(4, 2))
def train():
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
train()
"""
    tracing = f"""
import sys
from pathlib import Path
from traceml.trace import current
from traceml.trace.current import begin
import traceml
session = current.start(Path({str(tmp_path)!r}), None, None)
begin()
train()
with traceml.trace_step(model), traceml.trace_time("region"):
    train()
traceml.log_params({{"lr": 0.1}})
traceml.log_metrics({{"loss": 1.0}})
traceml.log_artifact({str(tmp_path)!r})
assert session.count_steps() > 0
"""
    added = _loaded_after(training + tracing) - _loaded_after(training)
    allowed = ("traceml", "traceml.trace", "traceml.steps", "traceml.model")
    strangers = {
        name
        for name in added
        if name.split(".")[0] not in sys.stdlib_module_names
        and name not in allowed
        and not name.startswith(("traceml.trace.", "traceml.steps.", "traceml.model."))
    }
    assert strangers == set()
