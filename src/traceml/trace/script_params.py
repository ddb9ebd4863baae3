"""Parameters that a script logs without a call: those in the objects that hold its arguments.

After the first step, once, the variables on the stack of the training thread are looked through for
argparse namespaces, OmegaConf configurations, dataclasses, dictionaries called `config`, and the
arguments of transformers and Lightning. Nothing is patched, and no library is loaded for it: what
is not loaded cannot have made an object. Objects are read without running code of the script's;
values that are neither numbers nor text, nor made of them, are left out.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from inspect import CO_OPTIMIZED
from itertools import islice
from pathlib import PurePath
from types import FrameType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any

from traceml.model.secrets import masked_value
from traceml.trace.interruptions import is_ours, variables_of
from traceml.trace.messages import MAX_NAME, MAX_TEXT, plain
from traceml.trace.script_objects import own_attributes
from traceml.trace.session import Session

MAX_FRAMES = 200
MAX_PARAMS = 1000
MAX_ITEMS = 64
"""Of a list or a dictionary inside a parameter; a longer one is data."""
MAX_DEPTH = 4
"""Of parameters inside each other."""
MAX_INSIDE = 1000
"""Values inside one parameter, at any depth; a larger one is data."""
MIN_ROOM = 64
"""Characters; with less left in a message it is full."""
MAX_VALUES = 4000
"""Values inside all of them that are looked at: a few milliseconds of the first step."""

_HOLDER = re.compile(
    r"(^|_)(args?|arguments|opts?|options|cfg|conf|configs?|configuration|[hp]?params|hyperparams"
    r"|hyperparameters|hps?|settings|flags)($|_)"
)
"""Variables, and classes once their words are divided, that hold what a run is run with."""
_DICTIONARY = re.compile(
    r"(^|_)(cfg|conf|config|configuration|hparams|hyperparams|hyperparameters|hps)$"
)
"""The same for plain dictionaries, of which a script has many."""
_BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} - {None}
)
_OTHERS = frozenset(
    (
        *("hydra", "torch", "transformers", "accelerate", "lightning", "pytorch_lightning", "ray"),
        *("deepspeed", "IPython", "ipykernel", "debugpy", "pydevd", "coverage", "kernprof"),
    )
)
"""Packages that call scripts and have arguments of their own, wherever they are installed."""
_HOLD_NOTHING = frozenset(
    id(kind)
    for kind in (
        *(bool, int, float, str, bytes, list, tuple, set, type(None), type),
        *(ModuleType, FunctionType),
    )
)
"""Nearly all variables are of these kinds, and not worth a second look. By identity: to hash or
compare a class runs its metaclass's code, and so it is done all over this module."""
_bases: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_dictionary_of: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__
"""These ask the class itself, whatever a metaclass would answer."""
_MISSING = object()


@dataclass(slots=True)
class Found:
    """The parameters of a run so far, by where they come from."""

    by_source: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    """The identities of the objects that were read."""
    values_left: int = MAX_VALUES
    """How many more values inside parameters may be looked at."""

    def add(self, source: str, holder: str, values: Iterable[tuple[str, Any]]) -> None:
        """Add an object's parameters; a name that another object has used for something else is
        written with its own variable's before it."""
        for name, value in values:
            if len(self.values) >= MAX_PARAMS:
                return
            if name in self.values and self.values[name] != value:
                name = f"{holder}.{name}"
            if name not in self.values:
                self.values[name] = value
                self.by_source.setdefault(source, {})[name] = value


@dataclass(slots=True)
class ReadingBudget:
    """How many more values inside a parameter may be looked at; below 0 it was too large."""

    left: int


class ScriptParams:
    """Sends the parameters of this process's script after its first step; rank 0 speaks for all."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._read = session.guard(_read_object, any_thread=True, failed=_ignored)
        session.forgets.append(self._take_after_next_step)
        self._take_after_next_step()

    def _take_after_next_step(self) -> None:
        if self._take not in self._session.looks:
            self._session.looks.append(self._take)

    def _take(self) -> None:
        self._session.looks.remove(self._take)
        if self._session.rank() != 0:
            return
        found = Found()
        for variables, kinds in _variables_on(sys._getframe(1)):
            for name, value in _worth_a_look(variables):
                if id(value) not in found.seen:
                    self._read(found, kinds, name, value)
        for source, _ in _KINDS:  # the command's own arguments first: a summary shows a few
            if source in found.by_source:
                self._send(source, found.by_source[source])

    def _send(self, source: str, values: dict[str, Any]) -> None:
        ring = self._session.ring or self._session.open()
        if ring is None:
            return
        room = ring.longest_message // 2  # letters may take more bytes than one
        kept: dict[str, Any] = {}
        for name, value in values.items():
            if room <= MIN_ROOM:
                break
            if type(value) is str and len(value) >= room:
                continue
            known = masked_value(name, value)
            size = len(name) + len(json.dumps(known)) + 4
            if size < room:
                room -= size
                kept[name[:MAX_NAME]] = known
        if kept:
            self._session.messages.write({"kind": "params", "source": source, "values": kept})


def _ignored(error: BaseException) -> None:
    """An object of the script's did not let itself be read: the others are."""


