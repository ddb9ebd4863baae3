"""Reads which tensors a pickle of `torch.save` holds, and runs nothing of it.

A pickle is a program that may call anything. Here its instructions are followed one by one, and the
only things it can make are dicts, lists, texts, numbers and descriptions of tensors. Whatever else
it names is refused, as `torch.load(weights_only=True)` refuses it, except a few classes of plain
values that trainers save beside the weights; those become placeholders, and none of their code
runs. Neither torch nor the memory of the tensors is needed.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from traceml.model.errors import UnreadableArtifact

MAX_INSTRUCTIONS = 10_000_000
"""A few seconds; an optimizer's state of 10,000 parameters takes a million."""
MAX_VISITED = 1_000_000
"""Values that are visited: a pickle can refer to one list from very many others."""
MAX_LISTED_VALUES = 64
"""Of a longer list only the tensors are taken: the numbers of a generator's state are no news."""
MAX_DEPTH = 64
MAX_LEAVES = 500_000

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}
_TORCH_DTYPES = frozenset(
    [
        *(dtype for name, dtype in _STORAGES.items() if name != "UntypedStorage"),
        "float8_e4m3fn",
        "float8_e5m2",
        "uint16",
        "uint32",
        "uint64",
    ]
)
_REBUILD_TENSOR = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
_REBUILD_TYPED = "torch._utils._rebuild_tensor_v3"
_REBUILD_PARAMETER = (
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
)
_REBUILD_SUBCLASS = "torch._tensor._rebuild_from_type_v2"
_DICTS = ("collections.OrderedDict", "collections.defaultdict", "builtins.dict", "__builtin__.dict")
_PLACEHOLDERS = frozenset(
    [
        "_codecs.encode",
        "argparse.Namespace",
        "builtins.bytearray",
        "builtins.complex",
        "builtins.frozenset",
        "builtins.list",
        "builtins.set",
        "__builtin__.set",
        "collections.Counter",
        "collections.deque",
        "datetime.datetime",
        "lightning.fabric.utilities.data.AttributeDict",
        "lightning_fabric.utilities.data.AttributeDict",
        "pytorch_lightning.utilities.parsing.AttributeDict",
        "datetime.timedelta",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy.dtype",
        "numpy.ndarray",
        "pathlib.Path",
        "pathlib.PosixPath",
        "pathlib.PurePosixPath",
        "pathlib.WindowsPath",
        "pathlib._local.PosixPath",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.torch_version.TorchVersion",
    ]
)


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor as the pickle describes it."""

    dtype: str
    key: str
    """Of the storage that holds its elements."""
    offset: int
    """Of its first element in the storage, in elements."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class PickledRecord:
    """An object of a class that was asked for: its fields by name. No code of the class runs."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class _Name:
    """A function or a class that the pickle names; it is never looked up."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str


class _Placeholder:
    """A value of a class that is not read."""


Leaf: TypeAlias = PickledTensor | str | int | float | None


def leaves_in(content: bytes) -> dict[str, Leaf]:
    """Returns the tensors and plain values of a pickle by their dotted names.

    Raises UnreadableArtifact.
    """
    found: dict[str, Leaf] = {}
    try:
        for name, leaf in _walk(_Machine().run(content), "", 0, [MAX_VISITED]):
            found[_unused(name or "tensor", found)] = leaf
            if len(found) > MAX_LEAVES:
                raise UnreadableArtifact(f"it holds more than {MAX_LEAVES:,} tensors and values")
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise UnreadableArtifact(f"its pickle is damaged ({error})") from None
    return found


def record_in(content: bytes, classes: Collection[str]) -> PickledRecord:
    """Returns the object that a pickle is of; it and what it holds may be of these classes, given
    with their modules, and of those of any checkpoint. Raises UnreadableArtifact.
    """
    try:
        found = _Machine(frozenset(classes)).run(content)
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise UnreadableArtifact(f"its pickle is damaged ({error})") from None
    if not isinstance(found, PickledRecord):
        raise UnreadableArtifact("its pickle is of something else")
    return found


