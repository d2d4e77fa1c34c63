"""The server and its token: from arguments, then `CLIENT_LIB_*` variables, then a profile of the
configuration file; otherwise the local server of this machine. All other modules take the resulting
`Config`. Standard library only.

A profile's token, CA bundle and `insecure` are used for that profile's endpoint only, so that
secrets stay with it.

    # ~/.config/client_lib/config.toml
    profile = "lab"                     # the one used when none is named

    [profiles.lab]
    endpoint = "https://jobs.lab.example"
    token = "..."
    ca_bundle = "/etc/ssl/lab.pem"      # authorities to trust; default: REQUESTS_CA_BUNDLE, or
                                        # those of the system
    insecure = false                    # true: a token may travel over plain http
    retry_s = 30                        # seconds for which a call is repeated while no server
                                        # answers; default 120 if it has answered before, else 30
    notify = "https://..."              # webhook of jobs that name none
"""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import parse_toml
from client_lib.spec.state_dir import chosen_state_dir

ENDPOINT = "CLIENT_LIB_ENDPOINT"
TOKEN = "CLIENT_LIB_TOKEN"
PROFILE = "CLIENT_LIB_PROFILE"
CONFIG = "CLIENT_LIB_CONFIG"
INSECURE = "CLIENT_LIB_INSECURE"
CA_BUNDLE = "CLIENT_LIB_CA_BUNDLE"
RETRY_S = "CLIENT_LIB_RETRY_S"
NOTIFY = "CLIENT_LIB_NOTIFY"

LOCAL = "local"  # endpoint or profile that always means the local server
RETRY_S_DEFAULT = 30.0
"""Seconds in which a call is repeated while an address does not answer that may be wrong."""
RESTART_S = 120.0
"""The same where the address has answered before: a server on a cluster may take as long to be
replaced.
"""

_KEYS: dict[
    str, tuple[tuple[type, ...], str]
] = {  # key of a profile -> the types of its value, and these in words
    **dict.fromkeys(("endpoint", "token", "ca_bundle", "notify"), ((str,), "a text")),
    "insecure": ((bool,), "true or false"),
    "retry_s": ((int, float), "a number of seconds (0 or more)"),
}
BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class Endpoint(NamedTuple):
    url: str
    token: str | None = None
    renew_at: float = math.inf  # Unix time at which the token has to be renewed

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"  # a token has no place in a traceback


@dataclass(frozen=True)
class Config:
    """The settings of a connection to one server."""

    endpoint: str | None
    """URL without a trailing slash; None: the local server, started on demand."""
    token: str | None = field(default=None, repr=False)
    """None: none is sent (the local server's own is read from its state directory)."""
    insecure: bool = False  # the token may travel over plain http to another host
    ca_bundle: str | None = None  # file of certificate authorities; None: the default ones
    retry_s: float | None = None
    """Seconds in which a call is repeated while no server answers; 0: not. None: see `patience_s`.
    """
    notify: str | None = field(default=None, repr=False)  # webhook of jobs that name none
    state_dir: Path | None = None
    """State directory of the local server; None: the default one, or
    `endpoint` is another server.
    """

    def patience_s(self, *, answered: bool = True) -> float:
        """Seconds in which a call is repeated while no server answers. `answered`: this address has
        answered before. The local server is started again when it is needed."""
        if self.retry_s is not None:
            return self.retry_s
        return RESTART_S if answered and self.endpoint is not None else RETRY_S_DEFAULT


def config_file() -> Path:
    """Path of the configuration file, which may not exist: `$CLIENT_LIB_CONFIG`, else
    `~/.config/client_lib/config.toml`."""
    given = os.environ.get(CONFIG)
    return (
        Path(given).expanduser()
        if given
        else Path.home() / ".config" / "client_lib" / "config.toml"
    )


