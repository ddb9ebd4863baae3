"""Prints the viewer's types, made from the records it draws, and its colours.

python -m traceml.web.typescript > src/traceml/web/viewer/src/schema.ts
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec
import msgspec.inspect

from traceml.figures import colours, exploration_record, history_page_record, layer_record, page
from traceml.model.phase import Colour

MODULES = (page, layer_record, exploration_record, history_page_record)
HEADER = """\
// The pages that the viewer draws. Made from the records and colours of figures/ by
//   python -m traceml.web.typescript > src/traceml/web/viewer/src/schema.ts
// An edit here is lost.
"""


def typescript() -> str:
    """Returns everything that Python and the viewer share, as a TypeScript module."""
    declarations = [_declaration(name, value) for name, value in _declared()]
    colour_parts = [_ground(), _palette(), _heat(), _ramp()]
    return "\n\n".join([HEADER.rstrip(), *declarations, *colour_parts]) + "\n"


def _declared() -> Iterator[tuple[str, Any]]:
    """Yields the names of the modules of records, in their order there, each once."""
    found: dict[str, Any] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            if _is_struct(value) or get_origin(value) is Literal or _is_union(value):
                found.setdefault(name, value)
    yield from found.items()


def _is_struct(value: object) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ in {module.__name__ for module in MODULES}
    )


def _is_union(value: object) -> bool:
    return isinstance(value, types.UnionType)


def _declaration(name: str, value: Any) -> str:
    if _is_union(value):
        return f"export type {name} = {' | '.join(part.__name__ for part in get_args(value))};"
    if get_origin(value) is Literal:
        return f"export type {name} = {_literal(get_args(value))};"
    return _interface(value)


def _interface(struct: type[msgspec.Struct]) -> str:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    lines = [
        f"/** {inspect.cleandoc(struct.__doc__ or '')} */",
        f"export interface {struct.__name__} {{",
    ]
    if info.tag is not None:
        lines.append(f"  {info.tag_field}: {json.dumps(info.tag)};")
    lines += [f"  {field.encode_name}: {_type(field.type)};" for field in info.fields]
    return "\n".join([*lines, "}"])


def _type(info: msgspec.inspect.Type) -> str:
    match info:
        case msgspec.inspect.StrType():
            return "string"
        case msgspec.inspect.BoolType():
            return "boolean"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return "number"
        case msgspec.inspect.NoneType():
            return "null"
        case msgspec.inspect.StructType():
            return info.cls.__name__
        case msgspec.inspect.LiteralType():
            return _named(set(info.values)) or _literal(info.values)
        case msgspec.inspect.UnionType():
            return _union(info)
        case msgspec.inspect.VarTupleType():
            return f"readonly {_in_brackets(_type(info.item_type))}[]"
    raise TypeError(
        f"figures/ holds a field of a kind without a TypeScript type: {info}; use words, "
        "numbers, records and tuples of them there, or add the kind to web/typescript.py"
    )


def _union(info: msgspec.inspect.UnionType) -> str:
    structs = {part.cls for part in info.types if isinstance(part, msgspec.inspect.StructType)}
    if len(structs) == len(info.types) and (name := _named(structs)):
        return name
    return " | ".join(_type(part) for part in info.types)


def _named(members: set[Any]) -> str | None:
    """Returns the name that the records give to a union of these."""
    for name, value in _declared():
        if not _is_struct(value) and set(get_args(value)) == members:
            return name
    return None


def _in_brackets(inner: str) -> str:
    return f"({inner})" if " " in inner else inner


def _literal(values: tuple[Any, ...]) -> str:
    return " | ".join(json.dumps(value) for value in values)


def _ground() -> str:
    return f"export const GROUND = {_colour(colours.GROUND)} as const;"


def _palette() -> str:
    lines = [
        f"  {json.dumps(name)}: {_colour(colour)}," for name, colour in colours.PALETTE.items()
    ]
    return "\n".join(["export const PALETTE = {", *lines, "} as const;"])


def _colour(colour: Colour) -> str:
    return f"{{ light: {json.dumps(colour.light)}, dark: {json.dumps(colour.dark)} }}"


def _heat() -> str:
    return f"export const HEAT = {json.dumps(list(colours.HEAT))} as const;"


def _ramp() -> str:
    themes = {"light": colours.RAMP.light, "dark": colours.RAMP.dark}
    lines = [f"  {name}: {json.dumps(list(stops))}," for name, stops in themes.items()]
    return "\n".join(["export const RAMP = {", *lines, "} as const;"])


if __name__ == "__main__":
    print(typescript(), end="")
