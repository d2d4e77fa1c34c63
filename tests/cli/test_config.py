"""Profiles: made, changed, used; comments stay, tokens are not shown."""

import json
import stat
from pathlib import Path

import pytest

from client_lib.transport.config import read_profiles
from tests.kit.jobs import job_info
from tests.kit.small_server import SmallServer

from .conftest import Run


def test_the_first_profile_is_used_at_once(
    small_server: SmallServer, cli: Run, environment: dict[str, str]
) -> None:
    small_server.add(job_info("one"))
    del environment["CLIENT_LIB_ENDPOINT"]
    assert (
        cli(
            "config", "set", "lab", f"endpoint={small_server.url}/", "token=-", stdin="s3cret\n"
        ).returncode
        == 0
    )
    assert cli("list", "-o", "name").stdout == "one\n"
    assert small_server.tokens == ["Bearer s3cret"]


def test_a_profile_is_chosen_by_option_or_variable(
    small_server: SmallServer, cli: Run, environment: dict[str, str]
) -> None:
    small_server.add(job_info("one"))
    del environment["CLIENT_LIB_ENDPOINT"]
    cli("config", "set", "nowhere", "endpoint=http://127.0.0.1:9")
    cli("config", "set", "lab", f"endpoint={small_server.url}")
    assert cli("list").returncode == 4
    assert cli("list", "--profile", "lab", "-o", "name").stdout == "one\n"
    assert cli("list", "-o", "name", CLIENT_LIB_PROFILE="lab").stdout == "one\n"
    assert cli("config", "use", "lab").returncode == 0
    assert cli("list", "-o", "name").stdout == "one\n"


def test_show_hides_tokens_and_says_which_server_it_is_and_why(cli: Run) -> None:
    cli("config", "set", "lab", "endpoint=https://jobs.example", "token=s3cret")
    for shown in (cli("config", "show").stdout, cli("config", "show", "-o", "json").stdout):
        assert "https://jobs.example" in shown
        assert "s3cret" not in shown
    assert "(by profile lab)" in cli("config", "show").stdout
    assert (
        "(by CLIENT_LIB_ENDPOINT)" in cli("config", "show", CLIENT_LIB_ENDPOINT="http://x").stdout
    )
    assert (
        json.loads(cli("config", "show", "-o", "json").stdout)["profiles"]["lab"]["token"] == "***"
    )


def test_nothing_configured_is_the_local_server(cli: Run) -> None:
    assert "the local one, started on demand" in cli("config", "show").stdout


def test_the_file_is_for_its_owner_alone(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch(mode=0o644)
    cli("config", "set", "lab", "token=x")
    assert stat.S_IMODE((tmp_path / "config.toml").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("setting", "about"),
    [
        ("endpoint=jobs.example", "no address of a server"),
        ("retry_s=soon", "retry_s='soon' of profile 'lab' is not a number of seconds"),
        ("retry_s=nan", "profile 'lab': retry_s=nan is no number of seconds"),
        ("insecure=maybe", "insecure='maybe' of profile 'lab' is not true or false"),
        ("token=\udcff", "can't be written: 'utf-8' codec"),
        ("colour=red", "unknown 'colour'"),
        ("endpoint", "KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_refused_and_nothing_is_written(
    cli: Run, tmp_path: Path, setting: str, about: str
) -> None:
    refused = cli("config", "set", "lab", setting)
    assert refused.returncode == 2
    assert about in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_profile_has_a_name(cli: Run) -> None:
    refused = cli("config", "set", "", "token=x")
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, "Error: PROFILE is empty")


def test_comments_and_other_profiles_stay(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '# mine\nprofile = "a"\n\n[profiles.a]  # the lab\nendpoint = "http://a"\n\n[profiles."b '
        'c"]\ntoken = "t"\n'
    )
    assert (
        cli("config", "set", "b c", "endpoint=http://b", "token=", "insecure=yes").returncode == 0
    )
    assert cli("config", "use", "b c").returncode == 0
    meant = (
        "b c",
        {"a": {"endpoint": "http://a"}, "b c": {"endpoint": "http://b", "insecure": True}},
    )
    assert read_profiles(path) == meant
    assert path.read_text().startswith('# mine\nprofile = "b c"\n')
    assert "[profiles.a]  # the lab" in path.read_text()


@pytest.mark.parametrize(
    "text", ['profiles = {a = {endpoint = "http://a"}}\n', '[profiles]\na.endpoint = "http://a"\n']
)
def test_a_file_in_any_layout_is_changed(cli: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert cli("config", "set", "a", "token=t", "retry_s=3").returncode == 0
    assert cli("config", "set", "b", "endpoint=http://b").returncode == 0
    meant = {
        "a": {"endpoint": "http://a", "token": "t", "retry_s": 3.0},
        "b": {"endpoint": "http://b"},
    }
    assert read_profiles(path) == (None, meant)


@pytest.mark.parametrize("value", ['quote " and \\ back', "ünïcode 😀", "line\nbreak", "a # b"])
def test_any_text_survives_the_file(cli: Run, tmp_path: Path, value: str) -> None:
    assert cli("config", "set", "a", f"token={value}").returncode == 0
    assert read_profiles(tmp_path / "config.toml")[1] == {"a": {"token": value}}
