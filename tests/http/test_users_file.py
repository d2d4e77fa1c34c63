"""Tokens are random, stored as digests alone, and a wrong file is refused
with the place that is wrong.
"""

import asyncio
import getpass
import os
import stat
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest, NotFound, Unauthorized
from server_stub.__main__ import main
from server_stub.http import users_file
from server_stub.http.auth import Users
from server_stub.http.users_file import FileTokens, UserTokens
from server_stub.users import User


def authenticate(header: str | None, tokens: UserTokens) -> User:
    return asyncio.run(Users(lambda: tokens).of_header(header))


def test_a_token_made_is_a_token_known(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    ann, root = users_file.add(path, "ann", admin=False), users_file.add(path, "root", admin=True)
    tokens = users_file.read(path)
    assert authenticate(f"Bearer {ann}", tokens) == User("ann", admin=False)
    assert authenticate(f"bearer  {root} ", tokens) == User("root", admin=True)


def test_the_file_holds_no_token_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    token = users_file.add(path, "ann", admin=False)
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_user_is_added_to_a_file_whose_last_line_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(f"[[users]]\nname = 'ann'\ntoken_sha256 = '{'0' * 64}'")
    users_file.add(path, "bob", admin=False)
    assert [user.name for user in users_file.read(path).values()] == ["ann", "bob"]


def test_a_user_may_have_two_tokens(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    tokens = [users_file.add(path, "ann", admin=False) for _ in range(2)]
    assert [authenticate(f"Bearer {token}", users_file.read(path)).name for token in tokens] == [
        "ann",
        "ann",
    ]


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Bearer clt_wrong"]
)
def test_anything_else_is_nobody(header: str | None, tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    users_file.add(path, "ann", admin=False)
    with pytest.raises(Unauthorized):
        authenticate(header, users_file.read(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[users]]\nname = 'ann'\n", "users.0.token_sha256 is missing"),
        ("[[users]]\nname = '../x'\ntoken_sha256 = '%s'\n" % ("0" * 64), "users.0.name"),
        ("[[users]]\nname = 'ann'\ntoken_sha256 = 'secret'\n", "users.0.token_sha256"),
        ("[[user]]\n", "unknown field 'user'; did you mean 'users'?"),
        ("[[users]\n", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        users_file.read(path)
    assert str(path) in refused.value.message
    assert says in refused.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere\.toml"):
        FileTokens(tmp_path / "nowhere.toml")


def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    for name in ("", "a/b", "..", 'a"b', "a\nb"):
        with pytest.raises(InvalidRequest):
            users_file.add(tmp_path / "users.toml", name, admin=False)


def test_a_token_given_or_taken_holds_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    ann = users_file.add(path, "ann", admin=False)
    users = FileTokens(path)
    ben = users_file.add(path, "ben", admin=False)
    assert authenticate(f"Bearer {ben}", users()).name == "ben"
    path.write_text("")
    with pytest.raises(Unauthorized):
        authenticate(f"Bearer {ann}", users())


def test_a_file_broken_while_running_leaves_the_users_of_before(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    ann = users_file.add(path, "ann", admin=False)
    users = FileTokens(path)
    path.write_text("[[users]")
    assert authenticate(f"Bearer {ann}", users()).name == "ann"


def test_the_command_prints_the_token_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "users.toml"
    assert main(["token", "ann", "--admin", "--users-file", str(path)]) == 0
    token = capsys.readouterr().out.strip()
    assert authenticate(f"Bearer {token}", users_file.read(path)) == User("ann", admin=True)


def test_the_command_refuses_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", "a/b", "--users-file", str(tmp_path / "users.toml")]) == 1
    assert "'a/b' is not a user name" in capsys.readouterr().err


def test_a_process_without_a_user_name_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    # a container that runs under a bare number
    monkeypatch.setattr(getpass, "getuser", _no_such_user)
    assert users_file.local_user() == User(f"uid{os.getuid()}", admin=True)


def _no_such_user() -> str:
    raise KeyError("getpwuid(): uid not found")


def test_a_user_has_one_account_for_all_tokens(tmp_path: Path) -> None:
    def entry(name: str, token: str, account: str = "") -> str:
        named = f'account = "{account}"\n' if account else ""
        return (
            f'[[users]]\nname = "{name}"\ntoken_sha256 = '
            f'"{users_file.digest(token).hex()}"\n{named}'
        )

    path = tmp_path / "users.toml"
    path.write_text(entry("ann", "1", "a1") + entry("ben", "2") + entry("ann", "3"))
    assert FileTokens(path)().accounts() == {"ann": "a1", "ben": "ben"}
    path.write_text(entry("ann", "1", "a1") + entry("ann", "3", "a2"))
    with pytest.raises(InvalidRequest, match="names two accounts of ann: a1 and a2"):
        FileTokens(path)


def test_a_change_that_is_refused_leaves_the_users_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    token = users_file.add(path, "ann", admin=False)

    def check(tokens: UserTokens) -> None:
        if "ben" in tokens.accounts():
            raise InvalidRequest("there is no account for ben")

    tokens = FileTokens(path, check)
    other = users_file.add(path, "ben", admin=False)
    assert authenticate(f"Bearer {token}", tokens()).name == "ann"
    with pytest.raises(Unauthorized):
        authenticate(f"Bearer {other}", tokens())
