"""`client-lib config`: profiles of the configuration file, which `transport.config` reads.

The file is changed as text, so that a user's comments stay. Each change is read back before it is written: a file in a
layout that this module does not understand is left alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from client_lib.cli import printer
from client_lib.cli.parameters import JSON, CommandApp, TextOrJson, help_without_command
from client_lib.errors import ClientLibError, InvalidRequest
from client_lib.transport import config
from client_lib.transport.config import LOCAL

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
    text = with_profile(_text(path), profile, values)
    if not profiles and default is None:
        text, default = with_default(text, profile), profile
    write(path, text, (default, {**profiles, profile: changed}))
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
        return config.BOOLEANS.get(value.lower(), value)
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


@app.command()
def use(profile: Annotated[str, typer.Argument(metavar="PROFILE")]) -> None:
    """Use this profile where none is named. `local`: the local server."""
    path = config.config_file()
    _, profiles = config.read_profiles(path)
    if profile != LOCAL and profile not in profiles:
        raise InvalidRequest(
            f"no profile {profile!r} in {path}", hint=f"there are: {', '.join(sorted({*profiles, LOCAL}))}"
        )
    write(path, with_default(_text(path), profile), (profile, profiles))
    printer.hint(f"{profile} is in use")


def _text(path: Any) -> str:
    return str(path.read_text(encoding="utf-8")) if path.exists() else ""


# --- the file as text

Value = str | bool | float

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[")


def with_profile(text: str, name: str, values: dict[str, Value | None]) -> str:
    """`text` with these keys of the profile set; None removes a key. A profile that isn't there is appended."""
    lines = text.splitlines()
    start = _section(lines, name)
    if start is None:
        lines += [*([""] if lines else []), f"[profiles.{_key(name)}]"]
        start = len(lines)
    for key, value in values.items():
        _set(lines, start, key, value)
    return "\n".join(lines) + "\n"


def with_default(text: str, name: str) -> str:
    """`text` with `profile = name` at its top level."""
    lines = text.splitlines()
    _set(lines, 0, "profile", name)
    return "\n".join(lines) + "\n"


def _section(lines: list[str], name: str) -> int | None:
    """Index of the line after the profile's header."""
    header = re.compile(
        rf"\s*\[\s*profiles\s*\.\s*(?:{re.escape(name)}|{re.escape(json.dumps(name))}|'{re.escape(name)}')\s*\]"
    )
    return next((at + 1 for at, line in enumerate(lines) if header.match(line)), None)


def _set(lines: list[str], start: int, key: str, value: Value | None) -> None:
    end = next((at for at in range(start, len(lines)) if _HEADER.match(lines[at])), len(lines))
    there = re.compile(rf"\s*{re.escape(key)}\s*=")
    found = next((at for at in range(start, end) if there.match(lines[at])), None)
    new = [] if value is None else [f"{key} = {json.dumps(value, ensure_ascii=False)}"]
    if found is None:
        lines[start:start] = new
    else:
        lines[found : found + 1] = new


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def write(path: Path, text: str, expected: tuple[str | None, dict[str, dict[str, Any]]]) -> None:
    """Replace the file by `text` if it means `expected`.

    Raises InvalidRequest if it would mean something else, or can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, text, lambda written: _check(written, path, expected))
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written: {error.strerror}") from None


def replace_file(path: Path, text: str, check: Callable[[Path], None] = lambda _: None) -> None:
    """Replace the file by `text`, whole or not at all; 0600, as it may hold tokens. `check` is called with the path of
    the new file before, and may raise. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        check(Path(temporary))
        os.replace(temporary, os.path.realpath(path))  # a link to a file kept elsewhere stays a link
    except BaseException:
        os.unlink(temporary)
        raise


def _check(written: Path, path: Path, expected: tuple[str | None, dict[str, dict[str, Any]]]) -> None:
    try:
        meant = config.read_profiles(written)
    except ClientLibError as error:
        raise InvalidRequest(error.message.replace(str(written), str(path)), hint=error.hint) from error
    if meant != expected:
        raise InvalidRequest(f"{path} is laid out in a way that can't be changed from here", hint="edit it by hand")
