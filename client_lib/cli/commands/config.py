"""`client-lib config`, `login`, `logout` and `mls-config`: which server commands call, and with
which token.

`transport.config` reads the profiles of the configuration file, whose comments stay;
`transport.logins` keeps the tokens of a server's issuer; `mls` is the ML Space platform's command
line.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from client_lib import visible_text
from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import (
    CommandApp,
    TextOrJson,
    key_value,
    profile_names,
    require_command,
)
from client_lib.durable import write_file
from client_lib.errors import Conflict, InvalidRequest, NotSupported, Unauthorized
from client_lib.spec import paths
from client_lib.spec.secrets import MASK
from client_lib.transport import config, http_client, logins
from client_lib.transport.config import LOCAL, Endpoint
from client_lib.transport.rest import Rest

if TYPE_CHECKING:
    import tomlkit

_SECRET = ("token", "notify")

app = CommandApp()
group = CommandApp(invoke_without_command=True)
app.add_typer(group, name="config")


@group.callback()
def configuration(ctx: typer.Context) -> None:
    """Profiles: a server's address and token under a name.

    \b
    The server of a command is the first of these that is given: --endpoint and --profile;
    CLIENT_LIB_ENDPOINT, CLIENT_LIB_TOKEN, CLIENT_LIB_PROFILE; the profile in use; the local server.
    """
    require_command(ctx)


@group.command()
def show(output: TextOrJson = "text") -> None:
    """The profiles, and the server that commands talk to now. Tokens are not shown."""
    path = config.config_file()
    default, profiles = config.read_profiles(path)
    now = config.resolve()
    shown = {
        name: {key: MASK if key in _SECRET else value for key, value in p.items()}
        for name, p in profiles.items()
    }
    if output == "json":
        printer.data_json(
            {
                "file": str(path),
                "profile": default,
                "profiles": shown,
                "endpoint": now.endpoint or LOCAL,
            }
        )
        return
    named = next((name for name in (config.ENDPOINT, config.PROFILE) if os.environ.get(name)), None)
    because = f" (by {named})" if named else f" (by profile {default})" if default else ""
    printer.data(f"file: {path}{'' if path.exists() else ' (not there)'}")
    printer.data(f"server: {now.endpoint or 'the local one, started on demand'}{because}")
    for name, values in shown.items():
        printer.data(f"\n{name}{' (in use)' if name == default else ''}")
        printer.lines(f"  {key} = {value}" for key, value in values.items())


@group.command(
    "set",
    examples="""
  client-lib config set lab endpoint=https://jobs.lab.example token=-     asks for the token
  client-lib config set lab ca_bundle=/etc/ssl/lab.pem retry_s=60
  client-lib config set lab ca_bundle=                                    removes it
""",
)
def set_profile(
    profile: Annotated[str, Argument(metavar="PROFILE", autocompletion=profile_names)],
    settings: Annotated[list[str], Argument(metavar="KEY=VALUE...")],
) -> None:
    """Make or change a profile: endpoint, token, ca_bundle, insecure, retry_s, notify.

    The first profile is in use as soon as it is made."""
    if profile == LOCAL:
        raise InvalidRequest(f"the profile {LOCAL!r} is the local server, and has nothing to set")
    if not profile.strip():
        raise InvalidRequest(
            "PROFILE is empty", hint="client-lib config set NAME endpoint=https://jobs.lab.example"
        )
    values = dict(map(_setting, settings))
    path = config.config_file()
    default, profiles = config.read_profiles(path)
    file = _parsed(path)
    changed = file.setdefault("profiles", {}).setdefault(profile, {})
    for key, value in values.items():
        if value is None:
            changed.pop(key, None)
        else:
            changed[key] = value
    config.check_profile(path, profile, changed)
    if not profiles and default is None:
        file["profile"] = default = profile
    _write(path, file.as_string())
    printer.hint(f"profile {profile} is in {path}" + (", and in use" if default == profile else ""))


def _setting(text: str) -> tuple[str, Any]:
    """A key and its value; None: it is to be removed."""
    key, value = key_value(text)
    if not value:
        return key, None
    if key in _SECRET and value == "-":  # `ps` shows what stands on a command line
        is_typed = sys.stdin.isatty()
        return key, str(
            typer.prompt(key, hide_input=True, err=True)
        ) if is_typed else sys.stdin.readline().strip()
    if key == "endpoint":
        return key, config.check_endpoint(value) or LOCAL
    if key == "insecure":
        return key, config.BOOLEANS.get(value.lower(), value)
    if key == "retry_s":
        with suppress(ValueError):  # check_profile refuses the text
            return key, float(value)
    return key, value


@group.command()
def use(profile: Annotated[str, Argument(metavar="PROFILE", autocompletion=profile_names)]) -> None:
    """Make a profile the one in use, for commands that name none. `local`: the local server."""
    path = config.config_file()
    config.profile_values(profile, path)
    file = _parsed(path)
    file["profile"] = profile
    _write(path, file.as_string())
    printer.hint(f"{profile} is in use")


def _parsed(path: Path) -> tomlkit.TOMLDocument:
    """The file, which `read_profiles` understands, with its comments."""
    import tomlkit

    return tomlkit.parse(_text(path))


def _write(path: Path, text: str) -> None:
    """Write a file for this user alone; a link to a file that is kept elsewhere stays a
    link. Raises InvalidRequest.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(os.path.realpath(path), text.encode())
    except (OSError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"{path} can't be written: {getattr(error, 'strerror', error)}"
        ) from None


# --- logins