# Where to look


def _variables_on(frame: FrameType | None) -> Iterator[tuple[dict[str, Any], _Kinds]]:
    """The variables of the callers, the outermost first, and what they are looked through for: the
    script's own, and where it has no frame of its own (an installed program) everybody's."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        if not is_ours(frame):
            frames.append(frame)
        frame = frame.f_back
    frames.reverse()
    own = [each for each in frames if _is_of_script(each)]
    modules: set[int] = set()
    for each in own or frames:
        if id(each.f_globals) not in modules:
            modules.add(id(each.f_globals))
            yield each.f_globals, _KINDS
        if each.f_code.co_flags & CO_OPTIMIZED:  # a function: a module's variables are its globals
            variables = variables_of(each)
            yield variables, _KINDS
            yield own_attributes(variables.get("self")), _KINDS
    for each in frames if own else ():
        # A model that was made in the call of its trainer is no variable of the script's.
        if each.f_code.co_flags & CO_OPTIMIZED:
            yield variables_of(each), _FRAMEWORKS


def _worth_a_look(variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The variables that may hold parameters; another thread may add to them meanwhile."""
    for name in list(variables):
        value = variables.get(name)
        if id(type(value)) not in _HOLD_NOTHING:
            yield name, value


def _is_of_script(frame: FrameType) -> bool:
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    if module.partition(".")[0] in _OTHERS:
        return False
    return not file.startswith((*_LIBRARIES, "<frozen")) and "-packages" not in file


# What to read


def _read_object(found: Found, kinds: _Kinds, name: str, value: Any) -> None:
    """Add the parameters of an object, if it is one of the kinds that hold some."""
    for source, read in kinds:
        values = read(name, value)
        if values is not None:
            found.seen.add(id(value))
            found.add(source, name, _parameters(values, found))
            return


def _from_argparse(name: str, value: Any) -> dict[str, Any] | None:
    argparse: Any = sys.modules.get("argparse")
    is_one = argparse is not None and issubclass(type(value), argparse.Namespace)
    return own_attributes(value) if is_one else None


def _from_omegaconf(name: str, value: Any) -> dict[str, Any] | None:
    if name.startswith("_") or not _has_base(type(value), "DictConfig", "omegaconf."):
        return None
    if not _HOLDER.search(_words(name)):
        return None  # a part of it: hydra's own, or one that a function was given
    found = _held_by_node(value)
    return found if type(found) is dict else None


def _held_by_node(node: Any) -> Any:
    """What OmegaConf keeps in an object of its own: a value, or a dictionary or list of objects.

    An interpolation is the text that was written: to resolve it would run the script's resolvers,
    which may draw random numbers, fetch something or read a secret.
    """
    own = own_attributes(node)
    return own["_val"] if "_val" in own else own.get("_content", _MISSING)


def _from_transformers(name: str, value: Any) -> dict[str, Any] | None:
    if _has_base(type(value), "Trainer", "transformers."):
        value = own_attributes(value).get("args")
    if not _has_base(type(value), "TrainingArguments", "transformers."):
        return None
    return _fields(value)


def _from_lightning(name: str, value: Any) -> dict[str, Any] | None:
    if not _has_base(type(value), "HyperparametersMixin", "pytorch_lightning.", "lightning."):
        return None
    found = own_attributes(value).get("_hparams")
    return found if issubclass(type(found), dict) else None


def _from_dataclass(name: str, value: Any) -> dict[str, Any] | None:
    kind = type(value)
    if not (_HOLDER.search(_words(name)) or _HOLDER.search(_words(_name_of(kind)))):
        return None
    if kind is SimpleNamespace:
        return own_attributes(value)
    return _fields(value) if _is_dataclass(kind) else None


def _from_dictionary(name: str, value: Any) -> dict[str, Any] | None:
    is_one = issubclass(type(value), dict) and _DICTIONARY.search(name.lower())
    return value if is_one and dict.__len__(value) <= MAX_PARAMS else None


