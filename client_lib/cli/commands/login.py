"""`client-lib login` and `logout`: tokens of the server's issuer, which `transport.logins` keeps."""

from __future__ import annotations

from client_lib.cli import http_client, printer
from client_lib.cli.connection import Connection, read
from client_lib.cli.parameters import CommandApp
from client_lib.errors import InvalidRequest, NotSupported, Unauthorized
from client_lib.reports.table import harmless
from client_lib.spec import paths
from client_lib.transport import logins
from client_lib.transport.config import Endpoint
from client_lib.transport.rest import Rest

app = CommandApp()


@app.command(
    epilog="""\b
Examples:
  client-lib config set lab endpoint=https://jobs.lab.example
  client-lib login                               the server of the profile in use
"""
)
def login(connection: Connection) -> None:
    """Log in at a server by its OpenID Connect issuer: confirm the code in any browser. The token is renewed."""
    url = _server(connection)
    if connection.config.token:
        raise InvalidRequest(
            "CLIENT_LIB_TOKEN or the profile has a token, which is used instead of a login",
            hint="unset the variable, or `client-lib config set PROFILE token=`",
        )
    rest = Rest(lambda: Endpoint(url), connection.config, http_client.connect)
    try:
        offer = read(rest, paths.LOGIN, "issuer")
    except Unauthorized as unknown:  # as older servers answer to any path
        raise NotSupported("this server's version has no login", hint="its operator gives you a token") from unknown
    device = logins.begin(url, offer, connection.config)
    printer.hint(harmless(f"open {device.link} and confirm the code {device.answer['user_code']}"))
    logins.finish(device)
    printer.hint(f"logged in at {url} as {connection.server_info()['user']}")


@app.command(
    epilog="""\b
Examples:
  client-lib logout
  client-lib logout --profile lab                the server of another profile
"""
)
def logout(connection: Connection) -> None:
    """Forget the login at a server, and ask its issuer to revoke it."""
    url = _server(connection)
    printer.hint(f"logged out at {url}" if logins.log_out(url) else f"there is no login at {url}")


def _server(connection: Connection) -> str:
    url = connection.config.endpoint
    if url is None:
        raise InvalidRequest(
            "the local server has no login", hint="name another one with --endpoint or `client-lib config`"
        )
    return url
