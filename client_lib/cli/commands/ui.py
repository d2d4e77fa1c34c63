"""`client-lib ui`: the server's pages in a browser."""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from client_lib.cli import printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, CommandApp, JobOrAll, TextOrJson
from client_lib.spec.state_dir import make_private, state_dir
from client_lib.worker.directory import write_file

app = CommandApp()


@app.command(
    epilog="""\b
Examples:
  client-lib ui                                  the jobs
  client-lib ui train-x7k2m                      this job
  client-lib ui --no-browser                     print the link, to open it elsewhere
"""
)
def ui(
    connection: Connection,
    name: JobOrAll = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser, or print the link.")] = True,
    output: TextOrJson = "text",
) -> None:
    """Open the server's pages in a browser: jobs, logs, curves. The link logs you in and works once."""
    job = "" if name is None else f"&job={quote(connection.job(name)['name'], safe='')}"
    link = connection.api.login_link()
    url = f"{connection.rest.endpoint.url.rstrip('/')}/{link.path}{job}"
    # elsewhere on Linux there is no browser, or one that would run in the terminal
    has_screen = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if output == JSON:
        printer.data_json({"url": url, "expires_s": link.expires_s})
    elif not (browser and has_screen and _opened(url, connection.config.state_dir)):
        printer.data(url)
        printer.hint(f"open it within {link.expires_s / 60:.0f} min; it works once")


def _opened(url: str, directory: Path | None) -> bool:
    """Open the link by a file that leads to it: every account of this machine can read a browser's arguments."""
    try:
        file = make_private(directory or state_dir()) / "login.html"
        write_file(str(file), f'<meta http-equiv="refresh" content="0;url={html.escape(url)}">\n'.encode())
    except OSError:  # the link is printed
        return False
    return webbrowser.open(file.as_uri())
