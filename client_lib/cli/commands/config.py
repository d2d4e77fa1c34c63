"""`client-lib config`: profiles of the configuration file."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from client_lib.cli import printer, profile_file
from client_lib.cli.parameters import JSON, Command, TextOrJson, command_app, help_without_command
from client_lib.errors import InvalidRequest
from client_lib.transport import config
from client_lib.transport.config import LOCAL

MASK = "***"
BOOLEANS = {"true": True, "false": False}

app = command_app(invoke_without_command=True)


@app.callback()
def configuration(ctx: typer.Context) -> None:
    """Profiles: a server's address and token under a name.

    \b
    First wins: --endpoint and --profile; CLIENT_LIB_ENDPOINT, CLIENT_LIB_TOKEN,
    CLIENT_LIB_PROFILE; the profile in use; else the local server.
    """
    help_without_command(ctx)


@app.command("show", cls=Command)
def show(output: TextOrJson = "text") -> None:
    """The profiles, and the server that commands talk to now. Tokens are not shown."""
    path = config.config_file()
    default, profiles = config.read_profiles(path)
    now = config.resolve()
    shown = {name: {key: MASK if key == "token" else value for key, value in p.items()} for name, p in profiles.items()}
    if output == JSON:
        facts = {"file": str(path), "profile": default, "profiles": shown, "endpoint": now.endpoint or LOCAL}
        printer.data_json(facts)
        return
    printer.data(f"file: {path}{'' if path.exists() else ' (not there)'}")
    printer.data(f"server: {now.endpoint or 'the local one, started on demand'}{_because(default)}")
    for name, values in shown.items():
        printer.data(f"\n{name}{' (in use)' if name == default else ''}")
        printer.lines(f"  {key} = {value}" for key, value in values.items())


def _because(default: str | None) -> str:
    for variable in (config.ENDPOINT, config.PROFILE):
        if os.environ.get(variable):
            return f" (by {variable})"
    return f" (by profile {default})" if default else ""


@app.command(
    "set",
    cls=Command,
    epilog="""\b
Examples:
  client-lib config set lab endpoint=https://jobs.lab.example token=-     asks for the token
  client-lib config set lab ca_bundle=/etc/ssl/lab.pem retry_s=60
  client-lib config set lab ca_bundle=                                    removes it
""",
)
def set_profile(
    profile: Annotated[str, typer.Argument(metavar="PROFILE")],
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")],
) -> None:
    """Make or change a profile: endpoint, token, ca_bundle, insecure, retry_s. The first one made is used at once."""
    if profile == LOCAL:
        raise InvalidRequest(f"the profile {LOCAL!r} is the local server, and has nothing to set")
    values = dict(map(_setting, settings))
    path = config.config_file()
    default, profiles = config.read_profiles(path)
    changed = {key: value for key, value in {**profiles.get(profile, {}), **values}.items() if value is not None}
    text = profile_file.with_profile(_text(path), profile, values)
    if not profiles and default is None:
        text, default = profile_file.with_default(text, profile), profile
    profile_file.write(path, text, (default, {**profiles, profile: changed}))
    printer.hint(f"profile {profile} is in {path}" + (", and in use" if default == profile else ""))


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE")
    if not value:
        return key, None
    if key == "token":
        return key, _secret() if value == "-" else value
    if key == "endpoint":
        return key, config.check_endpoint(value) or LOCAL
    return key, _typed(key, value)


def _typed(key: str, value: str) -> str | bool | float:
    if key == "insecure":
        return BOOLEANS.get(value.lower(), value)
    if key == "retry_s":
        try:
            return float(value)
        except ValueError:
            return value  # the check of the written file refuses it
    return value


def _secret() -> str:
    """Read the token from the terminal without an echo, or from a pipe: `ps` shows one on a command line."""
    if sys.stdin.isatty():
        return str(typer.prompt("token", hide_input=True, err=True))
    return sys.stdin.readline().strip()


@app.command("use", cls=Command)
def use(profile: Annotated[str, typer.Argument(metavar="PROFILE")]) -> None:
    """Use this profile where none is named. `local`: the local server."""
    path = config.config_file()
    _, profiles = config.read_profiles(path)
    if profile != LOCAL and profile not in profiles:
        raise InvalidRequest(
            f"no profile {profile!r} in {path}", hint=f"there are: {', '.join(sorted({*profiles, LOCAL}))}"
        )
    profile_file.write(path, profile_file.with_default(_text(path), profile), (profile, profiles))
    printer.hint(f"{profile} is in use")


def _text(path: Any) -> str:
    return str(path.read_text(encoding="utf-8")) if path.exists() else ""