_Kinds = tuple[tuple[str, Callable[[str, Any], dict[str, Any] | None]], ...]
"""What the source is called, and what reads it: `None` where an object is none of the kind."""
_FRAMEWORKS: _Kinds = (
    ("transformers", _from_transformers),
    ("Lightning", _from_lightning),
)
_KINDS: _Kinds = (
    ("argparse", _from_argparse),
    ("OmegaConf", _from_omegaconf),
    *_FRAMEWORKS,
    ("dataclass", _from_dataclass),
    ("dict", _from_dictionary),
)


def _has_base(kind: type, name: str, *packages: str) -> bool:
    return any(
        _name_of(base) == name and str(_dictionary_of(base).get("__module__")).startswith(packages)
        for base in _bases(kind)
    )


def _is_dataclass(kind: type) -> bool:
    return any("__dataclass_fields__" in _dictionary_of(base) for base in _bases(kind))


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass's object, without those that it keeps to itself."""
    own = own_attributes(value)
    found: dict[str, Any] = {}
    for base in _bases(type(value)):
        members = _dictionary_of(base)
        for name in members.get("__dataclass_fields__", ()):
            slot = members.get(name)
            if name in own:
                found.setdefault(name, own[name])
            elif type(slot) is MemberDescriptorType:
                found.setdefault(name, slot.__get__(value))
    return found


def _words(name: str) -> str:
    """`TrainConfig` as `train_config`, `GPTConfig` as `gpt_config`."""
    return _BETWEEN_WORDS.sub("_", name).lower()


# Values


def _parameters(values: dict[str, Any], found: Found) -> Iterator[tuple[str, Any]]:
    """The parameters among the items of an object, read one by one; one that is too large is left
    out."""
    for name, value in _public_items(values):
        given = min(MAX_INSIDE, found.values_left)
        budget = ReadingBudget(given)
        known = _readable(value, 0, budget)
        found.values_left -= given - max(0, budget.left)
        if known is not _MISSING and budget.left >= 0:
            yield name, known


def _public_items(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The items of a dictionary by name; what begins with `_` is an object's own business."""
    for name, value in list(dict.items(values)):  # whatever a class of the script's makes of it
        if type(name) is str and not name.startswith("_"):
            yield name, value


def _readable_items(values: dict[str, Any], depth: int, budget: ReadingBudget) -> dict[str, Any]:
    found = {}
    for name, value in _public_items(values):
        known = _readable(value, depth, budget)
        if known is not _MISSING:
            found[name] = known
        if budget.left < 0:
            break
    return found


def _readable(value: Any, depth: int, budget: ReadingBudget) -> Any:
    """A value as JSON knows it; `_MISSING` where it is neither number nor text, nor made of them.

    An object's own text often holds its address, by which equal runs would differ.
    """
    budget.left -= depth > 0
    if budget.left < 0:
        return _MISSING
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is float:
        return plain(value)
    if issubclass(kind, Enum):
        return _readable(own_attributes(value).get("_value_"), depth, budget)
    if issubclass(kind, str):
        return _shortened(str.__str__(value))
    if issubclass(kind, (int, float)):  # as its number, whatever its class makes of it
        return plain(int.__int__(value) if issubclass(kind, int) else float.__float__(value))
    if issubclass(kind, PurePath) or _is_torch_word(kind):
        return _shortened(str(value))
    if _has_base(kind, "Node", "omegaconf."):
        return _readable(_held_by_node(value), depth, budget)
    return _readable_inside(value, depth + 1, budget) if depth < MAX_DEPTH else _MISSING


def _readable_inside(value: Any, depth: int, budget: ReadingBudget) -> Any:
    """What is made of values: a list, a dictionary, an object inside another."""
    kind = type(value)
    argparse: Any = sys.modules.get("argparse")
    is_namespace = argparse is not None and issubclass(kind, argparse.Namespace)
    for base in (list, tuple, set, frozenset):
        if issubclass(kind, base):
            items = list(islice(base.__iter__(value), MAX_ITEMS + 1))
            return _readable_list(items, base, depth, budget)
    if issubclass(kind, dict) and dict.__len__(value) <= MAX_ITEMS:
        return _readable_items(value, depth, budget) or _MISSING
    if kind is SimpleNamespace or is_namespace:
        return _readable_items(own_attributes(value), depth, budget) or _MISSING
    if _is_dataclass(kind):
        return _readable_items(_fields(value), depth, budget) or _MISSING
    return _MISSING


def _readable_list(values: list[Any], base: type, depth: int, budget: ReadingBudget) -> Any:
    """The items of a list, or of a set in an order that does not change from run to run."""
    items: list[Any] = []
    for value in values:
        items.append(_readable(value, depth, budget))
        if items[-1] is _MISSING or len(items) > MAX_ITEMS:
            return _MISSING
    return items if base in (list, tuple) else sorted(items, key=str)


def _is_torch_word(kind: type) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and (kind is torch.dtype or kind is torch.device)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
