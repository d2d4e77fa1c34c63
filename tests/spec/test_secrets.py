"""Secrets are told by their names, and nothing that is shown has their values."""

import time

import pytest
from hypothesis import given, settings, strategies as st

from client_lib.spec.job import JobSpec
from client_lib.spec.secrets import (
    MASK,
    Masking,
    hidden_part,
    is_masked,
    is_secret,
    is_secret_variable,
    unmasked_words,
)
from tests.kit.examples import examples

SECRET = [
    "--api-key",
    "--hf_token",
    "--password",
    "APIKEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "Authorization",
    "BASIC_AUTH",
    "API_TOKENS",
    "DB_PASS",
    "DB_PASSWD",
    "MYSQL_PWD",
    "OAUTH",
    "GITHUB_PAT",
    "GOOGLE_CREDENTIALS",
    "HFToken",
    "HF_TOKEN",
    "MYSECRET",
    "SENTRY_DSN",
    "SESSION_COOKIE",
    "SSH_PASSPHRASE",
    "TOKEN_2",
    "WANDB_API_KEY",
    "authHeader",
    "db.password",
    "myToken",
    "notify",
    "ssh-keys",
]
VARIABLES = ["API_KEY_PROD", "GITHUB_TOKEN_RO", "HF_TOKEN_READ", "STRIPE_KEY_LIVE", "accessKeyOld"]
"""Secret as names of variables alone."""
PLAIN = [
    "MONKEY",
    "PWD",
    "batch_tokens",
    "eos_token",
    "pad_token_id",
    "pat_size",
    "text_key",
    "AUTHOR",
    "DEPTH",
    "KEYBOARD",
    "MAX_TOKENS",
    "PATH",
    "PATIENCE",
    "PYTHONPATH",
    "TOKENIZER",
    "author_id",
    "key_dim",
    "lr",
    "num_tokens",
    "patch_size",
    "token_dim",
    "tokenizer_name",
]


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", [*SECRET, *VARIABLES])
def test_names_of_secret_variables(name: str) -> None:
    assert is_secret_variable(name)


def test_a_setting_of_a_model_is_shown_in_a_command_line_and_in_variables() -> None:
    assert not [name for name in VARIABLES if is_secret(name)]
    shown = ["MAX_TOKENS", "PATH", "PWD", "TOKENIZERS_PARALLELISM", "AUTHOR", "EOS_TOKENS_MAX"]
    assert not [name for name in shown if is_secret_variable(name)]
    assert Masking().values({"use_auth": True, "text_key": "a"}) == {
        "use_auth": True,
        "text_key": "a",
    }


@pytest.mark.parametrize("name", [*PLAIN, "", "=", "x" * 10_000])
def test_names_of_other_values(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key=s3", "--lr", "0.1"], ["--api-key=***", "--lr", "0.1"]),
        (["--password", "s3", "data"], ["--password", "***", "data"]),
        (["--hf_token", "-s3", "x"], ["--hf_token", "***", "x"]),
        (["--use-auth", "--lr=1"], ["--use-auth", "--lr=1"]),
        (["hf_token=s3", "lr=1"], ["hf_token=***", "lr=1"]),
        (["-H", "Authorization: Bearer s3"], ["-H", "Authorization:***"]),
        (["-c", '{"lr": 1, "api_key": "s3"}'], ["-c", '{"lr": 1, "api_key":***']),
        (["postgresql://ann:s3@host/db"], ["postgresql://ann:***@host/db"]),
        (["--data=s3://bucket/x", "a=b:c"], ["--data=s3://bucket/x", "a=b:c"]),
        (["--max-tokens", "512", "--tokenizer=gpt2"], ["--max-tokens", "512", "--tokenizer=gpt2"]),
        (["--env", "HF_TOKEN=s3"], ["--env", "HF_TOKEN=***"]),
        (["https://ghp_x1@host/a.git"], ["https://***@host/a.git"]),
        (["--repo=https://hf_abc@h"], ["--repo=https://***@h"]),
        (["https://0123456789abcdef0123@h"], ["https://***@h"]),
        (["ssh://git@host/a", "http://ann.smith@h"], ["ssh://git@host/a", "http://ann.smith@h"]),
        (["--key", "https://u:s3@h"], ["--key", "***"]),
        (["https://h/?token=s3"], ["https://h/?token=***"]),
    ],
)
def test_command_lines_are_shown_without_secrets(words: list[str], shown: list[str]) -> None:
    assert Masking().words(words) == shown


