"""What looks like a secret is never written down, and what does not stays readable."""

from __future__ import annotations

import pytest

from traceml.model.secrets import is_secret, masked, without_credentials

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


def test_a_remote_without_a_scheme_stays() -> None:
    assert without_credentials("git@github.com:a/b.git") == "git@github.com:a/b.git"
