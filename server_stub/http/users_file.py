"""The file of users: TOML, a `[[users]]` per token with the name it belongs to and the SHA-256 of the token.

    [[users]]
    name = "ann"
    token_sha256 = "9f86d081884c7d65…"
    admin = true
    account = "ann"

    [[teams]]
    name = "vision"
    users = ["ann"]
    groups = ["vision-researchers"]
    instance_types = ["a100.1gpu", "a100.8gpu"]
    queues = ["team-vision"]
    namespace = "vision"

A user belongs to the first team that names the user, or `"*"`, or a group of the user's token of an issuer.

`account` is the account of this machine under which the jobs of the user run, if the server runs as root; without it,
the account with the name of the user. Tokens themselves are never stored. They have 256 random bits, so that a plain
digest can't be searched. A user may have several entries, so that a new token works before the old one is removed.
`python -m server_stub token` adds one.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client_lib.errors import InvalidRequest, NotFound, Unauthorized
from client_lib.spec.request import SHA256
from client_lib.spec.toml import parse_toml
from client_lib.spec.validation import invalid_request
from server_stub.service.values import Team, User

TOKEN_PREFIX = "clt_"  # makes a leaked token recognisable
USER_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._@+-]{0,99}$"  # it becomes a file name in `snapshots`
NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class UserTokens(dict[bytes, User]):
    """SHA-256 of a token -> its user. `teams` hold for users with tokens of an issuer too."""

    teams: Sequence[TeamEntry] = ()

    def team_of(self, name: str, groups: Collection[str] = ()) -> Team | None:
        """The first team with this user."""
        for entry in self.teams:
            if name in entry.users or "*" in entry.users or not set(groups).isdisjoint(entry.groups):
                return Team(entry.name, entry.instance_types, entry.queues, entry.namespace)
        return None

    def namespaces(self) -> set[str]:
        """The namespaces of all teams."""
        return {entry.namespace for entry in self.teams if entry.namespace is not None}


class UserEntry(BaseModel):
    """One `[[users]]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=USER_NAME)]
    token_sha256: Annotated[str, Field(pattern=SHA256)]
    admin: bool = False
    account: str | None = None


class TeamEntry(BaseModel):
    """One `[[teams]]`; see `service.values.Team`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    users: list[str] = []
    groups: list[str] = []
    instance_types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    namespace: Annotated[str, Field(pattern=NAMESPACE)] | None = None


class UsersFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    users: list[UserEntry] = []
    teams: list[TeamEntry] = []


def read(path: Path) -> UserTokens:
    """The tokens in the file.

    Raises:
        NotFound: there is no such file, or it can't be read.
        InvalidRequest: it is no TOML, or holds something else; the line or the field is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"the users file {path} can't be read: {error}") from error
    try:
        file = UsersFile.model_validate(parse_toml(text, f"the users file {path}"))
    except ValidationError as error:
        raise InvalidRequest(f"the users file {path}: {invalid_request(error, UsersFile).message}") from error
    accounts, tokens = _accounts(path, file.users), UserTokens()
    tokens.teams = file.teams
    for each in file.users:
        user = User(each.name, each.admin, accounts.get(each.name, ""), tokens.team_of(each.name))
        tokens[bytes.fromhex(each.token_sha256)] = user
    return tokens


def _accounts(path: Path, entries: list[UserEntry]) -> dict[str, str]:
    """The accounts that the entries name, by user. Raises InvalidRequest: two entries of a user name different ones."""
    named: dict[str, str] = {}
    for entry in entries:
        if entry.account is not None and named.setdefault(entry.name, entry.account) != entry.account:
            raise InvalidRequest(
                f"the users file {path} names two accounts of {entry.name}: {named[entry.name]} and {entry.account}"
            )
    return named


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def owner_of(token: str, tokens: UserTokens) -> User | None:
    """The user of a token, or None. All are compared in constant time, so that response times reveal nothing."""
    asked = digest(token)
    found = [user for known, user in tokens.items() if hmac.compare_digest(known, asked)]
    return found[0] if found else None


def bearer(header: str) -> str:
    """The token in an `Authorization` header. Raises Unauthorized."""
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Unauthorized("the Authorization header is not 'Bearer <token>'")
    return token.strip()


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def add(path: Path, name: str, *, admin: bool) -> str:
    """Append a user with a new token to the file, made 0600 if it is missing. Returns the token, which is not stored.

    Raises InvalidRequest: the name is not allowed, or the file is not a users file.
    """
    if not re.fullmatch(USER_NAME, name):
        raise InvalidRequest(f"{name!r} is not a user name", hint="letters, digits and . _ @ + -, at most 100")
    if path.exists():
        read(path)
    token = new_token()
    entry = f'[[users]]\nname = "{name}"\ntoken_sha256 = "{digest(token).hex()}"\nadmin = {str(admin).lower()}\n'
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
        file.write(("\n" if file.tell() else "") + entry)
    return token


def local_user() -> User:
    """The one user of a local server, an admin: the account that runs it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user id has no name
        name = f"uid{os.getuid()}"
    return User(re.sub(r"[^A-Za-z0-9._@+-]", "_", name), admin=True)
