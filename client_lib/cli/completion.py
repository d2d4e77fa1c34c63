"""Names that a shell is offered while a user types. A shell waits: no server is started, no request
repeated, and no error printed, which would stand in the line."""

from contextlib import suppress
from typing import Any

from client_lib.cli.connection import Connection
from client_lib.errors import ClientLibError
from client_lib.spec import paths
from client_lib.transport import config, http_client
from client_lib.transport.rest import Rest

COUNT = 50
"""Names that a shell is offered at most."""
PATIENCE_S = 1.0
"""Longest wait for the server while a user types."""


def profiles(beginning: str) -> list[str]:
    """Names of profiles that begin with `beginning`; none if the configuration file can't be
    read."""
    try:
        known = {*config.read_profiles(config.config_file())[1], config.LOCAL}
    except ClientLibError:
        return []
    return sorted(name for name in known if name.startswith(beginning))


def names(kind: str, beginning: str, options: dict[str, Any]) -> list[tuple[str, str]]:
    """Names of `jobs` or `groups` that begin with `beginning`, each with its state. `options`: of
    the command line so far."""
    connection = Connection(options.get("endpoint"), options.get("profile"))
    params = {"limit": str(COUNT), "name": beginning or None}
    if kind == "groups":
        params["grouped"] = "true"
    with suppress(ClientLibError, KeyError, TypeError):
        rest = Rest(connection.running, connection.config, http_client.connect)
        found = rest.read(paths.JOBS, "jobs", params, read_s=PATIENCE_S, retry_s=0)[kind]
        return [(each["name"], each["state"]) for each in found]
    return []
