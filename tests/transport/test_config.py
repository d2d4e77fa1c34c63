import math
import os
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import InvalidRequest
from client_lib.transport import config
from client_lib.transport.config import Config, check_endpoint

PROFILES = """
profile = "lab"
[profiles.lab]
endpoint = "https://lab.example/"
token = "lab-token"
insecure = true
ca_bundle = "/lab.pem"
retry_s = 5
notify = "https://hook.example/secret"
[profiles.other]
endpoint = "https://other.example"
token = "other-token"
"""


def resolve(*args: str, environ: dict[str, str], **options: Any) -> Config:
    """Resolve with these variables of the environment alone."""
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("CLIENT_LIB_")]:
            patched.delenv(name)
        for name, value in environ.items():
            patched.setenv(name, value)
        return config.resolve(*args, **options)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "profiles.toml"
    file.write_text(PROFILES)
    return {"CLIENT_LIB_CONFIG": str(file)}


def test_nothing_configured_means_the_local_server(tmp_path: Path) -> None:
    assert resolve(environ={"CLIENT_LIB_CONFIG": str(tmp_path / "none.toml")}) == Config(None)


def test_the_file_s_default_profile_is_used(environ: dict[str, str]) -> None:
    assert resolve(environ=environ) == Config(
        "https://lab.example", "lab-token", True, "/lab.pem", 5, "https://hook.example/secret"
    )


def test_the_webhook_of_a_profile_is_no_secret_in_a_traceback_and_a_variable_wins(
    environ: dict[str, str],
) -> None:
    assert "secret" not in repr(resolve(environ=environ))
    assert (
        resolve(environ=environ | {"CLIENT_LIB_NOTIFY": "https://mine.example"}).notify
        == "https://mine.example"
    )


def test_a_named_profile_wins_over_the_default_one(environ: dict[str, str]) -> None:
    assert (
        resolve(environ=environ | {"CLIENT_LIB_PROFILE": "other"}).endpoint
        == "https://other.example"
    )


def test_an_endpoint_variable_wins_over_profiles_and_an_argument_over_both(
    environ: dict[str, str],
) -> None:
    environ |= {"CLIENT_LIB_ENDPOINT": "https://env.example", "CLIENT_LIB_PROFILE": "other"}
    assert resolve(environ=environ).endpoint == "https://env.example"
    assert (
        resolve("https://argument.example", environ=environ).endpoint == "https://argument.example"
    )


def test_a_profile_argument_wins_over_an_endpoint_variable(environ: dict[str, str]) -> None:
    environ["CLIENT_LIB_ENDPOINT"] = "https://env.example"
    assert resolve(profile="other", environ=environ).endpoint == "https://other.example"


def test_a_profile_s_token_never_goes_to_another_endpoint(environ: dict[str, str]) -> None:
    assert resolve("https://elsewhere.example", environ=environ) == Config(
        "https://elsewhere.example"
    )


def test_a_token_variable_goes_to_the_chosen_endpoint_but_never_to_the_local_server(
    environ: dict[str, str],
) -> None:
    environ["CLIENT_LIB_TOKEN"] = "env-token"
    assert resolve("https://elsewhere.example", environ=environ).token == "env-token"
    assert resolve(environ=environ).token == "env-token"
    assert resolve("local", environ=environ).token is None


def test_local_is_the_local_server_whatever_is_configured(environ: dict[str, str]) -> None:
    assert resolve(environ=environ | {"CLIENT_LIB_ENDPOINT": "local"}).endpoint is None
    assert resolve(environ=environ | {"CLIENT_LIB_PROFILE": "local"}).endpoint is None


def test_a_token_is_not_in_the_repr() -> None:
    assert "hush" not in repr(Config("https://h.example", "hush"))


@pytest.mark.parametrize(
    "endpoint",
    [
        "host:80",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://[::1",
        "https://h/?a=1",
        "https://u:p@host",
        "x",
    ],
)
def test_what_is_no_endpoint_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(InvalidRequest):
        check_endpoint(endpoint)


def test_an_unknown_profile_names_those_that_there_are(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="no profile 'lob'") as caught:
        resolve(profile="lob", environ=environ)
    assert caught.value.hint == "there are: lab, local, other"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("profile = ", "is not valid TOML"),
        ("profil = 'x'", "unknown key 'profil'"),
        ("[profiles.a]\nendpont = 'x'", "unknown 'endpont'"),
        ("[profiles.a]\ninsecure = 'yes'", "insecure='yes'"),
        ("[profiles]\na = 'https://x'", "profile 'a' is no table"),
        ("profiles = 'a'", "unknown key 'profiles'"),
        ("[profile.a]\nendpoint = 'https://x'", "`profile` is no name"),
        ("profile = ['a']", "`profile` is no name"),
        ("[profiles.a]\nretry_s = nan", "retry_s=nan is no number of seconds"),
        ("[profiles.a]\nretry_s = -inf", "retry_s=-inf is no number of seconds"),
        (f"[profiles.a]\nretry_s = 1{'0' * 400}", "is no number of seconds"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, names: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=names) as caught:
        resolve(environ={"CLIENT_LIB_CONFIG": str(file)})
    assert str(file) in caught.value.message


@pytest.mark.parametrize("value", ["soon", "-1", "inf", "nan"])
def test_a_retry_time_that_is_none_is_refused(environ: dict[str, str], value: str) -> None:
    with pytest.raises(InvalidRequest, match="CLIENT_LIB_RETRY_S"):
        resolve(environ=environ | {"CLIENT_LIB_RETRY_S": value})


def test_a_retry_time_of_an_argument_is_checked_too() -> None:
    with pytest.raises(InvalidRequest, match="retry_s=nan"):
        resolve("https://h.example", environ={}, retry_s=math.nan)


def test_a_flag_that_is_none_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="CLIENT_LIB_INSECURE='maybe'"):
        resolve(environ=environ | {"CLIENT_LIB_INSECURE": "maybe"})


def test_variables_win_over_the_profile_s_settings(environ: dict[str, str]) -> None:
    found = resolve(environ=environ | {"CLIENT_LIB_INSECURE": "0", "CLIENT_LIB_RETRY_S": "0"})
    assert (found.insecure, found.retry_s) == (False, 0)
