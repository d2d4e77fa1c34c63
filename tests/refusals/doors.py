"""Three doors of one server: REST, the SDK and the command line. Each reports a refusal alike."""

from collections.abc import Callable
from typing import Any, NamedTuple

import requests

from client_lib.client import Client
from client_lib.errors import BY_CODE, ClientLibError
from client_lib.job import Job
from client_lib.spec import paths
from tests.cli.conftest import Run
from tests.http.conftest import Running


class Refusal(NamedTuple):
    """What a door says of a call that is refused."""

    error: type[ClientLibError]
    said: str
    """Message and hint."""


class Call(NamedTuple):
    """One wish of a user, as each door puts it."""

    rest: tuple[str, str, dict[str, Any]]
    """Method, path, and options of `requests.request`."""
    sdk: Callable[[Client], object]
    cli: list[str]


_OPTIONS = {"outputs": "outputs-glob"}
"""Options that have another name than their field."""


def by_rest(server: Running, token: str | None, call: Call) -> Refusal:
    method, path, options = call.rest
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = requests.request(method, server.url + path, headers=headers, timeout=20, **options)
    body = answer.json()
    assert set(body) <= {"code", "message", "hint"}, body
    error = BY_CODE[body["code"]]
    assert answer.status_code == error.http_status
    return Refusal(error, f"{body['message']}\n{body.get('hint', '')}")


def by_sdk(server: Running, token: str | None, call: Call) -> Refusal:
    try:
        result = call.sdk(Client(server.url, token=token))
    except ClientLibError as error:
        return Refusal(type(error), str(error))
    raise AssertionError(f"it was not refused: {result!r}")


def by_cli(server: Running, token: str | None, call: Call, run: Run) -> tuple[int, str]:
    """Exit code and stderr; a refused command prints nothing to stdout."""
    variables = {"CLIENT_LIB_ENDPOINT": server.url}
    if token:
        variables["CLIENT_LIB_TOKEN"] = token
    done = run(*call.cli, **variables)
    assert (done.stdout, "Traceback" in done.stderr) == ("", False), done.stderr
    return done.returncode, done.stderr


def submit(**spec: Any) -> Call:
    """A submit of `echo hello` with these fields."""
    fields = {"script": "echo hello", "type": "binary"} | spec
    options = [
        f"--{_OPTIONS.get(name, name.replace('_', '-'))}={each}"
        for name, value in spec.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    body = {"spec": fields, "code": {"mode": "in_place"}}
    return Call(
        rest=("POST", paths.JOBS, {"json": body}),
        sdk=lambda client: Job(**fields, client=client).submit(),
        cli=["submit", "--type=binary", *options, "echo", "hello"],
    )
