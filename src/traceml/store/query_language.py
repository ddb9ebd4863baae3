"""The language of filters over runs: `lr > 0.001 and status = "finished" and tags contains "good"`.

A filter is read into a tree of conditions by a small parser (nothing is ever evaluated as Python).
An error points at the place where it went wrong. `store/query_names.py` then finds the columns that
the names mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from traceml.model.errors import UsageError
from traceml.model.printable import printable, shorten, terminal_width
from traceml.model.run_values import ORDERINGS, Wanted

SECTIONS = ("params", "metrics", "facts")
"""The prefixes of names; a name without one is looked up in all of them."""
MAX_CHARS = 20_000
MAX_DEPTH = 100
"""Of parentheses and `not`."""

TIME_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SIZE_UNITS_BYTES = {
    "B": 1.0,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
}

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>[A-Za-zµ%]+)?
    |(?P<name>[^\W\d]\w*(?:[./:@%+-]+\w+)*)?
     (?P<text>(?(name)\.)(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))(?P<end>\.[^\W\d]\w*)?
    |(?P<word>[^\W\d]\w*(?:[./:@%+-]+\w+)*(?:\[[^][\n"']+\](?:\.\w+)?)?)
    |(?P<sign><=|>=|=<|=>|!=|==|<>|&&|\|\||[-=<>(),!~&|])
    )""",
    re.VERBOSE,
)
"""A number, a text in quotes with what may stand around it in a name, a word (with a segment in
square brackets, `accuracy[New York].min`), or a sign."""
_WORDS = ("and", "or", "not", "in", "is", "contains", "matches", "missing")
_CONSTANTS: dict[str, Wanted] = {
    "true": True,
    "false": False,
    "nan": math.nan,
    "inf": math.inf,
}
_SAID_OTHERWISE = {
    "&&": "and",
    "&": "and",
    "||": "or",
    "|": "or",
    "!": "not",
    "<>": "!=",
    "=<": "<=",
    "=>": ">=",
    "~": "matches",
}
"""Signs of other languages, and the word for each in this one."""
_SHOWN_CHARS = 100