@app.command(
    examples="""
  client-lib config set lab endpoint=https://jobs.lab.example
  client-lib login                               the server of the profile in use
"""
)
def login(connection: Connection) -> None:
    """Log in at a server by its OpenID Connect issuer: confirm the code in any
    browser. The token is renewed.
    """
    url = _server(connection)
    if connection.config.token:
        raise InvalidRequest(
            "CLIENT_LIB_TOKEN or the profile has a token, which is used instead of a login",
            hint="unset the variable, or `client-lib config set PROFILE token=`",
        )
    rest = Rest(lambda: Endpoint(url), connection.config, http_client.connect)
    try:
        offer = rest.read(paths.LOGIN, "issuer")
    except Unauthorized as unknown:  # as older servers answer to any path
        raise NotSupported(
            "this server's version has no login", hint="its operator gives you a token"
        ) from unknown

    def show(link: str, code: str) -> None:
        printer.hint(visible_text.one_line(f"open {link} and confirm the code {code}"))

    logins.log_in(url, offer, connection.config, show)
    printer.hint(f"logged in at {url} as {connection.server_info()['user']}")


@app.command(
    examples="""
  client-lib logout
  client-lib logout --profile lab                the server of another profile
"""
)
def logout(connection: Connection) -> None:
    """Forget the login at a server, and ask its issuer to revoke it."""
    url = _server(connection)
    printer.hint(f"logged out at {url}" if logins.log_out(url) else f"there is no login at {url}")


def _server(connection: Connection) -> str:
    if connection.config.endpoint:
        return connection.config.endpoint
    raise InvalidRequest(
        "the local server has no login",
        hint="name another one with --endpoint or `client-lib config`",
    )


# --- the two files of `mls`, the ML Space platform's command line
#
# ~/.mls/config        [default] region, output, endpoint_url
# ~/.mls/credentials   [default] key_id, key_secret, x_workspace_id, x_api_key

# x_api_key of a profile that this command wrote and may replace; the server wants none
OURS = "client-lib"
WORKSPACE = "00000000-0000-4000-8000-000000000000"
REGION = "SR006"  # one that every version of mls knows; a server accepts every region


@app.command(
    "mls-config",
    examples="""
  client-lib mls-config                            then: mls job list
  client-lib mls-config --mls-profile lab          then: mls job list --profile lab
  client-lib mls-config --profile lab --print      shows both files, the token too
""",
)
def mls_config(
    connection: Connection,
    name: Annotated[
        str, Option("--mls-profile", metavar="NAME", help="Profile of mls.")
    ] = "default",
    region: Annotated[str, Option(help="Region that mls names in its requests.")] = REGION,
    show: Annotated[
        bool, Option("--print", help="Print the files instead of writing them.")
    ] = False,
    force: Annotated[
        bool, Option("--force", help="Replace a profile of mls that means another server.")
    ] = False,
) -> None:
    """Point `mls`, the command line of the ML Space platform, at this server.

    Writes a profile into ~/.mls/config and ~/.mls/credentials; other profiles there stay as they
    are.
    """
    for option, value in (("--mls-profile", name), ("--region", region)):
        if not value.strip() or not value.isprintable() or not {"[", "]"}.isdisjoint(value):
            raise InvalidRequest(
                f"{option} {value!r} can't stand in a file of mls", hint="write letters and digits"
            )
    user = connection.server_info()["user"]  # starts the local server, and checks the token
    url, token, _ = connection.running()
    files = {
        "config": {"region": region, "output": "json", "endpoint_url": f"{url}/public/v2"},
        "credentials": {
            "key_id": user,
            "key_secret": token or "",
            "x_workspace_id": WORKSPACE,
            "x_api_key": OURS,
        },
    }
    if show:
        for file, values in files.items():
            printer.data(f"# ~/.mls/{file}\n{with_section('', name, values)}")
    else:
        folder = Path.home() / ".mls"
        texts = {file: _text(folder / file) for file in files}
        now, credentials = (section(texts[file], name) for file in ("config", "credentials"))
        ours = credentials.get("x_api_key") == OURS or not (now or credentials)
        if not (ours or force or now.get("endpoint_url") == files["config"]["endpoint_url"]):
            raise Conflict(
                f"profile {name} in {folder} means another server: "
                + now.get("endpoint_url", "the default one of mls"),
                hint="choose another one (--mls-profile NAME), or replace it with --force",
            )
        for file, values in files.items():
            _write(folder / file, with_section(texts[file], name, values))
        printer.hint(f"profile {name} in {folder} means {files['config']['endpoint_url']}")
    if connection.config.endpoint is None:  # the local server
        printer.hint(
            "the local server has another address after each start: run this again then, or give "
            "it a port of its own (`client-lib serve --port 8000`)"
        )


def _text(path: Path) -> str:
    """The text of a file; "": it is missing."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} can't be read: {error}") from error


def section(text: str, name: str) -> dict[str, str]:
    """The values under `[name]`; {}: no such section. Raises InvalidRequest: `mls`
    could not read it either.
    """
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise InvalidRequest(f"a file of mls can't be read: {error}") from error
    return dict(parser[name]) if parser.has_section(name) else {}


def with_section(text: str, name: str, values: Mapping[str, str]) -> str:
    """`text` with exactly `values` under `[name]`; all other lines stay as they are."""
    lines = text.splitlines()
    headers = [configparser.RawConfigParser.SECTCRE.match(line.strip()) for line in lines]
    start = next(
        (at for at, header in enumerate(headers) if header and header["header"] == name), len(lines)
    )
    end = next((at for at in range(start + 1, len(lines)) if headers[at]), len(lines))
    new = [f"[{name}]", *(f"{key} = {value}" for key, value in values.items())]
    gap = [""] if end < len(lines) else []
    before = lines[:start] + ([""] if start == len(lines) and lines and lines[-1].strip() else [])
    return "\n".join([*before, *new, *gap, *lines[end:]]) + "\n"
