"""What looks like a secret is never written down, and what does not stays readable."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from traceml.model.secrets import (
    is_secret,
    masked,
    masked_message,
    masked_text,
    masked_value,
    without_credentials,
)

LONG = "aB3" * 12


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["--api-key=abc"], ["--api-key=***"], id="after an equals sign"),
        pytest.param(["--token", "X", "--lr", "1"], ["--token", "***", "--lr", "1"], id="beside"),
        pytest.param(["--hf_token", "X"], ["--hf_token", "***"], id="with underscores"),
        pytest.param(["wandb.api_key=abc"], ["wandb.api_key=***"], id="hydra"),
        pytest.param(["--db-password", "p"], ["--db-password", "***"], id="a password"),
        pytest.param(["--wandb-key", "0a1b2c3d"], ["--wandb-key", "***"], id="some key"),
        pytest.param(["hf_abcdefghijklmnopqrst"], ["***"], id="a known token without a name"),
        pytest.param(["--x", f"{LONG}"], ["--x", "***"], id="a long text of all kinds"),
        pytest.param(["--header", "Bearer abcdefghijk"], ["--header", "***"], id="a header"),
        pytest.param(["--url=https://me:pw@host/x"], ["--url=https://host/x"], id="in a URL"),
        pytest.param(["s3://id:key@bucket/d"], ["s3://bucket/d"], id="in a bucket's URL"),
        pytest.param(["https://h/d?token=a&n=1"], ["https://h/d?token=***&n=1"], id="in a query"),
        pytest.param(["--password", "-abc"], ["--password", "***"], id="with a dash"),
        pytest.param(["--password=my own"], ["--password=***"], id="with a space"),
        pytest.param(["--password=it's"], ["--password=***"], id="with a quote"),
        pytest.param(
            ["wandb", "login", "0a1b2c3d" * 5], ["wandb", "login", "***"], id="after login"
        ),
        pytest.param(["x=1,api_key=abc,y=2"], ["x=1,api_key=***,y=2"], id="in a list"),
        pytest.param(
            ["sh", "-c", "HF_TOKEN=abc python t.py --api-key k1 --lr 1"],
            ["sh", "-c", "HF_TOKEN=*** python t.py --api-key *** --lr 1"],
            id="in a shell's line",
        ),
        pytest.param(
            ["--config", '{"api_key": "abc", "lr": 1}'],
            ["--config", '{"api_key": "***", "lr": 1}'],
            id="in JSON",
        ),
        pytest.param(
            ["-H", "Authorization: Bearer abcdefgh"],
            ["-H", "Authorization: Bearer ***"],
            id="in a header",
        ),
    ],
)
def test_a_secret_is_masked(words: list[str], expected: list[str]) -> None:
    assert masked(words) == tuple(expected)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--max-tokens", "512", "--num_tokens=9"], id="numbers of tokens"),
        pytest.param(["--tokenizer", "gpt2", "--pad-token", "<pad>"], id="words of a vocabulary"),
        pytest.param(["--sort-key", "loss", "--image_key=image"], id="keys of a table"),
        pytest.param(["--revision", "9f" * 20], id="a commit"),
        pytest.param(["train.py", "--lr", "-1e-3", "--author", "me"], id="plain words"),
        pytest.param(["--data", "/data/ImageNet2012/train_images_of_2012"], id="a long path"),
        pytest.param(["https://host/data.tar?version=3"], id="an address"),
        pytest.param(["--name", "resnet50-bs256-lr0.1-adamw-cosine-warmup"], id="a long name"),
        pytest.param(["--use-auth-token", "--fp16"], id="a flag after a flag"),
        pytest.param(["--note", "the key results; what a pass rate!"], id="prose"),
        pytest.param(["sh", "-c", "cd x && python train.py --lr 1"], id="a shell's line"),
        pytest.param([], id="nothing"),
    ],
)
def test_what_is_no_secret_stays(words: list[str]) -> None:
    assert masked(words) == tuple(words)


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "MY_PASSWD", "HF_TOKEN", "client.Secret"]
)
def test_a_secrets_name_is_known_whatever_its_value(name: str) -> None:
    assert is_secret(name, "word")


@pytest.mark.parametrize(
    "name",
    [
        *("pass", "db_pass", "DB-PASS", "pw", "user_pw", "passwd", "userpw", "jwt", "app.jwt"),
        *("connstr", "connection_string", "AZURE_CONNECTION_STRING", "connectionstring"),
    ],
)
def test_short_names_of_secrets_are_known_as_whole_words(name: str) -> None:
    assert masked_value(name, "word") == "***"
    assert masked([f"--{name}=word", f"--{name}", "word"])[2] == "***"


@pytest.mark.parametrize(
    "name", ["bypass", "passes", "num_passes", "compass", "pass_rate", "pwr", "string", "gpw"]
)
def test_longer_words_that_hold_them_are_none(name: str) -> None:
    assert masked_value(name, "word") == "word"
    assert masked_value(name, 3) == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--token", "abc"], ["--token", "***"]),
        (["--password", "-abc", "--lr", "1"], ["--password", "***", "--lr", "1"]),
        (["--wandb-key", "0a1b2c3d"], ["--wandb-key", "***"]),
        (["--pin-secret", 1234, "x"], ["--pin-secret", "***", "x"]),
        (["run", "--token", "--fp16", "abc"], ["run", "--token", "--fp16", "abc"]),
        (["--token=abc", "word"], ["--token=***", "word"]),
        ([["--token", "abc"], "word"], [["--token", "***"], "word"]),
        (["--sort-key", "loss", "--max-tokens", 512], None),
        ([1, 2.5, None, True], None),
    ],
)
def test_a_list_of_words_is_masked_like_a_command(words: list, expected: list | None) -> None:
    assert masked_value("command", words) == (words if expected is None else expected)


def test_a_pass_in_a_sentence_is_none() -> None:
    text = "failed in the forward pass: expected 3 in pass: 2"
    assert masked_message(text) == text
    assert masked_message("cannot log in with user=me pass=hunter") == (
        "cannot log in with user=me pass=***"
    )
    assert not is_secret("PWD", "/home/me")


def test_a_variable_that_hides_a_secret_is_one() -> None:
    assert is_secret("NCCL_CONF", "user=me password=hunter2")
    assert not is_secret("NCCL_CONF", "level=3 mode=fast")


KEY = "0a1b2c3d" * 5
BLOCK = "MIIEpAIBAAKCAQEA1234567890abcdefghij"


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        pytest.param(f"wandb.login(key='{KEY}')", "wandb.login(key='***')", id="a key by name"),
        pytest.param(f'wandb.login("{KEY}")', 'wandb.login("***")', id="a key by place"),
        pytest.param('password = "hunter2"', 'password = "***"', id="a quoted value"),
        pytest.param("+  'api_key': 'x',", "+  'api_key': '***',", id="a dictionary"),
        pytest.param("environ['HF_TOKEN'] = 'x'", "environ['HF_TOKEN'] = '***'", id="environ"),
        pytest.param("+DB_PASSWORD=hunter2", "+DB_PASSWORD=***", id="a line of .env"),
        pytest.param("+  token: a1b2", "+  token: ***", id="a line of YAML"),
        pytest.param("Authorization: Bearer xyz123", "Authorization: Bearer ***", id="a short one"),
        pytest.param("'authorization': 'Basic dTpw'", "'authorization': 'Basic ***'", id="basic"),
        pytest.param(f"# wandb key {KEY}", "# wandb key ***", id="a key in a comment"),
        pytest.param("id AKIAIOSFODNN7EXAMPLE", "id ***", id="of Amazon"),
        pytest.param("x('ya29.a0AfH6SMBx-yz_12')", "x('***')", id="of Google"),
        pytest.param("x('pk-abcdefghijklmnop')", "x('***')", id="a public key of a service"),
        pytest.param("'redis://:pw@host'", "'redis://***@host'", id="a URL"),
        pytest.param(
            f"+-----BEGIN EC PRIVATE KEY-----\n+{BLOCK}\n+ab=\n+-----END EC PRIVATE KEY-----\n+x",
            "+***\n+***\n+***\n+***\n+x",
            id="a private key",
        ),
        pytest.param(
            f"-----BEGIN PRIVATE KEY-----\n+{BLOCK}\n+{BLOCK}",
            "***\n+***\n+***",
            id="a key cut off",
        ),
    ],
)
def test_a_secret_in_code_is_masked(code: str, kept: str) -> None:
    assert masked_text(code) == kept


@pytest.mark.parametrize(
    "code",
    [
        "tokenizer = load('gpt2', token=token)",
        "def login(token: str = None, password: str = ''):",
        "+  api_key: str",
        "key = 'layer1.weight'; pad_token = '<pad>'",
        "headers = {'Authorization': f'Bearer {token}'}",
        "if '-----BEGIN CERTIFICATE-----' in text:",
        "api_key = load_the_key_of_version_2_from_the_vault()",
        "secret = hashlib.sha256(token).hexdigest()  # 64 digits",
        "disk-usage-of-every-node, task-number-1234567890",
    ],
)
def test_code_without_a_secret_stays(code: str) -> None:
    assert masked_text(code) == code


@pytest.mark.parametrize(
    "text",
    [
        *("aB3" * 80_000, "-----BEGIN PRIVATE KEY-----\n" * 9_000, "key = '" * 40_000),
        *("authorization" + " " * 250_000, "bearer " * 40_000, "login(" * 40_000, "a=\n" * 90_000),
        *("a:" * 125_000, "key:" * 60_000, "api key " * 30_000, "token" + " is" * 80_000),
        *("secret" + " " * 250_000, "authorization: basic " + "a" * 250_000),
    ],
    ids=[
        *("letters", "begins", "quotes", "spaces", "words", "calls", "lines", "names", "keys"),
        *("names in words", "verbs", "spaces after a name", "letters after a header"),
    ],
)
def test_no_text_takes_long(text: str) -> None:
    """A pattern that tried every way to read a text would take hours for these."""
    began_s = time.process_time()
    masked_message(text + " key")
    assert time.process_time() - began_s < 10


def test_a_plain_command_compiles_no_pattern() -> None:
    """The training process asks, and compiling takes longer than all the rest."""
    code = (
        "from traceml.model import secrets; "
        "secrets.masked(['train.py', '--api-key', 'abc', 'lr=0.1', 'https://a:b@c/d']); "
        "secrets.is_secret('OMP_NUM_THREADS', '8'); "
        "print(secrets._patterns.cache_info().misses)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_remote_without_a_scheme_stays() -> None:
    assert without_credentials("git@github.com:a/b.git") == "git@github.com:a/b.git"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("login with password=hunter failed", "login with password=*** failed", id="="),
        pytest.param("bad token: abc, try again", "bad token: ***, try again", id="a colon"),
        pytest.param(
            "ConnectionError: password=hunter", "ConnectionError: password=***", id="an exception"
        ),
        pytest.param("url: http://h?token=abc", "url: http://h?token=***", id="after another name"),
        pytest.param("a=b=c:password:hunter", "a=b=c:password:***", id="after several names"),
        pytest.param("ValueError: pad_token=5", "ValueError: pad_token=5", id="an exception's no"),
        pytest.param("GET https://h/b?sig=abc&n=1", "GET https://h/b?sig=***&n=1", id="a URL"),
        pytest.param("key=value and author: me", "key=value and author: me", id="plain words"),
        pytest.param(
            "Command 'mysql --password=hunter db' failed",
            "Command 'mysql --password=*** db' failed",
            id="an option of a command",
        ),
        pytest.param(
            "mysql --password hunter -h db",
            "mysql --password *** -h db",
            id="an option's next word",
        ),
        pytest.param(
            "Command '['mysql', '--password', 'my hunter', 'db']' returned",
            "Command '['mysql', '--password', '***', 'db']' returned",
            id="a command as a list",
        ),
        pytest.param(
            '(\'curl\', "--api-key", "abc")', '(\'curl\', "--api-key", "***")', id="double quotes"
        ),
        pytest.param("--token --verbose", "--token --verbose", id="an option without a value"),
        pytest.param(
            "--max-tokens 512 --sort-key name", "--max-tokens 512 --sort-key name", id="no"
        ),
    ],
)
def test_a_message_shows_values_so_what_follows_a_secrets_name_is_masked(
    text: str, kept: str
) -> None:
    assert masked_message(text) == kept


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["passwd:swordfish"], ["passwd:***"], id="after a colon"),
        pytest.param(["https://h/b?sv=1&sig=abc"], ["https://h/b?sv=1&sig=***"], id="a signature"),
        pytest.param(["s3://bucket:8080/token"], ["s3://bucket:8080/token"], id="a port"),
    ],
)
def test_more_forms_of_secrets_on_a_command_line(words: list[str], expected: list[str]) -> None:
    assert masked(words) == tuple(expected)


@pytest.mark.parametrize(
    "text",
    [
        *("invalid api key {}", "wandb key {}", "Invalid API key: {}", "the api key '{}' is wrong"),
        *(
            "Incorrect API key provided: {}.",
            "WANDB_API_KEY {}",
            "access-key (`{}`)",
            "wrong secret {}",
        ),
        *("password is {}, not", "bad token {}", "`wandb login {}` failed", "w&b key <{}>"),
    ],
)
@pytest.mark.parametrize(
    "key", [KEY, KEY.upper(), "9Zx" * 12, "123e4567-e89b-12d3-a456-426614174000"]
)
def test_a_long_key_is_masked_where_a_sentence_calls_it_one(text: str, key: str) -> None:
    assert masked_message(text.format(key)) == text.format("***")
    assert masked_text(text.format(key)) == text.format("***")


@pytest.mark.parametrize(
    "text",
    [
        *(f"commit {KEY}", f"invalid api key at commit {KEY}", f"invalid api key, commit {KEY}"),
        *(f"revision {KEY} needs an api key", f"the secret of commit {KEY}", f"cache key {KEY}"),
        *(f"sha256 {KEY} token 5", f"no token at HEAD {KEY}", "api key 12345", "secret of node17"),
        *(
            "password incomprehensibilities",
            "unknown token antidisestablishment17",
            "login node-017",
        ),
        *(f"token {'1234567890' * 4}", f"token {'a' * 40}", "the token 2024-01-01T00:00:00 is old"),
        *("Authorization: Bearer token", "Authorization: Basic is missing", "the bearer of rank 3"),
    ],
)
def test_commits_words_and_numbers_stay_readable(text: str) -> None:
    assert masked_message(text) == text
