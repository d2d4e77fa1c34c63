"""`client-lib mls-config`: the two files of `mls`, the ML Space platform's command line.

~/.mls/config        [default] region, output, endpoint_url
~/.mls/credentials   [default] key_id, key_secret, x_workspace_id, x_api_key
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import CommandApp
from client_lib.errors import Conflict, InvalidRequest
from client_lib.worker.directory import write_file

OURS = "client-lib"
"""x_api_key of a profile that this command has written, so that a later call may replace it. The server wants none."""
WORKSPACE = "00000000-0000-4000-8000-000000000000"
_HEADER = re.compile(r"\s*\[")
REGION = "SR006"  # one that every version of mls knows; a server accepts every region

app = CommandApp()


@app.command(
    "mls-config",
    epilog="""\b
Examples:
  client-lib mls-config                            then: mls job list
  client-lib mls-config --mls-profile lab          then: mls job list --profile lab
  client-lib mls-config --profile lab --print      shows both files, the token too
""",
)
def mls_config(
    connection: Connection,
    name: Annotated[str, typer.Option("--mls-profile", metavar="NAME", help="Profile of mls.")] = "default",
    region: Annotated[str, typer.Option(help="Region that mls names in its requests.")] = REGION,
    show: Annotated[bool, typer.Option("--print", help="Print the files instead of writing them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a profile of mls that means another server.")] = False,
) -> None:
    """Point `mls`, the command line of the ML Space platform, at this server.

    Writes a profile into ~/.mls/config and ~/.mls/credentials; other profiles there stay as they are.
    """
    if not name.strip() or any(character in name for character in "[]\n"):
        raise InvalidRequest(f"--mls-profile {name!r} can't be the name of a section")
    user = connection.server_info()["user"]  # starts the local server, and checks the token
    url, token, _ = connection.running()
    files = {
        "config": {"region": region, "output": "json", "endpoint_url": f"{url}/public/v2"},
        "credentials": {"key_id": user, "key_secret": token or "", "x_workspace_id": WORKSPACE, "x_api_key": OURS},
    }
    if show:
        for file, values in files.items():
            printer.data(f"# ~/.mls/{file}\n{with_section('', name, values)}")
    else:
        _write(Path.home() / ".mls", name, files, force)
    if connection.is_local:
        printer.hint(
            "the local server has another address after each start: run this again then, or give it a port of its "
            "own (`client-lib serve --port 8000`)"
        )


def _write(folder: Path, name: str, files: Mapping[str, Mapping[str, str]], force: bool) -> None:
    texts = {file: _read(folder / file) for file in files}
    _refuse_to_replace(folder, name, texts, files, force)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for file, values in files.items():
            write_file(os.path.realpath(folder / file), with_section(texts[file], name, values).encode())
    except OSError as error:
        raise InvalidRequest(f"{folder} can't be written: {error.strerror}") from error
    printer.hint(f"profile {name} in {folder} means {files['config']['endpoint_url']}")


def _refuse_to_replace(
    folder: Path, name: str, texts: Mapping[str, str], files: Mapping[str, Mapping[str, str]], force: bool
) -> None:
    """Raises Conflict: the profile holds credentials of another service, which would be lost."""
    config, credentials = (section(texts[file], name) for file in ("config", "credentials"))
    ours = credentials.get("x_api_key") == OURS or not (config or credentials)
    if ours or force or config.get("endpoint_url") == files["config"]["endpoint_url"]:
        return
    raise Conflict(
        f"profile {name} in {folder} means another server: {config.get('endpoint_url', 'the default one of mls')}",
        hint="choose another one (--mls-profile NAME), or replace it with --force",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} can't be read: {error}") from error


# --- the files as text


def section(text: str, name: str) -> dict[str, str]:
    """The values under `[name]`; {} if there is no such section.

    Raises InvalidRequest: `mls` could not read it either.
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
    start = next((at for at, line in enumerate(lines) if line.strip() == f"[{name}]"), len(lines))
    end = next((at for at in range(start + 1, len(lines)) if _HEADER.match(lines[at])), len(lines))
    new = [f"[{name}]", *(f"{key} = {value}" for key, value in values.items())]
    gap = [""] if end < len(lines) else []
    before = lines[:start] + ([""] if start == len(lines) and lines and lines[-1].strip() else [])
    return "\n".join([*before, *new, *gap, *lines[end:]]) + "\n"
