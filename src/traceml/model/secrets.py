"""Tells what looks like a secret, so that no password, key or token is ever written down.

The training process asks this too: a plain word is told by plain comparisons, and patterns are
compiled only for a text that holds something to be wary of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

MASK = "***"

_SECRET = (
    *("secret", "password", "passwd", "passphrase", "credential", "bearer"),
    *("apikey", "accesskey", "privatekey", "signingkey", "encryptionkey", "licensekey"),
    *("authkey", "accountkey", "accesstoken", "authtoken", "apitoken", "refreshtoken"),
)
"""A name that holds one of these, its separators left out, is a secret's whatever its value."""
_SECRET_WORDS = frozenset(("pass", "pw", "passwd", "userpw", "jwt", "connstr", "connectionstring"))
"""A name that ends in one of these as a word of its own is a secret's: `db_pass`, not `bypass`."""
_MAYBE_SECRET = (
    "key",
    "auth",
    "authorization",
    "pass",
    "pwd",
    "pat",
    "sas",
    "cookie",
    "signature",
    "sig",
)
"""A name that ends in one of these is a secret's unless its value is a plain word: `--sort-key`."""
_SIGNATURES = ("sig", "signature")
"""In a URL's query these let whoever has the URL in, whatever they look like."""
_VOCABULARY = frozenset(
    [
        *("pad", "eos", "bos", "unk", "mask", "cls", "sep", "sos", "start", "stop", "end"),
        *("special", "image", "video", "audio", "text", "word", "class", "prompt"),
        *("placeholder", "per"),
    ]
)
"""Before the word token, these speak of text: `--pad-token` is no secret."""
_TOKEN_STARTS = (
    *("sk-", "pk-", "hf_", "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-"),
    *("xoxa-", "xoxb-", "xoxp-", "AKIA", "ASIA", "AIza", "ya29.", "eyJ"),
)
"""How well-known services begin their tokens."""
_TOLD_NAMES = (
    r"(?:api|access|secret|private|signing|encryption|license|auth|account|wandb|w&b|client|"
    r"service|user|login)[ _-]?key|password|passphrase|secret|credential|token|login"
)
"""What sentences call a secret; the key of a cache or of a table is none."""
_HEADER_STARTS = ("-----BEGIN", "Bearer ", "Basic ")
"""How a key's block and an authorization begin."""
_MIN_TOKEN_CHARS = 16
_LONG_TEXT = 32
"""So many letters and digits without a break, large and small, are no word of anybody's."""
_MAX_WORD_CHARS = 24
_HINTS = (
    *(start.lower() for start in _TOKEN_STARTS),
    *("secret", "pass", "pwd", "credential", "bearer", "token", "key", "auth", "login", "pat"),
    *("sas", "cookie", "sig", "pw", "jwt", "conn", "://"),
)
"""A text without any of these, in small letters, is not searched."""


def is_secret(name: str, value: str) -> bool:
    """Whether a value of this name is better not written down."""
    return _is_secret_name(name, value) or is_token(value) or _is_secret_inside(value)


def is_token(value: str) -> bool:
    """Whether a text has the form of a token, whatever its name."""
    starts = value.startswith((*_TOKEN_STARTS, *_HEADER_STARTS))
    if starts and len(value) >= _MIN_TOKEN_CHARS:
        return True
    return (
        len(value) >= _LONG_TEXT
        and value.replace("+", "").replace("=", "").isalnum()
        and any(letter.isupper() for letter in value)
        and any(letter.islower() for letter in value)
        and any(letter.isdigit() for letter in value)
    )