class QueryError(UsageError):
    """A filter, a sort key or a column that cannot be understood; the message shows where."""

    def __init__(self, text: str, at: int, problem: str) -> None:
        """`at` is the place in the text, counted from 0."""
        self.at = at
        self.problem = problem
        first = max(0, min(at - _SHOWN_CHARS // 2, len(text) - _SHOWN_CHARS))
        shown = printable(text[first : first + _SHOWN_CHARS])
        before, after = "…" if first else "", "…" if first + _SHOWN_CHARS < len(text) else ""
        pointer = " " * terminal_width(before + printable(text[first:at])) + "^"
        super().__init__(f"{problem}\n  {before}{shown}{after}\n  {pointer}")


@dataclass(frozen=True, slots=True)
class QueryName:
    """A name as a filter has it."""

    section: str
    """One of `SECTIONS`; empty without a prefix."""
    name: str
    at: int
    """Where it stands in the text."""
    text: str
    """All of the text that it stands in, for errors."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with a unit of time or size."""

    number: float
    unit: str
    at: int


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of one value."""

    name: QueryName
    test: str
    """One of `model.run_values.TESTS`."""
    wanted: tuple[Wanted | Quantity, ...] = ()


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part has to hold."""

    parts: tuple[QueryNode, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of the parts has to hold."""

    parts: tuple[QueryNode, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """The part must not hold."""

    part: QueryNode


QueryNode = Condition | AllOf | AnyOf | Negation


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`number`, `text`, `name`, `word` (of the language), `sign` or `end`."""
    text: str
    at: int
    unit: str = ""
    prefix: str = ""
    """What stands before the quotes of a text: the token is then a name."""
    suffix: str = ""
    """What follows them: `.min`."""


def parse_filter(text: str) -> QueryNode:
    """Returns the tree of a filter; raises QueryError."""
    if len(text) > MAX_CHARS:
        raise QueryError(text, MAX_CHARS, f"the filter is longer than {MAX_CHARS:,} characters")
    return _FilterParser(text).whole()


def parse_name(text: str) -> QueryName:
    """Returns a name that stands alone, as `--sort` and `--columns` take it.

    A text that is no name of the language is taken as it is, so that no shell needs two kinds of
    quotes: `--sort 'metrics.val loss'`.
    """
    try:
        parser = _FilterParser(text)
        found = parser.name()
        if parser.token.kind == "end":
            return found
    except QueryError:
        pass
    if not text.strip():
        raise QueryError(text, 0, 'a name is expected, such as params.lr or metrics."val/loss"')
    return _split_name(text.strip(), 0, text)


def split_names(text: str) -> Iterator[str]:
    """Yields the names of a list with commas; a comma in quotes or brackets belongs to its name."""
    for found in re.finditer(r'(?:"(?:[^"\\]|\\.)*"|\[[^][]*\]|[^,"]|")+', text):
        if found[0].strip():
            yield found[0].strip()


def written_name(section: str, name: str) -> str:
    """Returns a name as a filter would have it, in quotes where it needs them."""
    found = _TOKEN.fullmatch(name)
    is_plain = found is not None and found["word"] == name and name.casefold() not in _WORDS
    is_section = name.partition(".")[0] in SECTIONS
    shown = name if is_plain and not (is_section and section == "facts") else quoted(name)
    return shown if section == "facts" and is_plain else f"{section}.{shown}"


def quoted(text: str) -> str:
    """Returns a text in quotes, as a filter has it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _split_name(whole: str, at: int, text: str) -> QueryName:
    section, dot, rest = whole.partition(".")
    if dot and rest and section in SECTIONS:
        return QueryName(section, rest, at, text)
    return QueryName("", whole, at, text)


class _FilterParser:
    """Reads a filter from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._depth = 0
        self.token = self._next()

    def whole(self) -> QueryNode:
        """Reads everything; what is left over is an error."""
        found = self._any_of()
        if self.token.kind != "end":
            raise self._expected("'and', 'or' or the end")
        return found

    def _any_of(self) -> QueryNode:
        parts = [self._all_of()]
        while self._take_word("or"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self) -> QueryNode:
        parts = [self._negation()]
        while self._take_word("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _negation(self) -> QueryNode:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"the filter is nested more than {MAX_DEPTH} times")
        if self._take_word("not"):
            found: QueryNode = Negation(self._negation())
        elif self._take_sign("("):
            found = self._any_of()
            if not self._take_sign(")"):
                raise self._expected("')' or another condition after 'and' or 'or'")
        else:
            found = self._condition()
        self._depth -= 1
        return found

    def _condition(self) -> QueryNode:
        name = self.name()
        if self._take_word("is"):
            return self._is_missing(name)
        is_negated = self._take_word("not")
        operator = self._operator(is_negated)
        wanted = self._several_values() if operator == "in" else (self._value(operator),)
        if operator == "!=" or is_negated:
            # A run without the value is in neither of `= x` and `!= x`.
            equal = Condition(name, "=" if operator == "!=" else operator, wanted)
            return AllOf((Condition(name, "present"), Negation(equal)))
        return Condition(name, operator, wanted)

    def _is_missing(self, name: QueryName) -> QueryNode:
        is_negated = self._take_word("not")
        if not self._take_word("missing"):
            raise self._expected("'missing' or 'not missing'")
        present = Condition(name, "present")
        return present if is_negated else Negation(present)

    def _operator(self, is_negated: bool) -> str:
        token = self.token
        words = ("in", "contains", "matches")
        if token.kind == "word" and token.text.casefold() in words:
            self._advance()
            return token.text.casefold()
        if not is_negated and token.kind == "sign":
            sign = "=" if token.text == "==" else token.text
            if sign in ("=", "!=", *ORDERINGS):
                self._advance()
                return sign
        if is_negated:
            raise self._expected("'in', 'contains' or 'matches' after 'not'")
        raise self._expected("=, !=, <, <=, >, >=, in, contains, matches, is missing")

    def _several_values(self) -> tuple[Wanted | Quantity, ...]:
        if not self._take_sign("("):
            raise self._expected('values in parentheses, such as ("adam", "adamw")')
        found = [self._value("in")]
        while self._take_sign(","):
            found.append(self._value("in"))
        if not self._take_sign(")"):
            raise self._expected("',' or ')'")
        return tuple(found)

    def _value(self, operator: str) -> Wanted | Quantity:
        token = self.token
        is_text_wanted = operator in ("contains", "matches")
        if token.kind == "text" and not token.prefix and not token.suffix:
            self._advance()
            return _unquoted(token.text)
        if is_text_wanted:
            raise self._expected(f"a text in quotes after {operator!r}")
        sign = -1.0 if self._take_sign("-") else 1.0
        token = self.token
        if token.kind == "number":
            self._advance()
            return self._number(self._with_unit(token), sign)
        if token.kind == "name" and token.text.casefold() in _CONSTANTS:
            self._advance()
            constant = _CONSTANTS[token.text.casefold()]
            return constant if isinstance(constant, bool | str) else sign * constant
        if token.kind == "name":
            raise self._error(
                f'put text in quotes: "{shorten(token.text, 60)}"; values are numbers, texts, '
                "true and false"
            )
        raise self._expected(f'a value after {operator!r}, such as 0.1 or "adam"')

    def _with_unit(self, number: _Token) -> _Token:
        """Returns a number with the unit that follows it after a blank, as in `1 min`."""
        unit = self.token
        is_unit = unit.kind == "name" and (
            unit.text in TIME_UNITS_S or unit.text in SIZE_UNITS_BYTES
        )
        if number.unit or not is_unit:
            return number
        self._advance()
        return replace(number, unit=unit.text)

    def _number(self, token: _Token, sign: float) -> Wanted | Quantity:
        number = sign * float(token.text.replace("_", ""))
        if not token.unit:
            return number
        if token.unit not in TIME_UNITS_S and token.unit not in SIZE_UNITS_BYTES:
            raise QueryError(
                self._text,
                token.at + len(token.text),
                f"{token.unit!r} is no unit; there are {', '.join(TIME_UNITS_S)} of time and "
                f"{', '.join(SIZE_UNITS_BYTES)} of size",
            )
        return Quantity(number, token.unit, token.at)

    def name(self) -> QueryName:
        """Reads a name, with quotes around all or the end of it where it needs them."""
        token = self.token
        if token.kind not in ("name", "text"):
            raise self._expected('a name, such as params.lr or metrics."val/loss"')
        self._advance()
        if token.kind == "name":
            return _split_name(token.text, token.at, self._text)
        whole = _unquoted(token.text) + token.suffix
        if token.prefix in ("", *SECTIONS):
            return QueryName(token.prefix, whole, token.at, self._text)
        return _split_name(f"{token.prefix}.{whole}", token.at, self._text)

    def _take_word(self, word: str) -> bool:
        if self.token.kind != "word" or self.token.text.casefold() != word:
            return False
        self._advance()
        return True

    def _take_sign(self, sign: str) -> bool:
        if self.token.kind != "sign" or self.token.text != sign:
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        self.token = self._next()

    def _next(self) -> _Token:
        found = _TOKEN.match(self._text, self._place)
        if found is None:
            return self._unknown()
        self._place = found.end()
        if found["number"]:
            return _Token("number", found["number"], found.start("number"), found["unit"] or "")
        if found["text"]:
            prefix, suffix = found["name"] or "", found["end"] or ""
            at = found.start("name" if prefix else "text")
            return _Token("text", found["text"].lstrip("."), at, "", prefix, suffix)
        if found["sign"]:
            return _Token("sign", found["sign"], found.start("sign"))
        kind = "word" if found["word"].casefold() in _WORDS else "name"
        return _Token(kind, found["word"], found.start("word"))

    def _unknown(self) -> _Token:
        """Returns the end, also for what cannot be read: the error comes when it is needed."""
        rest = self._text[self._place :]
        at = self._place + len(rest) - len(rest.lstrip())
        if rest.strip():
            if rest.lstrip()[0] in "\"'":
                raise QueryError(self._text, at, "this text is not closed: its quote is missing")
            raise QueryError(self._text, at, f"{printable(rest.lstrip()[0])!r} is not understood")
        return _Token("end", "", len(self._text))

    def _expected(self, what: str) -> QueryError:
        token = self.token
        if token.kind == "sign" and token.text in _SAID_OTHERWISE:
            return self._error(f"write {_SAID_OTHERWISE[token.text]!r} for {token.text!r}")
        shown = printable(shorten(token.text, 60))
        found = "the end" if token.kind == "end" else f"{shown!r}"
        return self._error(f"expected {what}, found {found}")

    def _error(self, problem: str) -> QueryError:
        return QueryError(self._text, self.token.at, problem)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
