"""`python -m server_stub`: starts the server, makes a token, or checks a catalogue.

The module parses flags and imports the server only when it is needed. A failed start is one message on stderr and exit
code 1; a wrong flag, or a catalogue that is not valid, is exit code 2.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

from client_lib import __version__
from client_lib.errors import ClientLibError, InvalidRequest

FLAGS_OF_SETTINGS = (
    "state_dir",
    "data_dir",
    "host",
    "port",
    "users_file",
    "insecure_shared_uid",
    "database_url",
    "idle_exit_s",
)


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(argv)
    try:
        return _COMMANDS.get(options.command, _serve)(options)
    except ClientLibError as error:
        _print_error(error)
        return 1


def _print_error(error: ClientLibError) -> None:
    print(f"server_stub: {error.message}" + (f"\n{error.hint}" if error.hint else ""), file=sys.stderr)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="server_stub",
        description="The server of client_lib. Every setting is a variable CLIENT_LIB_SERVER_<NAME>; flags win.",
    )
    parser.add_argument("--version", action="version", version=f"server_stub {__version__}")
    parser.add_argument("--state-dir", type=_path, help="server.json, token, lock and log of this machine and user")
    parser.add_argument("--data-dir", type=_path, help="database, jobs, logs, snapshots (default: <state-dir>/data)")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="0: a free one (default)")
    parser.add_argument("--users-file", type=_path, help="TOML of users and digests of their tokens")
    shared = "let the jobs of all users run as this account, where each can read the others' secrets"
    parser.add_argument("--insecure-shared-uid", action="store_true", default=None, help=shared)
    parser.add_argument("--database-url", help="sqlite:///... or postgresql+psycopg://...")
    parser.add_argument("--idle-exit-s", type=float, help="end after this time without a job and a request")
    parser.add_argument(
        "--recover", action="store_true", help="rebuild a lost or damaged database from the files of its jobs"
    )
    commands = parser.add_subparsers(dest="command", metavar="")
    token = commands.add_parser("token", help="make a token for a user; it is shown once")
    token.add_argument("name")
    token.add_argument("--admin", action="store_true", help="may see and change the jobs of all users")
    token.add_argument("--users-file", type=_path, required=True, help="appended to; made if it is missing")
    check = commands.add_parser("check", help="check the catalogue of a cluster, or with .toml that of a local server")
    check.add_argument("file", type=Path)
    return parser


def _path(text: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(text)))


def _make_token(options: argparse.Namespace) -> int:
    from server_stub.http import users_file

    print(users_file.add(options.users_file, options.name, admin=options.admin))  # noqa: T201
    return 0


def _check(options: argparse.Namespace) -> int:
    """Print all errors of a catalogue. Exit code 2: there are some."""
    from server_stub.runtimes import instance_types
    from server_stub.runtimes.kube.catalogue import file

    settings = _settings({})
    try:
        if options.file.suffix == ".toml":
            names = [each.name for each in instance_types.load(options.file, by_pattern=True).sizes]
        else:
            names = [each.name for each in file.load(options.file, pod_security=settings.pod_security).instance_types]
    except InvalidRequest as error:
        _print_error(error)
        return 2
    print(f"the catalogue {options.file} is valid; its instance types are {', '.join(names)}")  # noqa: T201
    return 0


def _serve(options: argparse.Namespace) -> int:
    _close_inherited()
    from server_stub.serve import serve
    from server_stub.server_log import log_to_stderr
    from server_stub.settings import unknown_variables

    given = {name: getattr(options, name) for name in FLAGS_OF_SETTINGS if getattr(options, name) is not None}
    settings = _settings(given)
    log_to_stderr(settings.log_level)
    for name in unknown_variables(os.environ):
        logging.getLogger(__name__).warning("%s is no setting of this server; it is ignored", name)
    serve(settings, recover=options.recover)
    return 0


def _settings(given: dict[str, Any]) -> Any:
    """The settings; flags override variables. Raises InvalidRequest with the name of the setting."""
    from pydantic import ValidationError

    from client_lib.spec.validation import invalid_request
    from server_stub.settings import Settings

    try:
        return Settings(**given)
    except ValidationError as error:
        raise invalid_request(error, Settings) from error


def _close_inherited() -> None:
    """Close every descriptor above stderr: an inherited pipe would keep `client-lib submit | tee` from ending."""
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of the listing itself
                pass


_COMMANDS = {"token": _make_token, "check": _check}

if __name__ == "__main__":
    sys.exit(main())
