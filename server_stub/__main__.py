"""`python -m server_stub`, to users `client-lib serve`: starts the server, makes a token, or checks
a catalogue.

The module parses flags and imports the server only when it is needed. A failed start is one message
on stderr and exit code 1; a wrong flag, or a catalogue that is not valid, is exit code 2.
"""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from client_lib.errors import ClientLibError, InvalidRequest
from client_lib.version import this_version

# Exit codes.
FAILED = 1
WRONG = 2


def main(args: Sequence[str] | None = None, program: str = "client-lib serve") -> int:
    """Run the command line `args` (None: the arguments of this process); returns its exit code.
    Help names `program`.
    """
    try:
        return get_command(app).main(args, prog_name=program, standalone_mode=False) or 0
    except typer.TyperException as wrong:
        print(
            f"Error: {wrong.format_message()}\n`{program} --help` lists the options",
            file=sys.stderr,
        )
        return WRONG
    except ClientLibError as error:
        print(f"Error: {error}", file=sys.stderr)
        return FAILED


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(text)))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"client-lib {this_version()}")
        raise typer.Exit


_PATH: Any = {"parser": _absolute, "metavar": "PATH"}

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback()
def _group(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
    state_dir: Annotated[
        Path | None,
        typer.Option(**_PATH, help="server.json, token, lock and log of this machine and user."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(**_PATH, help="Database, jobs, logs, snapshots. Default: STATE_DIR/data."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address to listen on. Default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Default: 0, which is a free one.")
    ] = None,
    users_file: Annotated[
        Path | None, typer.Option(**_PATH, help="TOML of users and digests of their tokens.")
    ] = None,
    insecure_shared_uid: Annotated[
        bool | None,
        typer.Option(
            "--insecure-shared-uid",
            help="Let the jobs of all users run as this account, where each can read the others' "
            "secrets.",
        ),
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(metavar="URL", help="sqlite:///... or postgresql+psycopg://...")
    ] = None,
    idle_exit_s: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End after this time without a job and a request."),
    ] = None,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover", help="Rebuild a lost or damaged database from the files of its jobs."
        ),
    ] = False,
) -> None:
    """Run a server in the foreground. Every setting is a variable
    CLIENT_LIB_SERVER_<NAME>; options win.
    """
    options = {
        name: value for name, value in locals().items() if name not in ("ctx", "version", "recover")
    }
    if ctx.invoked_subcommand is None:
        _serve(
            {name: value for name, value in options.items() if value is not None}, recover=recover
        )


@app.command()
def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    users_file: Annotated[
        Path,
        typer.Option(**_PATH, help="File that gets the token's digest; made if it is missing."),
    ],
    admin: Annotated[
        bool, typer.Option("--admin", help="The user may see and change the jobs of all users.")
    ] = False,
) -> None:
    """Make a token for a user and print it; it is shown once."""
    from server_stub.http import users_file as users

    print(users.add(users_file, name, admin=admin))


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML of a cluster, or TOML of a local server.")
    ],
) -> int:
    """Check the file of a catalogue, and print all errors with their lines. A
    `pod_template` is tried on the cluster of the kubeconfig by a dry run."""
    from server_stub.runtimes import instance_types
    from server_stub.runtimes.kube.catalogue import file as cluster_catalogue
    from server_stub.runtimes.kube.runtime import check_pod_templates
    from server_stub.settings import Settings

    tried = ""
    try:
        if file.suffix == ".toml":
            names = [each.name for each in instance_types.load(file).instance_types]
        else:
            catalogue = cluster_catalogue.load(file)
            names = [each.name for each in catalogue.instance_types]
            tried = check_pod_templates(catalogue, Settings())
    except InvalidRequest as error:
        print(f"Error: {error}", file=sys.stderr)
        return WRONG
    print(f"the catalogue {file} is valid; its instance types are {', '.join(names)}")
    if tried:
        print(tried)
    return 0


def _serve(given: dict[str, Any], *, recover: bool) -> None:
    """Run the server; flags override variables. Raises InvalidRequest
    with the name of the setting.
    """
    _close_inherited()
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        # prometheus-client would keep our counters among the files of who started us
        os.environ.pop(name, None)
    from pydantic import ValidationError

    from client_lib.spec.refusals import invalid_request
    from server_stub.serve import serve
    from server_stub.server_log import log_to_stderr
    from server_stub.settings import Settings, unknown_variables

    try:
        settings = Settings(**given)
    except ValidationError as error:
        raise invalid_request(error, Settings) from error
    log_to_stderr(settings.log_level)
    for sentence in unknown_variables(os.environ):
        logging.getLogger(__name__).warning("%s", sentence)
    serve(settings, recover=recover)


def _close_inherited() -> None:
    """Close every descriptor above stderr: an inherited pipe would keep
    `client-lib submit | tee` from ending.
    """
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        if int(name) > 2:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


if __name__ == "__main__":
    sys.exit(main())
