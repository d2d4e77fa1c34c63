"""The users of a server, and the file that names them: TOML with an entry for each token, which has
its SHA-256, and with teams and an issuer. docs/how-to.md has examples.

Tokens themselves are never stored. They have 256 random bits, so that a plain digest can't be
searched. A user may have several entries, so that a new token works before the old one is removed.
`python -m server_stub token` adds one.
"""

import getpass
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from client_lib.errors import InvalidRequest, NotFound, Unauthorized
from client_lib.spec.command_line import parse_toml
from client_lib.spec.paths import is_loopback
from client_lib.spec.refusals import invalid_request
from client_lib.spec.request import SHA256
from server_stub.users import Team, User

TOKEN_PREFIX = "clt_"  # makes a leaked token recognisable
USER_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._@+-]{0,99}$"  # it becomes a file name in `snapshots`

log = logging.getLogger(__name__)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UserEntry(_Table):
    """An entry of `[[users]]`."""

    name: Annotated[str, Field(pattern=USER_NAME)]
    """Name of the user: letters, digits and `. _ @ + -`, at most 100."""
    token_sha256: Annotated[str, Field(pattern=SHA256)]
    """SHA-256 of the token, as `client-lib server token` writes it."""
    admin: bool = False
    """True: the user may see and change the jobs of all users."""
    account: str | None = None
    """Account of this machine under which the jobs of the user run, if the server runs as root.
    None: the account with the name of the user."""


class OidcEntry(_Table):
    """The table `[oidc]`: an OpenID Connect issuer, whose tokens the server takes beside the tokens
    of `[[users]]`.
    """

    issuer: str
    """URL of the issuer, as its tokens name it (`iss`)."""
    audience: Annotated[str, Field(min_length=1)]
    """Audience (`aud`) of its tokens; in an ID token this is the client id."""
    client_id: str | None = None
    """Client id with which `client-lib login` asks the issuer for a token: a public client that may
    use the device flow. None: `audience`, and users send their ID token; otherwise they send their
    access token."""
    name_claim: str = "preferred_username"
    """Claim with the name of the user. Users must not be able to choose this name themselves: a
    user of `[[users]]` with the name has the same jobs."""
    groups_claim: str = "groups"
    """Claim with the groups of the user."""
    admin_groups: list[str] = []
    """Groups whose members are admins."""

    @field_validator("issuer")
    @classmethod
    def _is_safe(cls, issuer: str) -> str:
        url = urlsplit(issuer)
        if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
            raise ValueError("must be an https address: the keys of its tokens come from there")
        return issuer


class UsersFile(_Table):
    users: list[UserEntry] = []
    teams: list[Team] = []
    oidc: OidcEntry | None = None


class UserTokens(dict[bytes, User]):
    """Users by the SHA-256 of their tokens. `teams` apply to users with
    tokens of the issuer, too.
    """

    teams: Sequence[Team] = ()
    oidc: OidcEntry | None = None

    def team_of(self, name: str, groups: Collection[str] = ()) -> Team | None:
        """The first team with this user."""
        for team in self.teams:
            if name in team.users or "*" in team.users or not set(groups).isdisjoint(team.groups):
                return team
        return None

    def accounts(self) -> dict[str, str]:
        """The name of each user's account."""
        return {user.name: user.account or user.name for user in self.values()}


CurrentTokens = Callable[[], UserTokens]
"""Returns the tokens that are valid now."""


class FileTokens:
    """The tokens in the file of users, which is read again after a change: tokens are added and
    revoked without a restart."""

    def __init__(self, path: Path, check: Callable[[UserTokens], object] = lambda _: None) -> None:
        """`check` raises InvalidRequest if the server can't take some of these users. Raises the
        errors of `check` and of `read`: a server does not start with a file that it can't use.
        """
        self._path = path
        self._check = check
        self._seen = self._stamp()
        self._tokens = self._read()

    def __call__(self) -> UserTokens:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._tokens = self._read()
            except (InvalidRequest, NotFound) as error:  # perhaps half written by an editor
                log.error("%s; the previous users stay", error.message)
        return self._tokens

    def _read(self) -> UserTokens:
        tokens = read(self._path)
        self._check(tokens)
        return tokens

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def read(path: Path) -> UserTokens:
    """The tokens in the file.

    Raises:
        NotFound: there is no such file, or it can't be read.
        InvalidRequest: it is no TOML, or holds something else; the line or the key is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"the users file {path} can't be read: {error}") from error
    try:
        file = UsersFile.model_validate(parse_toml(text, f"the users file {path}"))
    except ValidationError as error:
        raise InvalidRequest(
            f"the users file {path}: {invalid_request(error, UsersFile).message}",
            hint="docs/reference.md has all keys of the users file",
        ) from error
    accounts: dict[str, str] = {}
    for each in file.users:
        if (
            each.account is not None
            and accounts.setdefault(each.name, each.account) != each.account
        ):
            raise InvalidRequest(
                f"the users file {path} names two accounts of {each.name}: {accounts[each.name]} "
                f"and {each.account}"
            )
    tokens = UserTokens()
    tokens.teams = file.teams
    tokens.oidc = file.oidc
    for each in file.users:
        user = User(each.name, each.admin, accounts.get(each.name, ""), tokens.team_of(each.name))
        tokens[bytes.fromhex(each.token_sha256)] = user
    return tokens


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def bearer(header: str) -> str:
    """The token in an `Authorization` header. Raises Unauthorized."""
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Unauthorized("the Authorization header is not 'Bearer <token>'")
    return token.strip()


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def add(path: Path, name: str, *, admin: bool) -> str:
    """Append a user with a new token to the file, made 0600 if it is missing. Returns the token,
    which is not stored.

    Raises InvalidRequest: the name is not allowed, or the file is not a users file.
    """
    if not re.fullmatch(USER_NAME, name):
        raise InvalidRequest(
            f"{name!r} is not a user name", hint="letters, digits and . _ @ + -, at most 100"
        )
    if path.exists():
        read(path)
    token = new_token()
    entry = (
        f'[[users]]\nname = "{name}"\ntoken_sha256 = "{digest(token).hex()}"\nadmin = '
        f"{str(admin).lower()}\n"
    )
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8"
    ) as file:
        file.write(("\n" if file.tell() else "") + entry)  # the last line may have no end
    return token


def local_user() -> User:
    """The one user of a local server, an admin: the account that runs it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user id has no name
        name = f"uid{os.getuid()}"
    return User(re.sub(r"[^A-Za-z0-9._@+-]", "_", name), admin=True)
