"""Logins at the issuers of servers: a token by the device flow (RFC 8628), kept until `log_out`,
renewed in time.

`logins.json` beside the configuration file holds them by the URL of their server; only its user can
read it. One process renews a token while the others wait: an issuer may end a login whose refresh
token is used twice.
"""

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict

from client_lib.durable import locked, write_json
from client_lib.errors import (
    Forbidden,
    InvalidRequest,
    NotSupported,
    ServerUnreachable,
    Unauthorized,
)
from client_lib.spec import paths
from client_lib.transport.config import Config, Endpoint, config_file
from client_lib.transport.failures import CONNECT_S, check_endpoint_rules

# before its end a token is renewed; a token that lives shorter, after half of its life
EARLY_S = 60.0
_AGAIN_S = 10.0  # pause after an issuer did not answer, while the token is valid
_READ_S = 30.0
# the last one: a refresh token
_SCOPES = ("openid", "profile", "email", "groups", "offline_access")
_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
# RFC 8628, 3.5: pause between two polls, and by how much a pause grows if the issuer asks for it.
_POLL_S = 5.0
_SLOWER_S = 5.0

Json = dict[str, Any]


class Login(TypedDict):
    token: str
    renew_at: float  # Unix time of this machine's clock, as is `ends`
    ends: float
    refresh_token: str | None
    issuer: str
    client_id: str
    kind: str
    """The name of the issuer's token that the server takes: `id_token` or `access_token`."""


def endpoint(url: str) -> Endpoint:
    """The server with the token of its login, which is renewed if it is time; without a token if
    there is no login. Raises Unauthorized: the issuer has ended the login; ServerUnreachable: it is
    silent, and the token has expired."""
    login = _read().get(url)
    if login is not None and time.time() >= login["renew_at"]:
        with _locked():
            login = _read().get(url)
            if login is not None and time.time() >= login["renew_at"]:
                login = _renewed(url, login)
    return Endpoint(url, login["token"], login["renew_at"]) if login else Endpoint(url)


