"""Tells what looks like a secret, so that no password, key or token is ever written down.

By plain comparisons, not patterns: the training process asks this too, and compiling patterns
would cost it a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable

MASK = "***"

_SECRET = (
    *("secret", "password", "passwd", "passphrase", "credential", "bearer"),
    *("apikey", "accesskey", "privatekey", "signingkey", "encryptionkey", "licensekey"),
    *("authkey", "accountkey", "accesstoken", "authtoken", "apitoken", "refreshtoken"),
)
"""A name that holds one of these, its separators left out, is a secret's whatever its value."""
_MAYBE_SECRET = ("key", "auth", "authorization", "pass", "pwd", "pat", "sas", "cookie", "signature")
"""A name that ends in one of these is a secret's unless its value is a plain word: `--sort-key`."""
_VOCABULARY = frozenset(
    [
        *(
            "pad",
            "eos",
            "bos",
            "unk",
            "mask",
            "cls",
            "sep",
            "sos",
            "start",
            "stop",
            "end",
            "special",
        ),
        *("image", "video", "audio", "text", "word", "class", "prompt", "placeholder", "per"),
    ]
)
"""Before the word token, these speak of text: `--pad-token` is no secret."""
_TOKEN_STARTS = (
    *("sk-", "pk-", "hf_", "ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "glpat-", "xoxb-"),
    *("xoxp-", "AKIA", "ASIA", "AIza", "ya29.", "eyJ", "-----BEGIN", "Bearer ", "Basic "),
)
"""How well-known services begin their tokens."""
_FEWEST_TOKEN_LETTERS = 16
_LONG_TEXT = 32
"""So many letters and digits without a break, large and small, are no word of anybody's."""
_LONGEST_WORD = 24


def is_secret(name: str, value: str) -> bool:
    """Whether a value of this name is better not written down."""
    return _is_secret_name(name, value) or is_token(value)


def is_token(value: str) -> bool:
    """Whether a text has the form of a token, whatever its name."""
    if value.startswith(_TOKEN_STARTS) and len(value) >= _FEWEST_TOKEN_LETTERS:
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
    parts = [_masked_assignment(part) or part for part in query.split("&")]
    return f"{scheme}://{address}?{'&'.join(parts)}"


def masked(words: Iterable[str]) -> tuple[str, ...]:
    """A command line in which `***` stands for whatever looks like a secret."""
    found: list[str] = []
    option = ""
    """The option whose value the next word is."""
    for word in words:
        if word.startswith("-") and not is_token(word):
            found.append(_masked_assignment(word) or without_credentials(word))
            option = "" if "=" in word else word
            continue
        is_value_secret = is_secret(option, word) if option else is_token(word)
        if is_value_secret:
            found.append(MASK)
        else:
            found.append(_masked_assignment(word) or without_credentials(word))
        option = ""
    return tuple(found)


def _masked_assignment(word: str) -> str | None:
    """`name=***` for a `name=value` whose value is a secret."""
    name, separator, value = word.partition("=")
    if separator and "://" not in name and is_secret(name, value):
        return f"{name}={MASK}"
    return None


def _is_secret_name(name: str, value: str) -> bool:
    words = name.lower().replace("-", "_").replace(".", "_").strip("_").split("_")
    if any(secret in "".join(words) for secret in _SECRET):
        return True
    if words[-1] == "token":
        return len(words) < 2 or words[-2] not in _VOCABULARY
    return words[-1].endswith(_MAYBE_SECRET) and not _is_plain(value)


def _is_plain(value: str) -> bool:
    """Whether a value is a number, or a word that anybody may read."""
    letters = value.replace("_", "").replace("-", "").replace("/", "").replace(".", "")
    return len(value) <= _LONGEST_WORD and (letters.isalpha() or letters.isdigit() or not letters)