def without_credentials(url: str) -> str:
    """A URL without the user, the password and the secrets of its query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place, slash, path = rest.partition("/")
    address, question, query = (place.rpartition("@")[2] + slash + path).partition("?")
    if not question:
        return f"{scheme}://{address}"
    parts = [_masked_in_query(part) for part in query.split("&")]
    return f"{scheme}://{address}?{'&'.join(parts)}"


def _masked_in_query(part: str) -> str:
    name, separator, _ = part.partition("=")
    if separator and _words(name)[-1] in _SIGNATURES:
        return f"{name}={MASK}"
    return _masked_assignment(part) or part


def masked(words: Iterable[str]) -> tuple[str, ...]:
    """A command line in which `***` stands for whatever looks like a secret."""
    found: list[str] = []
    option = ""
    """The option whose value the next word is."""
    for word in words:
        if word.startswith("-") and not is_token(word) and not _is_dashed_secret(option, word):
            found.append(_masked_word(word))
            option = "" if "=" in word else word
            continue
        is_value_secret = _is_secret_name(option, word) or is_token(word)
        found.append(MASK if is_value_secret else _masked_word(word))
        option = "login-key" if word == "login" else ""  # `wandb login …`
    return tuple(found)


def masked_text(text: str) -> str:
    """Code or prose in which `***` stands for what is a secret beyond doubt; the rest stays."""
    small = text.lower()
    if not any(hint in small for hint in _HINTS):
        return text
    patterns = _patterns()
    text = patterns.key_block.sub(_masked_block, text)
    text = patterns.credentials.sub(MASK, text)
    text = patterns.header.sub(rf"\1{MASK}", text)
    text = patterns.login.sub(rf"\1{MASK}\3", text)
    text = patterns.told.sub(rf"\1{MASK}", text)
    for pattern in (patterns.quoted, patterns.bare):
        text = pattern.sub(_masked_match, text)
    return patterns.token.sub(MASK, text)


def masked_message(text: str) -> str:
    """What a program says of itself, such as an exception's text, without secrets.

    Unlike code, where `password=args.password` only names a variable, a message shows values: what
    follows a secret's name is masked whatever it looks like.
    """
    text = masked_text(text)
    small = text.lower()
    if not any(hint in small for hint in _HINTS):
        return text
    patterns = _patterns()
    for option in (patterns.option, patterns.listed_option):
        text = option.sub(_masked_option, text)
    return _mask_inline(text)


def masked_value(name: str, value: Any) -> Any:
    """A value of this name as it may be written down; what is nested has names of its own."""
    if isinstance(value, Mapping):
        return {key: masked_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return _masked_list(name, value)
    if isinstance(value, str):
        return _masked_text_of(name, value)
    is_given = value is not None and not isinstance(value, bool)
    return MASK if is_given and _is_surely_secret_name(name) else value


def _masked_list(name: str, values: Sequence[Any]) -> list[Any]:
    """Values of one name; in a list of words the one after `--token` is that option's."""
    found: list[Any] = []
    option = ""
    for value in values:
        is_word = isinstance(value, str)
        is_option = is_word and value.startswith("-") and not _is_dashed_secret(option, value)
        if option and not is_option and not isinstance(value, (Mapping, list, tuple)):
            is_of_option = _is_surely_secret_name(option) or (
                is_word and _is_secret_name(option, value)
            )
            found.append(MASK if is_of_option else masked_value(name, value))
        else:
            found.append(masked_value(name, value))
        option = value if is_option and "=" not in value else ""
    return found


def masked_location(text: str) -> str:
    """A path or a URL without credentials."""
    return MASK if is_token(text) else without_credentials(text)


def _masked_text_of(name: str, value: str) -> str:
    if value and (_is_secret_name(name, value) or is_token(value)):
        return MASK
    if "://" in value and not any(mark in value for mark in " \t\n\"'"):
        return without_credentials(value)
    return masked_message(value)