def _unused(name: str, known: dict[str, Leaf]) -> str:
    """Returns a name that is not known yet: `a.b` may be one key, or a key in another."""
    number, free = 1, name
    while free in known:
        number += 1
        free = f"{name} ({number})"
    return free


def _walk(value: object, name: str, depth: int, left: list[int]) -> Iterator[tuple[str, Leaf]]:
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        raise UnreadableArtifact("it is nested too deeply, or holds itself")
    if value is None or isinstance(value, (PickledTensor, str, int, float)):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _walk(part, f"{name}.{key}" if name else str(key), depth + 1, left)
    elif isinstance(value, (list, tuple)):
        is_long = len(value) > MAX_LISTED_VALUES
        for number, part in enumerate(value):
            if is_long and (part is None or isinstance(part, (str, int, float))):
                continue
            yield from _walk(part, f"{name}.{number}" if name else str(number), depth + 1, left)


class _Machine:
    """Follows a pickle's instructions."""

    def __init__(self, records: frozenset[str] = frozenset()) -> None:
        self.records = records
        """Classes whose objects are read."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        """Where in the stack the arguments of the next instructions begin."""
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> object:
        """Returns what the pickle makes."""
        for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if number > MAX_INSTRUCTIONS:
                raise UnreadableArtifact(f"its pickle has more than {number - 1:,} instructions")
            if opcode.name == "STOP":
                return self.stack.pop()
            self._follow(opcode.name, argument)
        raise ValueError("it has no end")

    def _follow(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _HANDLERS:
            _HANDLERS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise UnreadableArtifact(
                f"refused: its pickle has the instruction {name}, which no checkpoint needs"
            )

    def pop_to_mark(self) -> list[Any]:
        """Takes everything above the last mark from the stack."""
        place = self.marks.pop()
        found = self.stack[place:]
        del self.stack[place:]
        return found

    def take(self, count: int) -> list[Any]:
        """Takes so many values from the stack, in their order."""
        if len(self.stack) < count:
            raise ValueError("an instruction lacks its arguments")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found


def _named(module: str, name: str, records: frozenset[str]) -> _Name:
    """Returns a name that a checkpoint may have; all others are refused."""
    full = f"{module}.{name}"
    is_known = (
        full in _PLACEHOLDERS
        or full in records
        or full in _DICTS
        or full in _REBUILD_TENSOR
        or full in _REBUILD_PARAMETER
        or full in (_REBUILD_SUBCLASS, _REBUILD_TYPED)
        or (module in ("torch", "torch.storage", "torch.cuda") and name in _STORAGES)
        or (module == "torch" and name in _TORCH_DTYPES)
    )
    if module.startswith("__torch__"):
        raise UnreadableArtifact("refused: it is a TorchScript program; save a state_dict()")
    if not is_known:
        raise UnreadableArtifact(
            f"refused: its pickle names {full[:80]}, which is not part of a checkpoint's plain "
            "values and could run code; save a state_dict() instead"
        )
    return _Name(full)


def _call(function: object, arguments: tuple[Any, ...], records: frozenset[str]) -> object:
    """Returns what a call in the pickle stands for; nothing is called."""
    name = function.name if isinstance(function, _Name) else ""
    if name in records:
        return PickledRecord(name)
    if records and name == "torch.Size" and arguments:
        return tuple(arguments[0])
    if name in _DICTS:
        given = arguments[0] if name.endswith("OrderedDict") and arguments else []
        return dict(given) if isinstance(given, list) else {}
    if name in _REBUILD_TENSOR:
        storage, offset, shape, stride = arguments[:4]
        return _tensor(storage, offset, shape, stride)
    if name == _REBUILD_TYPED:
        storage, offset, shape, stride, _, _, dtype = arguments[:7]
        return _tensor(storage, offset, shape, stride, dtype)
    if name in _REBUILD_PARAMETER:
        return arguments[0]
    if name == _REBUILD_SUBCLASS:
        return _call(arguments[0], arguments[2], records)
    return _Placeholder()


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, dtype: Any = None) -> PickledTensor:
    numbers = (offset, *shape, *stride)
    if not isinstance(storage, _Storage) or len(shape) != len(stride):
        raise ValueError("a tensor without a storage, or with a wrong shape")
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise ValueError("a tensor with an impossible shape")
    kind = dtype.name.rpartition(".")[2] if isinstance(dtype, _Name) else storage.dtype
    return PickledTensor(kind, storage.key, offset, tuple(shape), tuple(stride))


def _begin_arguments(machine: _Machine, _: object) -> None:
    machine.marks.append(len(machine.stack))


def _load_storage(machine: _Machine, _: object) -> None:
    (identity,) = machine.take(1)
    if not isinstance(identity, tuple) or len(identity) < 3 or identity[0] != "storage":
        raise ValueError("an unknown persistent id")
    kind = identity[1].name.rpartition(".")[2] if isinstance(identity[1], _Name) else ""
    machine.stack.append(_Storage(_STORAGES[kind], str(identity[2])))


def _load_global(machine: _Machine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    machine.stack.append(_named(module, name, machine.records))


def _load_stack_global(machine: _Machine, _: object) -> None:
    module, name = machine.take(2)
    machine.stack.append(_named(str(module), str(name), machine.records))


def _reduce(machine: _Machine, _: object) -> None:
    function, arguments = machine.take(2)
    machine.stack.append(_call(function, tuple(arguments), machine.records))


def _build(machine: _Machine, _: object) -> None:
    """Takes the attributes of an object: none of them is a weight of a state dict."""
    (state,) = machine.take(1)
    target = machine.stack[-1]
    if isinstance(target, PickledRecord) and isinstance(state, dict):
        target.fields.update(state)


def _put(machine: _Machine, argument: int) -> None:
    machine.memo[argument] = machine.stack[-1]


def _get(machine: _Machine, argument: int) -> None:
    machine.stack.append(machine.memo[argument])


def _memoize(machine: _Machine, _: object) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _set_item(machine: _Machine, _: object) -> None:
    key, value = machine.take(2)
    _assign(machine.stack[-1], [key, value])


def _set_items(machine: _Machine, _: object) -> None:
    found = machine.pop_to_mark()
    _assign(machine.stack[-1], found)


def _assign(target: object, pairs: list[Any]) -> None:
    if isinstance(target, dict):
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            is_plain = key is None or isinstance(key, (str, int, float, PickledRecord))
            target[key if is_plain else f"<{type(key).__name__}>"] = value


def _append(machine: _Machine, _: object) -> None:
    (value,) = machine.take(1)
    if isinstance(machine.stack[-1], list):
        machine.stack[-1].append(value)


def _append_all(machine: _Machine, _: object) -> None:
    found = machine.pop_to_mark()
    if isinstance(machine.stack[-1], list):
        machine.stack[-1].extend(found)


def _tuple_of(count: int) -> Callable[[_Machine, object], None]:
    def make(machine: _Machine, _: object) -> None:
        machine.stack.append(tuple(machine.take(count)))

    return make


def _tuple(machine: _Machine, _: object) -> None:
    machine.stack.append(tuple(machine.pop_to_mark()))


def _list(machine: _Machine, _: object) -> None:
    machine.stack.append(machine.pop_to_mark())


def _dict(machine: _Machine, _: object) -> None:
    made: dict[Any, Any] = {}
    _assign(made, machine.pop_to_mark())
    machine.stack.append(made)


def _frozen_set(machine: _Machine, _: object) -> None:
    machine.pop_to_mark()
    machine.stack.append(_Placeholder())


_VALUES = (
    frozenset(("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"))
    | frozenset(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"))
    | frozenset(("BINSTRING", "SHORT_BINSTRING", "STRING", "BINFLOAT", "FLOAT"))
    | frozenset(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"))
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": _Placeholder,
}
_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "GLOBAL": _load_global,
    "STACK_GLOBAL": _load_stack_global,
    "BINPERSID": _load_storage,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "BUILD": _build,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": _memoize,
    "BINGET": _get,
    "LONG_BINGET": _get,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "ADDITEMS": _append_all,
    "APPEND": _append,
    "APPENDS": _append_all,
    "TUPLE": _tuple,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "LIST": _list,
    "DICT": _dict,
    "FROZENSET": _frozen_set,
    "MARK": _begin_arguments,
}
