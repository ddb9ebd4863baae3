"""Says what changed between two pages, so that a viewer is sent that and not the whole page again.

A change is `null` (none), or one of
`{"set": value}`: it is another value;
`{"keys": {name: change}, "drop": [name]}`: an object, in which these changed and those are gone;
`{"from": n, "tail": [value]}`: an array that keeps its first n items, and then goes on like this;
`{"items": {index: change}, "length": n}`: an array of n items, of which these changed or are new.

A field of a page is a number or a truth value, never now this and now that: 1 counts as true here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Change: TypeAlias = dict[str, Any]
_FEW = 8
"""Comparing this many items one by one is fast enough."""


def delta(before: Any, after: Any) -> Change | None:
    """Returns the change from `before` to `after`, both as JSON; tuples are arrays."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return _object_delta(before, after)
    if _is_array(before) and _is_array(after):
        return _array_delta(before, after)
    return None if before == after else {"set": after}


def apply(before: Any, change: Change | None) -> Any:
    """Returns the value after a change, as the viewer computes it; for tests."""
    if change is None:
        return before
    if "set" in change:
        return change["set"]
    if "keys" in change:
        kept = {name: value for name, value in before.items() if name not in change["drop"]}
        return kept | {name: apply(before.get(name), each) for name, each in change["keys"].items()}
    if "tail" in change:
        return [*before[: change["from"]], *change["tail"]]
    items: list[Any] = [*before[: change["length"]]]
    items += [None] * (change["length"] - len(items))
    for index, each in change["items"].items():
        items[int(index)] = apply(items[int(index)], each)
    return items


def _object_delta(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change | None:
    keys: dict[str, Change] = {}
    for name, value in after.items():
        change = delta(before[name], value) if name in before else {"set": value}
        if change is not None:
            keys[name] = change
    drop = [name for name in before if name not in after]
    return {"keys": keys, "drop": drop} if keys or drop else None


def _array_delta(before: Sequence[Any], after: Sequence[Any]) -> Change | None:
    kept = _shared_beginning(before, after)
    if kept == len(before) == len(after):
        return None
    if any(isinstance(item, Mapping) or _is_array(item) for item in after[kept:]):
        return _items_delta(before, after, kept)
    return _flat_delta(before, after, kept)


def _items_delta(before: Sequence[Any], after: Sequence[Any], kept: int) -> Change:
    """Returns the change item by item, for objects or nested arrays."""
    items: dict[str, Change] = {}
    for index in range(kept, len(after)):
        if index >= len(before):
            items[str(index)] = {"set": after[index]}
        elif (change := delta(before[index], after[index])) is not None:
            items[str(index)] = change
    return {"items": items, "length": len(after)}


def _flat_delta(before: Sequence[Any], after: Sequence[Any], kept: int) -> Change:
    """Returns the change of numbers or texts: single items where they are few, else all from the
    first change."""
    tail = after[kept:]
    others = {
        str(index): {"set": value}
        for index, value in enumerate(tail, start=kept)
        if index >= len(before) or before[index] != value
    }
    if 3 * len(others) < len(tail):  # a changed item costs its index and braces as well
        return {"items": others, "length": len(after)}
    return {"from": kept, "tail": tail} if kept else {"set": after}


def _shared_beginning(before: Sequence[Any], after: Sequence[Any]) -> int:
    """Returns how many items at the beginning are equal, by bisection."""
    low, high = 0, min(len(before), len(after))
    while high - low > _FEW:
        middle = (low + high) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle
    while low < high and before[low] == after[low]:
        low += 1
    return low


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, tuple))
