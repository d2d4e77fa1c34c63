"""`client-lib mls-config`: the profile of ML Space's command line that means our server."""

import configparser
from pathlib import Path

import pytest

from client_lib.cli.commands import config
from tests.kit.small_server import SmallServer

from .conftest import Run

TOKEN = "clt_secret"


@pytest.fixture
def home(environment: dict[str, str], tmp_path: Path, small_server: SmallServer) -> Path:
    environment["HOME"] = str(tmp_path)
    environment["CLIENT_LIB_TOKEN"] = TOKEN
    small_server.answers["GET", "/api/v1/info"] = (
        200,
        {"version": "0.1.0", "runtime": "local", "user": "ann"},
    )
    return tmp_path


def read(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read_string(path.read_text())
    return parser


def test_both_files_are_written_for_this_user_alone(
    home: Path, small_server: SmallServer, cli: Run
) -> None:
    done = cli("mls-config")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    config, credentials = home / ".mls" / "config", home / ".mls" / "credentials"
    assert dict(read(config)["default"]) == {
        "region": "SR006",
        "output": "json",
        "endpoint_url": f"{small_server.url}/public/v2",
    }
    assert dict(read(credentials)["default"]) == {
        "key_id": "ann",
        "key_secret": TOKEN,
        "x_workspace_id": "00000000-0000-4000-8000-000000000000",
        "x_api_key": "client-lib",
    }
    assert [path.stat().st_mode & 0o777 for path in (config.parent, config, credentials)] == [
        0o700,
        0o600,
        0o600,
    ]


def test_print_writes_nothing(home: Path, small_server: SmallServer, cli: Run) -> None:
    done = cli("mls-config", "--print", "--mls-profile", "lab", "--region", "SR003")
    assert done.returncode == 0
    assert (
        "# ~/.mls/config\n[lab]\nregion = SR003\noutput = json\nendpoint_url = "
        f"{small_server.url}/public/v2\n"
    ) in done.stdout
    assert f"# ~/.mls/credentials\n[lab]\nkey_id = ann\nkey_secret = {TOKEN}\n" in done.stdout
    assert not (home / ".mls").exists()


def test_a_profile_of_another_service_is_not_replaced_unless_forced(
    home: Path, small_server: SmallServer, cli: Run
) -> None:
    folder = home / ".mls"
    folder.mkdir()
    before = "[default]\nkey_id = theirs  \n\n; a comment\n[other]\nkey_id = x\n"
    (folder / "credentials").write_text(before)
    refused = cli("mls-config")
    assert (refused.returncode, "--mls-profile" in refused.stderr) == (5, True)
    assert (folder / "credentials").read_text() == before
    assert cli("mls-config", "--mls-profile", "ours").returncode == 0
    assert (folder / "credentials").read_text().startswith(before)
    assert cli("mls-config", "--force").returncode == 0
    assert read(folder / "credentials")["default"]["key_id"] == "ann"
    assert read(folder / "credentials")["other"]["key_id"] == "x"


def test_our_own_profile_is_written_anew_when_the_address_changed(
    home: Path, small_server: SmallServer, cli: Run
) -> None:
    assert cli("mls-config").returncode == 0
    config = home / ".mls" / "config"
    config.write_text(config.read_text().replace(small_server.url, "http://127.0.0.1:1"))
    assert cli("mls-config").returncode == 0
    assert small_server.url in config.read_text()


def test_a_wrong_token_writes_nothing(home: Path, small_server: SmallServer, cli: Run) -> None:
    small_server.answers["GET", "/api/v1/info"] = (401, {"code": "unauthorized", "message": "no"})
    assert cli("mls-config").returncode == 5
    assert not (home / ".mls").exists()


@pytest.mark.parametrize("option", ["--mls-profile", "--region"])
@pytest.mark.parametrize("value", ["", "a]", "a\nkey_id = theirs"])
def test_a_value_that_would_break_the_file_is_refused(
    home: Path, cli: Run, option: str, value: str
) -> None:
    refused = cli("mls-config", option, value)
    assert (refused.returncode, f"{option} {value!r}" in refused.stderr) == (2, True)
    assert not (home / ".mls").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "[p]\na = 1\n"),
        ("[q]\nx = 1", "[q]\nx = 1\n\n[p]\na = 1\n"),
        ("[p]\na = 2\nb = 3\n[q]\nx = 1\n", "[p]\na = 1\n\n[q]\nx = 1\n"),
        ("[q]\nx = 1\n\n[p]\na = 2\n", "[q]\nx = 1\n\n[p]\na = 1\n"),
        ("[p] # mine\na = 2\n", "[p]\na = 1\n"),
    ],
)
def test_a_section_is_replaced_and_the_rest_stays(text: str, expected: str) -> None:
    assert config.with_section(text, "p", {"a": "1"}) == expected
    assert config.section(expected, "p") == {"a": "1"}
