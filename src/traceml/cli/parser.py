"""What the commands' parsers share: one form of usage errors, near matches, checked values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from traceml.model.errors import UsageError, did_you_mean

_WAYS = ("higher", "lower")
DEFAULT_LOGS_DIR = "logs"
_MISSING = "the following arguments are required: "
"""How argparse begins when positional arguments are missing; the same in every Python."""


class CommandParser(argparse.ArgumentParser):
    """Parses the words of one command.

    A usage error is one line, like every other error: what was found, what was expected, what to
    do. Options may be spelt with underscores, as torchrun's are. `is_mixed` lets arguments also
    follow options, as in `tag --note TEXT RUN WORD`.
    """

    def __init__(self, command: str, is_mixed: bool = False, **options: Any) -> None:
        super().__init__(prog=f"traceml {command}", allow_abbrev=False, **options)
        self._is_mixed = is_mixed
        self._words: Sequence[str] = ()

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Returns the options; raises UsageError that names what is not one."""
        assert args is not None, "commands get their words from `traceml.cli.main`"
        self._words = args
        options: argparse.Namespace
        parse = self.parse_known_intermixed_args if self._is_mixed else self.parse_known_args
        options, unknown = parse(self.with_dashes(args), namespace)
        if unknown:
            self.refuse(options, list(args), unknown)
        return options

    def with_dashes(self, words: Sequence[str]) -> list[str]:
        """Returns the words, with known options that were spelt with underscores spelt our way."""
        return [self._with_dashes(word) for word in words]

    def _with_dashes(self, word: str) -> str:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        is_known = name.startswith("--") and dashed in self._option_string_actions
        return f"{dashed}{equals}{value}" if is_known else word

    def refuse(self, options: argparse.Namespace, words: list[str], unknown: list[str]) -> NoReturn:
        """Raises UsageError for words that no option and no argument takes."""
        self._refuse_option(unknown)
        self.error(f"{unknown[0]!r} is one argument too many")

    def _refuse_option(self, unknown: Sequence[str]) -> None:
        """Raises UsageError for the first of some words that looks like an option."""
        for word in unknown:
            name = word.partition("=")[0]
            if name.startswith("-") and name != "-":
                self.error(f"there is no option {name}{self.nearest_option(name)}")

    def nearest_option(self, name: str) -> str:
        """Returns ` (did you mean --option?)`, or nothing where no option is near."""
        return did_you_mean(name.replace("_", "-"), self.visible_options())

    def visible_options(self) -> list[str]:
        """Returns the long spellings of the options that `--help` shows."""
        return [
            option
            for action in self._actions
            for option in action.option_strings
            if option.startswith("--") and action.help != argparse.SUPPRESS
        ]

    def error(self, message: str) -> NoReturn:
        """Raises UsageError; argparse calls it for what it finds itself."""
        if message.startswith(_MISSING):
            unknown = [
                word
                for word in self.with_dashes(self._words)
                if word.startswith("--")
                and word.partition("=")[0] not in self._option_string_actions
            ]
            self._refuse_option(unknown)  # the likelier slip of the two
            message = f"no {message.removeprefix(_MISSING)} was given"
        raise UsageError(f"{message.removeprefix('argument ')}; {self.prog} --help says more")


def one_of(*choices: str) -> Callable[[str], str]:
    """Returns a type for an option that takes one of a few words."""

    def choice(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(
                f"{text!r} is none of {', '.join(choices)}{did_you_mean(text, choices)}"
            )
        return text

    return choice


def in_braces(choices: Iterable[str]) -> str:
    """Returns the choices as `--help` shows them."""
    return f"{{{','.join(choices)}}}"


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a type for an option that takes a whole number in a range."""
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"

    def number(text: str) -> int:
        is_number = text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20
        value = int(text) if is_number else None
        if value is None or value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}")
        return value

    return number


def some_text(text: str) -> str:
    """A type for an argument that may not be empty: an empty path would mean this folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("'' is empty; expected a name or a path")
    return text


def add_format(
    parser: argparse.ArgumentParser, formats: Sequence[str], words: str = "what is printed"
) -> None:
    """Adds the option that chooses what is printed; text, unless it says otherwise."""
    parser.add_argument(
        "--format", type=one_of(*formats), metavar=in_braces(formats), default="text", help=words
    )


def add_better(parser: argparse.ArgumentParser) -> None:
    """Adds the option that says which way the metric that decides improves."""
    parser.add_argument(
        "--better",
        type=one_of(*_WAYS),
        metavar=in_braces(_WAYS),
        help="which way a logged metric improves, where neither script nor name says",
    )


def higher_is_better(options: argparse.Namespace) -> bool | None:
    """Returns what `--better` says; `None` where it was not given."""
    return None if options.better is None else options.better == "higher"


def add_logs_dir(parser: argparse.ArgumentParser, default: str | None = DEFAULT_LOGS_DIR) -> None:
    """Adds the option that every command has."""
    parser.add_argument(
        "--logs-dir",
        metavar="DIR",
        type=some_text,
        default=default,
        help=f"where runs are kept (default: {DEFAULT_LOGS_DIR})",
    )