def test_a_changed_command_line_gets_its_stored_secrets_again() -> None:
    stored = ["--lr", "0.1", "--password", "s3", "--key=s4", "--token", "s5"]
    shown = Masking().words(stored)
    assert unmasked_words(shown, stored) == stored
    changed = ["--lr", "0.2", *shown[5:], "--password", "***", "new"]
    assert unmasked_words(changed, stored)[2:] == ["--token", "s5", "--password", "s3", "new"]
    assert unmasked_words(["--other", "***"], stored) == ["--other", "***"]
    twice = ["--token", "s1", "--b", "x", "--token", "s2"]
    assert unmasked_words(Masking().words(twice), twice) == twice
    assert unmasked_words(["lr=2", "key=***"], ["lr=1", "key=s"]) == ["lr=2", "key=s"]


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("--api-key=s3cret", "s3cret"),
        ("postgresql://ann:s3cret@host/db", "s3cret"),
        ("Authorization: s3cret", " s3cret"),
        ("plain", ""),
    ],
)
def test_the_part_of_a_text_that_is_hidden(text: str, hidden: str) -> None:
    assert hidden_part(text, Masking().text(text)) == hidden


def test_the_bound_on_names_holds_for_all_texts_of_a_job() -> None:
    spec = JobSpec(
        script="a.py",
        args=["a:" * 1000] * 100,
        env_variables={f"V{number}": "a:b " * 5000 for number in range(50)},
    )
    began = time.process_time()
    shown = spec.masked()
    assert time.process_time() - began < 0.5
    assert shown.env_variables["V49"] == "a:" + MASK


def test_a_spec_is_shown_without_secrets() -> None:
    spec = JobSpec(
        script="train.py --password s3",
        args=["--hf_token", "s3", "--lr=0.1"],
        flags={"api-key": "s3", "lr": 1},
        env_variables={
            "DATABASE": "postgresql://ann:s3@host/db",
            "DB_PASSWD": "s3",
            "MAX_TOKENS": 512,
        },
        setup="curl -H 'Authorization: Bearer s3' https://host/data",
        notify="https://hooks.example/s3",
    )
    shown = spec.masked()
    assert "s3" not in shown.model_dump_json()
    assert shown.script == "train.py --password '***'"
    assert shown.flags == {"api-key": MASK, "lr": 1}
    assert shown.env_variables["MAX_TOKENS"] == 512
    assert shown.args == ["--hf_token", MASK, "--lr=0.1"]
    plain = JobSpec(script="'my train.py'  --lr  1", args=["x"])
    assert plain.masked() is plain


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from(SECRET + PLAIN), min_size=1, max_size=4),
    st.sampled_from(["--{}={}", "{}={}", '{{"{}": "{}"}}', "{}: {}", "--{} {}"]),
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=5, max_size=20),
)
def test_the_value_of_a_secret_is_never_shown(names: list[str], form: str, value: str) -> None:
    value = f"q{value}q"
    words = [word for name in names for word in form.format(name.lstrip("-"), value).split(" ", 1)]
    if form != "--{} {}":
        words = [form.format(name.lstrip("-"), value) for name in names]
    shown = Masking().words(words)
    kept = sum(not is_secret(name) for name in names)
    assert sum(value in word for word in shown) == kept
    assert any(map(is_masked, shown)) == (kept < len(names))


@pytest.mark.parametrize(
    "piece", ["a", "=", "token", "://", "a:", "://a:", " :", "://a1", "://ghp_"]
)
def test_a_long_text_takes_no_long_time(piece: str) -> None:
    began = time.process_time()
    Masking().text(piece * 100_000)
    assert time.process_time() - began < 1.0
