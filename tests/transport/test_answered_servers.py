"""What is remembered of the addresses that have answered."""

from pathlib import Path

import pytest

from client_lib.transport import answered_servers


@pytest.fixture(autouse=True)
def another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(tmp_path / "config" / "config.toml"))
    answered_servers._noted.clear()


def test_the_next_process_knows_the_address_of_another_machine(tmp_path: Path) -> None:
    url = "https://jobs.lab.example/prefix"
    assert not answered_servers.has_answered(url)
    answered_servers.note(url)
    assert answered_servers.has_answered(url)
    answered_servers._noted.clear()
    assert answered_servers.has_answered(url)
    assert not answered_servers.has_answered("https://jobs.lab.example")


def test_an_address_of_this_machine_is_known_to_this_process_alone(tmp_path: Path) -> None:
    url = "http://127.0.0.1:8000"
    answered_servers.note(url)
    assert answered_servers.has_answered(url)
    answered_servers._noted.clear()
    assert not answered_servers.has_answered(url)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    answered_servers.note("https://jobs.lab.example")
    assert answered_servers.has_answered("https://jobs.lab.example")
