"""Bearer tokens of an OpenID Connect issuer (JWT), which users may send instead of a token of the
users file.

A token is checked by PyJWT against the keys that the issuer publishes. `issuer_keys` fetches them,
called in a thread: at the first token, for a key id that is not among them, and after KEYS_S; at
most once in `pause_s`, so that invented key ids cause few requests. (PyJWKClient of PyJWT fetches
on the calling thread, for every unknown id, does not use REQUESTS_CA_BUNDLE, and reads an answer of
any size for any time.)

Only a server whose users file has the table `[oidc]` imports this module: others start without its
libraries.
"""

import asyncio
import logging
import re
import time
from typing import Any

import jwt

from client_lib.errors import Unauthorized, Unavailable
from client_lib.spec.wire import Check
from server_stub.http import issuer_keys
from server_stub.http.users_file import USER_NAME, OidcEntry
from server_stub.runtimes.checks import checked
from server_stub.users import User

ALGORITHMS = [
    *(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)),
    "EdDSA",
]
# age of the keys at which they are fetched again, as the issuer may have withdrawn one
KEYS_S = 3600.0
PAUSE_S = 10.0
_SKEW_S = 30.0  # between the clocks of the issuer and of this server

_LOGIN = "`client-lib login` gets a new one"

Keys = dict[str, jwt.PyJWK]
"""Key id -> public key."""

log = logging.getLogger(__name__)


class Oidc:
    """The tokens of one issuer. Event loop only."""

    def __init__(self, entry: OidcEntry, pause_s: float = PAUSE_S) -> None:
        self.entry = entry
        self.pause_s = pause_s
        self._lock = asyncio.Lock()
        self._keys: Keys = {}
        self._asked = self._fetched = float("-inf")
        self._failure = ""
        """The reason why the last fetch got no keys; "": it got them."""

    async def accept(self, token: str) -> tuple[User, frozenset[str]]:
        """The user of a token, and the user's groups.

        Raises Unauthorized: it is not valid, or has no name that a user may have here; Unavailable:
        its key is not known, and the issuer does not answer.
        """
        try:
            parts = jwt.decode_complete(token, options={"verify_signature": False})
            if parts["payload"].get("iss") != self.entry.issuer:
                raise jwt.InvalidIssuerError
            key = await self._key(parts["header"].get("kid"))
            claims: dict[str, Any] = jwt.decode(
                *(token, key, ALGORITHMS),
                options={"require": ["exp", "aud"]},
                audience=self.entry.audience,
                issuer=self.entry.issuer,
                leeway=_SKEW_S,
            )
        except jwt.PyJWTError as error:
            reasons: dict[type[Exception], str] = {
                jwt.ExpiredSignatureError: "the token has expired",
                jwt.InvalidAudienceError: (
                    f"the token is for another audience than {self.entry.audience!r}"
                ),
                jwt.InvalidIssuerError: f"the token is of another issuer than {self.entry.issuer}",
            }
            raise Unauthorized(
                reasons.get(type(error), f"the token is not valid: {error}"), hint=_LOGIN
            ) from error
        claim = self.entry.name_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not re.fullmatch(USER_NAME, name):
            raise Unauthorized(
                f"claim {claim!r} of the token is {name!r}, which is no user name",
                hint="name_claim of the users file chooses the claim; a name has letters, digits "
                "and . _ @ + -",
            )
        if claim == "email" and claims.get("email_verified") is False:
            raise Unauthorized(f"the issuer has not verified the address {name}")
        found = claims.get(self.entry.groups_claim, [])
        groups = frozenset(map(str, found if isinstance(found, list) else [found]))
        admin = not groups.isdisjoint(self.entry.admin_groups)
        return User(name, admin), groups

    async def _key(self, kid: str | None) -> jwt.PyJWK:
        """Raises PyJWTError: the issuer has no such key; Unavailable: it does not answer."""
        old = time.monotonic() - self._fetched > KEYS_S and not self._lock.locked()
        if kid not in self._keys or old:
            async with self._lock:  # one request asks, and other requests that need its answer wait
                now = time.monotonic()
                if now - self._asked > self.pause_s and (kid not in self._keys or old):
                    self._asked = now
                    try:
                        self._keys = await asyncio.to_thread(fetch_keys, self.entry.issuer)
                        self._failure = ""
                        self._fetched = now
                    except (
                        Unavailable
                    ) as error:  # the keys stay: tokens are valid while the issuer does not answer
                        self._failure = error.message
                        log.error("%s", error.message)
        if kid in self._keys:
            return self._keys[kid]
        if self._failure:
            raise Unavailable(self._failure, hint="tokens of the users file are not affected")
        raise jwt.InvalidKeyError(f"the issuer publishes no key {kid!r}")


def fetch_keys(issuer: str) -> Keys:
    """The public keys of an issuer. Blocks. Raises Unavailable."""
    try:
        found = jwt.PyJWKSet.from_dict(issuer_keys.fetch(issuer))
    except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(
            f"the issuer {issuer} gives no keys: {type(error).__name__}: {error}"
        ) from error
    return {key.key_id: key for key in found.keys if key.key_id}


def check(issuer: str) -> Check:
    """The check of the issuer for `doctor`. Blocks."""
    try:
        keys = fetch_keys(issuer)
    except Unavailable as error:
        fix = (
            "let this server reach it, and give `issuer` in the users file the text of `issuer` "
            "in its metadata"
        )
        return checked("issuer", error.message, fix)
    if not keys:
        fix = "set up the issuer so that its keys and its tokens have a `kid`"
        return checked(
            "issuer",
            f"none of the keys of the issuer {issuer} has an id (`kid`), as tokens name one",
            fix,
        )
    return checked(
        "issuer", f"{issuer} answers, and has {len(keys)} key{'s' * (len(keys) > 1)} for tokens"
    )
