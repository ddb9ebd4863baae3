"""Adds up the time of garbage collections without running any Python while one begins or ends.

Python calls what stands in `gc.callbacks` in a place where it discards exceptions, and a function
written in Python is where a pending signal's handler runs: a Ctrl-C would vanish there. So would it
in a product of large numbers, during which Python looks for signals. So the callback is put
together from functions in C alone, which run no handler, and without multiplying. The total is read
by the next hook.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable
from itertools import accumulate, cycle, repeat
from threading import get_ident
from time import perf_counter_ns
from typing import Any

_NONE, _ALL = 0, -1
"""The bits of a number, as `&` keeps them and `^` turns them."""
_TURNED = (_NONE, _ALL, _NONE, _NONE)
_KEPT = (_NONE, _ALL, _ALL, _NONE)
"""The callback runs at the start and at the end of a collection and takes two moments each time:
the second of the start is taken off the total (turned, and one more), the first of the end is added
to it."""


class CollectionTime:
    """The time that given threads have spent in collections."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        """The threads whose collections count."""
        self.total_ns: deque[int] = deque([0], maxlen=1)
        """The total so far, as its only item. During a collection it is far below the last."""
        self.callback = self._made_of_functions_in_c()

    def _made_of_functions_in_c(self) -> Callable[..., Any]:
        is_counted = map(operator.contains, repeat(self.threads), iter(get_ident, None))
        counted = map(operator.neg, is_counted)  # all bits, or none
        moments = map(operator.xor, iter(perf_counter_ns, None), cycle(_TURNED))
        kept = map(operator.and_, map(operator.and_, moments, cycle(_KEPT)), counted)
        totals = accumulate(kept)
        # Storing a total gives `None`; `is_` turns that into something that `max` can compare.
        stored = map(operator.is_, map(self.total_ns.append, totals), repeat(None))
        # Called with two arguments, `max` asks its key twice; `next` ignores the argument.
        return functools.partial(max, key=functools.partial(next, stored))
