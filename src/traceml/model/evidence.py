"""What supports a finding: each piece with its key for programs, its words for people, its unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

Value = float | int | str | bool | None
"""`None` is not measured."""


class EvidenceUnit(str, Enum):
    """What the number of a piece of evidence counts."""

    MILLISECONDS = "ms"
    SECONDS = "s"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    SHARE = "share"
    """A fraction, of 1."""
    PERCENT = "%"
    CELSIUS = "°C"
    WATTS = "W"
    PER_SECOND = "1/s"
    NUMBER = "number"
    WORDS = "words"
    """No number: a text, or yes and no."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of evidence."""

    key: str
    value: Value
    unit: EvidenceUnit
    label: str
    is_told: bool = True
    """Whether people see it; some keys are for programs alone."""


class Evidence(Mapping[str, Value]):
    """The pieces behind a finding, in the order in which they are told.

    As a mapping it is what the summary's `evidence` holds: the value of each key.
    """

    __slots__ = ("_by_key", "pieces")

    def __init__(self, *pieces: Piece) -> None:
        by_key = {piece.key: piece for piece in pieces}  # of two with one key the later counts
        self.pieces = tuple(by_key.values())
        self._by_key = {key: piece.value for key, piece in by_key.items()}

    def __getitem__(self, key: str) -> Value:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __repr__(self) -> str:
        return f"Evidence({self._by_key!r})"


def in_ms(key: str, duration_s: float | None, label: str | None = None) -> Piece:
    """A time; it is measured in seconds, and told in milliseconds."""
    value = None if duration_s is None else duration_s * 1e3
    return _piece(key, value, EvidenceUnit.MILLISECONDS, label)


def in_s(key: str, duration_s: float | None, label: str | None = None) -> Piece:
    """A long time, in seconds."""
    return _piece(key, duration_s, EvidenceUnit.SECONDS, label)


def in_bytes(key: str, size: float | None, label: str | None = None) -> Piece:
    """An amount of memory."""
    return _piece(key, size, EvidenceUnit.BYTES, label)


def in_bytes_per_s(key: str, rate: float | None, label: str | None = None) -> Piece:
    """A rate at which memory moves."""
    return _piece(key, rate, EvidenceUnit.BYTES_PER_SECOND, label)


def as_share(key: str, share: float | None, label: str | None = None) -> Piece:
    """A fraction of a whole, of 1."""
    return _piece(key, share, EvidenceUnit.SHARE, label)


def in_celsius(key: str, degrees: float | None, label: str | None = None) -> Piece:
    """A temperature."""
    return _piece(key, degrees, EvidenceUnit.CELSIUS, label)


def in_watts(key: str, watts: float | None, label: str | None = None) -> Piece:
    """A power."""
    return _piece(key, watts, EvidenceUnit.WATTS, label)


def as_number(key: str, number: float | None, label: str | None = None) -> Piece:
    """A count, or a number without a unit."""
    return _piece(key, number, EvidenceUnit.NUMBER, label)


def as_words(key: str, words: str | bool | None, label: str | None = None) -> Piece:
    """A text, or yes and no."""
    return _piece(key, words, EvidenceUnit.WORDS, label)


def _piece(key: str, value: Value, unit: EvidenceUnit, label: str | None) -> Piece:
    return Piece(key, value, unit, label or label_of(key), key not in NOT_TOLD)


NOT_TOLD = frozenset(
    {
        "diagnosis_clock",
        "exit_status",
        "message",
        "name",
        "numbering",
        "onset_step",
        "place",
        "processes",
        "rank",
        "samples",
        "score",
        "stacks",
        "status",
        "step",
        "where",
    }
)
"""Said elsewhere beside a finding, or of no use to people."""

_SUFFIXES = {
    "_bytes_per_s": EvidenceUnit.BYTES_PER_SECOND,
    "_bytes": EvidenceUnit.BYTES,
    "_per_s": EvidenceUnit.PER_SECOND,
    "_ms": EvidenceUnit.MILLISECONDS,
    "_s": EvidenceUnit.SECONDS,
    "_share": EvidenceUnit.SHARE,
    "_percent": EvidenceUnit.PERCENT,
    "_c": EvidenceUnit.CELSIUS,
    "_w": EvidenceUnit.WATTS,
}
_SHARES = ("occupancy", "pressure", "skew", "utilisation", "utilization")
_LABELS = {
    "input_bound_share": "input share",
    "traced_step_time_ms": "rest of the step",
    "worst_ms": "worst rank",
    "median_ms": "median rank",
    "loss_values": "losses seen",
    "main_part": "most of it",
    "onset_step": "since step",
    "runqueue_share": "waiting for a core",
    "code_looks": "looks at the stack",
    "code_looks_torn": "torn looks",
    "code_looks_by": "looked by",
    "code_1": "most in",
    "code_2": "then in",
}
"""What is called otherwise in words."""
_WORDS = {
    "cpu": "CPU",
    "dram": "DRAM",
    "fp32": "FP32",
    "gpu": "GPU",
    "gpus": "GPUs",
    "h2d": "copy",
    "oom": "OOM",
    "ram": "RAM",
    "rss": "resident memory",
    "sm": "SM",
    "utilisation": "utilization",
}


@lru_cache(maxsize=1024)  # a live run is diagnosed again and again, with the same few keys
def label_of(key: str) -> str:
    """What a key is called in words, without its unit."""
    if key in _LABELS:
        return _LABELS[key]
    suffix = next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), "")
    plain = key.removesuffix(suffix) + ("_share" if suffix == "_share" else "")
    return " ".join(_WORDS.get(word, word) for word in plain.split("_") if word)


def unit_by_name(key: str) -> EvidenceUnit:
    """The unit that a number's key suggests, where a file of another package says none."""
    for suffix, unit in _SUFFIXES.items():
        if key.endswith(suffix):
            return unit
    is_share = any(key.startswith(share) or key.endswith(share) for share in _SHARES)
    return EvidenceUnit.SHARE if is_share else EvidenceUnit.NUMBER
