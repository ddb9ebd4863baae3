"""Numbers of layers in two bytes each: small ones exact, times to a four thousandth."""

from __future__ import annotations

from base64 import b64encode
from zlib import compress

import numpy as np
import pytest

from traceml.model.packed_times import COMPRESSED, MAX_UNPACKED_BYTES, pack, unpack_codes
from traceml.store.layer_records import _array


def test_times_keep_their_size_and_small_counts_are_exact() -> None:
    counts = list(range(1000))
    assert _array(pack(counts)).tolist() == counts
    times = np.geomspace(10_000, 3_600_000_000_000, 5_000).astype(np.int64)
    assert np.abs(_array(pack(times.tolist())) / times - 1).max() < 1 / 4000


def test_what_is_too_large_is_the_largest_and_nothing_is_nothing() -> None:
    assert _array(pack([10**18, 0, -5]))[0] > 9e12
    assert _array(pack([10**18, 0, -5])).tolist()[1:] == [0, 0]
    assert _array(pack([])).tolist() == []


def test_numbers_that_repeat_are_shorter_still() -> None:
    assert _array(pack([3] * 2000)).tolist() == [3] * 2000
    assert len(pack([3] * 2000)) < 100


@pytest.mark.parametrize(
    "damaged",
    [
        pack([1] * 99)[:-6],
        "no base 64 at all!",
        COMPRESSED + b64encode(b"not compressed").decode(),
        COMPRESSED + b64encode(compress(b"odd")).decode(),
        COMPRESSED + b64encode(compress(bytes(MAX_UNPACKED_BYTES + 2))).decode(),
        "é",
    ],
    ids=["cut", "not base 64", "not compressed", "half a number", "too much", "not ASCII"],
)
def test_damaged_numbers_are_refused(damaged: str) -> None:
    with pytest.raises(ValueError):
        unpack_codes(damaged)