def log_in(
    server: str,
    offer: Json,
    config: Config,
    show: Callable[[str, str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Log in by the device flow of the issuer that the server offers (its LoginIssuer), and keep
    the login. `show` is called with the link and the code that the user has to confirm there.
    Raises NotSupported: the issuer has no device flow; Unauthorized: the user, or the issuer,
    refused."""
    issuer = offer["issuer"]
    client_id = offer["client_id"]
    check_endpoint_rules(Endpoint(issuer, "of a user"), config)
    metadata = _metadata(issuer)
    place = metadata.get("device_authorization_endpoint")
    if place is None:
        raise NotSupported(
            f"the issuer {issuer} has no device flow", hint="set CLIENT_LIB_TOKEN to a token of it"
        )
    known = metadata.get("scopes_supported", _SCOPES)
    device = _ask(
        place,
        {"client_id": client_id, "scope": " ".join(scope for scope in _SCOPES if scope in known)},
    )
    if "device_code" not in device:
        raise Unauthorized(f"the issuer {issuer} refuses client {client_id!r}: {_reason(device)}")
    show(
        str(device.get("verification_uri_complete") or device["verification_uri"]),
        device["user_code"],
    )
    pause = float(device.get("interval", _POLL_S))
    deadline = time.monotonic() + float(device["expires_in"])
    form = {"grant_type": _DEVICE, "device_code": device["device_code"], "client_id": client_id}
    while time.monotonic() < deadline:
        sleep(pause)
        try:
            answer = _ask(metadata["token_endpoint"], form)
        except ServerUnreachable:  # for a moment, perhaps
            pause += _SLOWER_S
            continue
        if "error" not in answer:
            with _locked():
                _keep(server, _login(answer, issuer, client_id, offer["token"]))
            return
        if answer["error"] == "slow_down":
            pause += _SLOWER_S
        elif answer["error"] == "expired_token":
            break
        elif answer["error"] != "authorization_pending":
            raise Unauthorized(f"the login was refused: {_reason(answer)}")
    raise Unauthorized(
        f"the code {device['user_code']} has expired", hint="`client-lib login` makes a new one"
    )


def log_out(url: str) -> bool:
    """Forget the login of a server, and let its issuer revoke it, if that
    answers. False: there was none.
    """
    with _locked():
        login = _read().get(url)
        if login is not None:
            _keep(url, None)
    if login is not None and login["refresh_token"]:
        form = {"token": login["refresh_token"], "client_id": login["client_id"]}
        # the token is forgotten here, and expires there
        with suppress(ServerUnreachable, Forbidden):
            if place := _metadata(login["issuer"]).get("revocation_endpoint"):
                _ask(place, form)
    return login is not None


def _renewed(url: str, login: Login) -> Login:
    form = {
        "grant_type": "refresh_token",
        "refresh_token": login["refresh_token"],
        "client_id": login["client_id"],
    }
    try:
        answer = _ask(_metadata(login["issuer"])["token_endpoint"], form)
    except ServerUnreachable:
        if time.time() >= login["ends"]:
            raise
        login["renew_at"] = min(time.time() + _AGAIN_S, login["ends"])
        return login
    if "error" in answer:
        raise Unauthorized(
            f"the login at {url} has ended: {_reason(answer)}",
            hint="`client-lib login` logs in again",
        )
    answer = {"refresh_token": login["refresh_token"], **answer}
    renewed = _login(answer, login["issuer"], login["client_id"], login["kind"])
    _keep(url, renewed)
    return renewed


def _login(answer: Json, issuer: str, client_id: str, kind: str) -> Login:
    """Raises Unauthorized: the answer lacks the token that the server takes."""
    token = answer.get(kind)
    if not isinstance(token, str):
        raise Unauthorized(
            f"the issuer {issuer} sent no {kind}", hint="its client needs the scope openid"
        )
    try:  # its own claims; `expires_in` is of the access token
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        life_s = float(claims["exp"] - claims["iat"])
    except (IndexError, ValueError, KeyError, TypeError):
        life_s = float(answer.get("expires_in") or 0)
    now = time.time()
    refresh_token = answer.get("refresh_token")
    return Login(
        token=token,
        renew_at=now + life_s - min(EARLY_S, life_s / 2) if refresh_token else float("inf"),
        ends=now + life_s,
        refresh_token=refresh_token,
        issuer=issuer,
        client_id=client_id,
        kind=kind,
    )


# --- the issuer


def _metadata(issuer: str) -> Json:
    metadata = _ask(issuer.rstrip("/") + paths.DISCOVERY)
    if metadata.get("issuer") != issuer:
        raise Forbidden(f"the metadata of {issuer} name another issuer: {metadata.get('issuer')!r}")
    return metadata


def _ask(url: str, form: Json | None = None) -> Json:
    """The JSON object that the issuer answers, also of a refusal. Raises ServerUnreachable."""
    import requests  # a command that renews nothing does not need it

    try:
        # `auth`: otherwise requests sends a password of .netrc
        response = requests.request(
            "POST" if form else "GET",
            url,
            data=form,
            timeout=(CONNECT_S, _READ_S),
            auth=lambda request: request,
        )
        if response.status_code == 429 or response.status_code >= 500:
            raise ServerUnreachable(
                f"the issuer can't answer now: {url} (HTTP status {response.status_code})"
            )
        found = response.json() if response.content else {}
    except requests.exceptions.SSLError as error:
        raise ServerUnreachable(
            f"the certificate of the issuer isn't trusted: {url}",
            hint="set REQUESTS_CA_BUNDLE to a file with its authority",
        ) from error
    except (requests.RequestException, ValueError) as error:
        raise ServerUnreachable(
            f"the issuer does not answer: {url} ({type(error).__name__})"
        ) from error
    return found if isinstance(found, dict) else {"error": str(found)}


def _reason(answer: Json) -> str:
    return str(answer.get("error_description") or answer.get("error") or "no reason is given")


# --- the file


def _file() -> Path:
    return config_file().with_name("logins.json")


def _read() -> dict[str, Login]:
    try:
        return dict(json.loads(_file().read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{_file()} can't be read: {error}", hint="remove it, and log in again"
        ) from None


def _keep(url: str, login: Login | None) -> None:
    others = {known: value for known, value in _read().items() if known != url}
    write_json(str(_file()), others | ({url: login} if login else {}))


@contextmanager
def _locked() -> Iterator[None]:
    """Let one process at a time change the file. Windows has no such lock."""
    with ExitStack() as stack:
        try:
            _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if sys.platform != "win32":
                stack.enter_context(locked(f"{_file()}.lock"))
        except OSError as error:
            raise InvalidRequest(f"{_file()} can't be written: {error.strerror}") from error
        yield
