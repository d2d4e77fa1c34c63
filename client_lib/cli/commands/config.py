"""`client-lib config`: profiles of the configuration file, which `transport.config` reads. Comments in it stay."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client_lib.cli import printer
from client_lib.cli.parameters import JSON, CommandApp, TextOrJson, help_without_command, key_value, profile_names
from client_lib.errors import InvalidRequest
from client_lib.transport import config
from client_lib.transport.config import LOCAL
from client_lib.worker.directory import write_file

if TYPE_CHECKING:
    import tomlkit

MASK = "***"

app = CommandApp(invoke_without_command=True)


@app.callback()
def configuration(ctx: typer.Context) -> None:
    """Profiles: a server's address and token under a name.

    \b
    First wins: --endpoint and --profile; CLIENT_LIB_ENDPOINT, CLIENT_LIB_TOKEN,
    CLIENT_LIB_PROFILE; the profile in use; else the local server.
    """
    help_without_command(ctx)


@app.command()
def show(output: TextOrJson = "text") -> None:
    """The profiles, and the server that commands talk to now. Tokens are not shown."""
    path = config.config_file()
    default, profiles = config.read_profiles(path)
    now = config.resolve()
    secret = ("token", "notify")
    shown = {name: {key: MASK if key in secret else value for key, value in p.items()} for name, p in profiles.items()}
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
    epilog="""\b
Examples:
  client-lib config set lab endpoint=https://jobs.lab.example token=-     asks for the token
  client-lib config set lab ca_bundle=/etc/ssl/lab.pem retry_s=60
  client-lib config set lab ca_bundle=                                    removes it
""",
)
def set_profile(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", autocompletion=profile_names)],
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")],
) -> None:
    """Make or change a profile: endpoint, token, ca_bundle, insecure, retry_s, notify.

    The first one made is used at once."""
    if profile == LOCAL:
        raise InvalidRequest(f"the profile {LOCAL!r} is the local server, and has nothing to set")
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
    _write(path, file)
    printer.hint(f"profile {profile} is in {path}" + (", and in use" if default == profile else ""))


def _setting(text: str) -> tuple[str, Any]:
    key, value = key_value(text)
    if not value:
        return key, None
    if key in ("token", "notify"):
        return key, _secret(key) if value == "-" else value
    if key == "endpoint":
        return key, config.check_endpoint(value) or LOCAL
    if key == "insecure":
        return key, config.BOOLEANS.get(value.lower(), value)
    if key == "retry_s":
        with suppress(ValueError):  # check_profile refuses the text
            return key, float(value)
    return key, value


def _secret(key: str) -> str:
    """Read a secret from the terminal without an echo, or from a pipe: `ps` shows one on a command line."""
    if sys.stdin.isatty():
        return str(typer.prompt(key, hide_input=True, err=True))
    return sys.stdin.readline().strip()


@app.command()
def use(profile: Annotated[str, typer.Argument(metavar="PROFILE", autocompletion=profile_names)]) -> None:
    """Use this profile where none is named. `local`: the local server."""
    path = config.config_file()
    config.profile_values(profile, path)
    file = _parsed(path)
    file["profile"] = profile
    _write(path, file)
    printer.hint(f"{profile} is in use")


# --- the file


def _parsed(path: Path) -> tomlkit.TOMLDocument:
    """The file, which `read_profiles` understands, with its comments."""
    import tomlkit

    return tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else "")


def _write(path: Path, file: tomlkit.TOMLDocument) -> None:
    """Raises InvalidRequest: it can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(os.path.realpath(path), file.as_string().encode())  # a link to a file kept elsewhere stays a link
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written: {error.strerror}") from None