def resolve(
    endpoint: str | None = None,
    token: str | None = None,
    *,
    profile: str | None = None,
    insecure: bool | None = None,
    ca_bundle: str | None = None,
    retry_s: float | None = None,
) -> Config:
    """The server that these arguments, the environment and the configuration file mean, in this
    order. Raises InvalidRequest: an endpoint that is no http(s) URL, an unknown profile, a broken
    file or variable, a `retry_s` that is no number of seconds."""
    if endpoint is None and profile is None:
        endpoint = os.environ.get(ENDPOINT) or None
    chosen = (
        {}
        if endpoint
        else profile_values(profile or os.environ.get(PROFILE) or None, config_file())
    )
    url = check_endpoint(endpoint or chosen.get("endpoint", LOCAL))
    retries = _seconds("retry_s", retry_s), _seconds(RETRY_S, os.environ.get(RETRY_S))
    return Config(
        url,
        (token or os.environ.get(TOKEN) or chosen.get("token")) if url else None,
        _first(insecure, _flag(INSECURE), chosen.get("insecure"), False),
        _first(ca_bundle, os.environ.get(CA_BUNDLE) or None, chosen.get("ca_bundle"), None),
        _first(*retries, chosen.get("retry_s"), None),
        os.environ.get(NOTIFY) or chosen.get("notify"),
        None if url else chosen_state_dir(),
    )


def check_endpoint(endpoint: str) -> str | None:
    """The URL without a trailing slash; None for `local`. Raises
    InvalidRequest for what is neither.
    """
    if endpoint == LOCAL:
        return None
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InvalidRequest(
            f"endpoint {endpoint!r} is no address of a server",
            hint="write https://host, http://host:port or `local`",
        )
    if parts.username or parts.password:
        raise InvalidRequest(
            "the endpoint holds a user or password", hint=f"give the token as token= or in {TOKEN}"
        )
    return endpoint.rstrip("/")


def read_profiles(path: Path) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """The default profile's name and all profiles of the file; (None, {}) without a file.
    Raises InvalidRequest: the file can't be read, or is no valid configuration file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None, {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} can't be read: {error}") from None
    data = parse_toml(text, path)
    profiles = data.pop("profiles") if isinstance(data.get("profiles"), dict) else {}
    default = data.pop("profile", None)
    if not isinstance(default, str | None):
        raise InvalidRequest(
            f"{path}: `profile` is no name", hint="the values of a profile are in [profiles.NAME]"
        )
    if data:
        raise InvalidRequest(
            f"{path}: unknown key {next(iter(data))!r}",
            hint="it may hold `profile` and [profiles.NAME]",
        )
    for name, values in profiles.items():
        check_profile(path, name, values)
    return default, profiles


def check_profile(path: Path, name: str, values: Mapping[str, object]) -> None:
    """Raises InvalidRequest for a key that no profile has, or a value that it can't have."""
    if not isinstance(values, Mapping):
        raise InvalidRequest(
            f"{path}: profile {name!r} is no table", hint=f"write it as [profiles.{name}]"
        )
    for key, value in sorted(values.items()):
        if key not in _KEYS:
            hint = f"there are: {', '.join(sorted(_KEYS))}"
            raise InvalidRequest(f"{path}: profile {name!r} holds unknown {key!r}", hint=hint)
        types, wanted = _KEYS[key]
        if not isinstance(value, types):
            raise InvalidRequest(f"{path}: {key}={value!r} of profile {name!r} is not {wanted}")
        if key == "retry_s":
            _seconds(f"{path}: profile {name!r}: retry_s", value)


def profile_values(name: str | None, path: Path) -> dict[str, Any]:
    """The values of the profile; None: of the profile in use. Raises InvalidRequest: there is no
    profile of this name.
    """
    if name == LOCAL:
        return {}
    default, profiles = read_profiles(path)
    wanted = name or default
    if wanted is None or wanted == LOCAL:
        return {}
    if wanted not in profiles:
        raise InvalidRequest(
            f"no profile {wanted!r} in {path}",
            hint=f"there are: {', '.join(sorted({*profiles, LOCAL}))}",
        )
    return profiles[wanted]


def _flag(name: str) -> bool | None:
    value = os.environ.get(name)
    if not value:
        return None if value is None else False  # the empty text turns it off
    if value.lower() not in BOOLEANS:
        raise InvalidRequest(f"{name}={value!r} is neither true nor false")
    return BOOLEANS[value.lower()]


def _seconds(name: str, value: Any) -> float | None:
    """The number; None: no value is given. Raises InvalidRequest."""
    if value is None or value == "":
        return None
    with suppress(ValueError, OverflowError):
        number = float(value)
        if 0 <= number < math.inf:
            return number
    raise InvalidRequest(f"{name}={value!r} is no number of seconds (0 or more)")


def _first(*values: object) -> Any:
    """The first that isn't None; the last if all are."""
    return next((value for value in values if value is not None), None)
