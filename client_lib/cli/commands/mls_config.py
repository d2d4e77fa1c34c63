"""`client-lib mls-config`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from client_lib.cli import mls_files, printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import connected
from client_lib.errors import Conflict, InvalidRequest

REGION = "SR006"  # one that every version of mls knows; a server answers for all unless it is told otherwise


@click.command(
    "mls-config",
    epilog="""\b
Examples:
  client-lib mls-config                            then: mls job list
  client-lib mls-config --mls-profile lab          then: mls job list --profile lab
  client-lib mls-config --profile lab --print      shows both files, the token too
""",
)
@click.option("--mls-profile", "name", metavar="NAME", default="default", show_default=True, help="Profile of mls.")
@click.option("--region", default=REGION, show_default=True, help="Region that mls names in its requests.")
@click.option("--print", "show", is_flag=True, help="Print the files instead of writing them.")
@click.option("--force", is_flag=True, help="Replace a profile of mls that means another server.")
@connected
def command(connection: Connection, name: str, region: str, show: bool, force: bool) -> None:
    """Point `mls`, the command line of the ML Space platform, at this server.

    Writes a profile into ~/.mls/config and ~/.mls/credentials; other profiles there stay as they are.
    """
    if not name.strip() or any(character in name for character in "[]\n"):
        raise InvalidRequest(f"--mls-profile {name!r} can't be the name of a section")
    user = connection.client.server_info().user  # starts the local server, and tells a wrong token
    url, token = connection.address()
    files = {"config": mls_files.config(url, region), "credentials": mls_files.credentials(user, token or "")}
    if show:
        for file, values in files.items():
            printer.data(f"# ~/.mls/{file}\n{mls_files.with_section('', name, values)}")
    else:
        _write(Path.home() / ".mls", name, files, force)
    if connection.is_local:
        printer.hint(
            "the local server has another address when it starts anew: run this again then, or give it a port of its "
            "own (`client-lib serve --port 8000`)"
        )


def _write(folder: Path, name: str, files: Mapping[str, Mapping[str, str]], force: bool) -> None:
    texts = {file: _read(folder / file) for file in files}
    _refuse_to_replace(folder, name, texts, files, force)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for file, values in files.items():
            _replace(folder / file, mls_files.with_section(texts[file], name, values))
    except OSError as error:
        raise InvalidRequest(f"{folder} can't be written: {error.strerror}") from error
    printer.hint(f"profile {name} in {folder} means {files['config']['endpoint_url']}")


def _refuse_to_replace(
    folder: Path, name: str, texts: Mapping[str, str], files: Mapping[str, Mapping[str, str]], force: bool
) -> None:
    """Raises Conflict: the profile holds credentials of another service, which nobody could bring back."""
    config, credentials = (mls_files.section(texts[file], name) for file in ("config", "credentials"))
    ours = credentials.get("x_api_key") == mls_files.OURS or not (config or credentials)
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


def _replace(path: Path, text: str) -> None:
    """0600: they hold a token. Whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, os.path.realpath(path))