class _Patterns:
    """What a secret looks like inside a text."""

    def __init__(self) -> None:
        starts = "|".join(re.escape(start) for start in _TOKEN_STARTS)
        self.token = re.compile(rf"(?<![A-Za-z0-9])(?:{starts})[\w.-]{{12,}}")
        self.key_block = re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
            r"(?:(?:(?!-----BEGIN).){1,8000}?-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
            r"|(?:[^A-Za-z0-9/=]{0,8}[A-Za-z0-9+/=]{16,})*)",
            re.DOTALL,
        )
        """As far as its end, or where that is missing as far as it is no words."""
        self.credentials = re.compile(r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]+(?=@)")
        self.header = re.compile(
            r"(authorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:bearer|basic|token|api-?key|negotiate)\s+"
            r"(?=[\w.+/=~-]{8}|[\w.+/=~-]*(?:\d|(?-i:[a-z][A-Z])))|"
            r"\bbearer\s+(?=[\w.+/=~-]*\d)(?=[\w.+/=~-]{8}))[\w.+/=~-]+",
            re.IGNORECASE,
        )
        """Short letters alone are a word that anybody may read: `Authorization: Bearer token`."""
        self.told = re.compile(
            rf"((?<![A-Za-z0-9])(?:{_TOLD_NAMES})(?![A-Za-z0-9])"
            r"(?:(?:[ \t]{1,4}(?:is|was|provided|given|used|found|value)(?![A-Za-z0-9])){1,3})?"
            r":?[ \t]{1,4}\\?[\"'`(<\[]{0,2})"
            r"(?:(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{32,}|[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4})"
            r"(?![\w-])",
            re.IGNORECASE,
        )
        """`invalid api key 0a1b…`: what follows it in a sentence and is no word, number or name."""
        self.login = re.compile(r"(\blogin\(\s*([\"']))[^\"'\s]{8,}(\2)")
        self.quoted = re.compile(
            r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{0,80})\\?[\"']?\]?\s{0,8}[:=]\s{0,8}"
            r"\\?(?P<quote>[\"'])(?P<value>[^\"'\\\n]{1,4096})(?=[\"'\\])"
        )
        """`api_key = "…"`, `"api_key": "…"`, `environ["API_KEY"] = "…"`."""
        self.bare = re.compile(
            r"^[+\-]?[ \t]{0,80}(?:export[ \t]+)?(?P<name>[A-Za-z_][\w.-]{0,80})(?:=|:[ \t]+)"
            r"(?P<quote>)(?P<value>[^\s\"'(){}\[\],]{1,4096})$",
            re.MULTILINE,
        )
        """A line of a `.env` or a YAML file."""
        self.inline_name = re.compile(
            r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{0,80})(?P<divider>=|:(?!//)[ \t]?)"
        )
        self.inline_value = re.compile(r"[^\s\"'(){}\[\],;&]{1,4096}")
        """`password=hunter` in the midst of a sentence or of a URL's query."""
        option = r"(?<![\w-])--?(?P<name>[A-Za-z][\w.-]{0,80})"
        self.option = re.compile(rf"{option}(?:=|[ \t]+(?!-))(?P<value>[^\s\"',;]{{1,4096}})")
        """`--password=hunter`, `--password hunter`: a command that failed."""
        self.listed_option = re.compile(
            rf"{option}(?P<quote>[\"']),[ ]?(?P=quote)(?P<value>[^\"'\n-][^\"'\n]{{0,4095}})"
        )
        """`['mysql', '--password', 'hunter']`, as `subprocess` names it."""


@cache
def _patterns() -> _Patterns:
    return _Patterns()


def _masked_block(found: re.Match[str]) -> str:
    """Returns as many lines as the block has, so that the lines after it keep their numbers, with
    the sign that each has in a difference."""
    others = found[0].split("\n")[1:]
    signs = [line[:1] if line[:1] in ("+", "-", " ") else "" for line in others]
    return "\n".join([MASK, *(f"{sign}{MASK}" for sign in signs)])


def _masked_match(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    if not found["quote"] and not any(letter.isdigit() for letter in value):
        return found[0]  # a name of the program's, as far as anybody can tell
    is_long = len(value) >= _MIN_TOKEN_CHARS and " " not in value
    if _is_surely_secret_name(name) or (is_long and _is_secret_name(name, value)):
        return found[0].removesuffix(value) + MASK
    return found[0]


def _mask_inline(text: str) -> str:
    """Returns a message with the values after secrets' names masked. What follows another name may
    begin with such a one: `ConnectionError: password=hunter`."""
    patterns, parts, kept_from, at = _patterns(), list[str](), 0, 0
    while found := patterns.inline_name.search(text, at):
        at = found.end()
        if not _may_be_secret_name(found["name"]):
            continue
        value = patterns.inline_value.match(text, at)
        if value is not None and _is_secret_inline(found["name"], found["divider"], value[0]):
            parts += [text[kept_from:at], MASK]
            kept_from = at = value.end()
    return "".join([*parts, text[kept_from:]])


def _is_secret_inline(name: str, divider: str, value: str) -> bool:
    if divider == "=" and _words(name)[-1] in _SIGNATURES:
        return True
    if name.lower() == "pass" and divider != "=" and _is_plain(value):
        return False  # "in the forward pass: expected a tensor"
    return _is_secret_name(name, value)


def _masked_option(found: re.Match[str]) -> str:
    is_secret = _is_surely_secret_name(found["name"])
    return found[0].removesuffix(found["value"]) + MASK if is_secret else found[0]


def _masked_word(word: str) -> str:
    """One word of a command, and the words in it where it is a shell's or a document."""
    if not any(mark in word for mark in " \t\n\"'"):
        return _masked_assignments(word) or without_credentials(word)
    whole = _masked_assignment(word)
    if whole is not None and word.startswith("-"):
        return whole  # an option's value may have spaces; a shell's line has words after it
    text = masked_text(word)
    parts = list(_parts(text))
    if len(parts) == 1:
        return _masked_assignments(text) or without_credentials(text)
    parts[::2] = masked(parts[::2])
    return "".join(parts)


def _parts(text: str) -> Iterator[str]:
    """Words, and between them what divides them."""
    word, was_space = "", False
    for letter in text:
        if letter.isspace() != was_space:
            yield word
            word, was_space = "", not was_space
        word += letter
    yield word


def _masked_assignments(word: str) -> str | None:
    """`name=***` for `name=value`, alone or listed: `lr=0.1,api_key=***`."""
    whole = _masked_assignment(word)
    if whole is not None or not any(mark in word for mark in "=:"):
        return whole
    for divider in ",;":
        parts = word.split(divider)
        hidden = [_masked_assignment(part) for part in parts]
        if any(hidden):
            return divider.join(new or old for new, old in zip(hidden, parts, strict=True))
    return None


def _masked_assignment(word: str) -> str | None:
    """`name=***` for a `name=value` whose value is a secret."""
    name, separator, value = word.partition("=")
    if separator and "://" not in name and (_is_secret_name(name, value) or is_token(value)):
        return f"{name}={MASK}"
    name, separator, value = word.partition(":")
    if separator and value and not value.startswith("//") and _is_surely_secret_name(name):
        return f"{name}:{MASK}"
    return None


def _is_dashed_secret(option: str, word: str) -> bool:
    """Whether a word is the secret of the option before it although it begins like an option."""
    return _is_surely_secret_name(option) and not word.startswith("--") and len(word) > 2


def _is_secret_inside(value: str) -> bool:
    return any(mark in value for mark in " \t\n\"'") and _masked_word(value) != value


def _is_surely_secret_name(name: str) -> bool:
    words = _words(name)
    if any(secret in "".join(words) for secret in _SECRET):
        return True
    if words[-1] in _SECRET_WORDS or words[-2:] == ["connection", "string"]:
        return True
    return words[-1] == "token" and (len(words) < 2 or words[-2] not in _VOCABULARY)


def _may_be_secret_name(name: str) -> bool:
    """Whether some value of this name would be a secret."""
    return _is_surely_secret_name(name) or _words(name)[-1].endswith(_MAYBE_SECRET)


def _is_secret_name(name: str, value: str) -> bool:
    if _is_surely_secret_name(name):
        return True
    return _words(name)[-1].endswith(_MAYBE_SECRET) and not _is_plain(value)


def _words(name: str) -> list[str]:
    return name.lower().replace("-", "_").replace(".", "_").strip("_").split("_")


def _is_plain(value: str) -> bool:
    """Whether a value is a number, or a word that anybody may read."""
    letters = value.replace("_", "").replace("-", "").replace("/", "").replace(".", "")
    return len(value) <= _MAX_WORD_CHARS and (letters.isalpha() or letters.isdigit() or not letters)
