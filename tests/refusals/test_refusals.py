"""One table of refusals: every door names the same class, status or exit code, and sentence."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from client_lib import list_jobs
from client_lib.cli.program import ExitCode
from client_lib.errors import (
    ClientLibError,
    Conflict,
    InvalidRequest,
    NeverFits,
    NotFound,
    Unauthorized,
)
from client_lib.spec import paths
from tests.cli.conftest import (
    Run,
    environment as environment,
    run_here as run_here,
)
from tests.http.conftest import Running
from tests.refusals.doors import Call, by_cli, by_rest, by_sdk, submit


class Row(NamedTuple):
    call: Call
    error: type[ClientLibError]
    exit_code: ExitCode
    says: str
    """A part of the sentence: the thing and its value, or the way out."""
    user: str | None = "ann"
    """None: a caller without a token; "nobody": with an unknown one."""


def show(name: str) -> Call:
    return Call(("GET", paths.job(name), {}), lambda client: client.get_job(name), ["status", name])


def delete(name: str) -> Call:
    return Call(
        ("DELETE", paths.job(name), {}),
        lambda client: client.get_job(name).delete(),
        ["delete", name],
    )


def cancel(name: str) -> Call:
    return Call(
        ("POST", paths.job(name, "cancel"), {}),
        lambda client: client.get_job(name).cancel(),
        ["cancel", name],
    )


def show_group(name: str) -> Call:
    return Call(
        ("GET", paths.group(name), {}),
        lambda client: client.get_group(name),
        ["compare", name],
    )


def list_by_state(state: str) -> Call:
    return Call(
        ("GET", paths.JOBS, {"params": {"state": state}}),
        lambda client: list(list_jobs(state=state, client=client)),
        ["list", "--state", state],
    )


REFUSALS = {
    "a job that is not there": Row(show("nowhere"), NotFound, ExitCode.REFUSED, "nowhere"),
    "the job of another user": Row(show("bens"), NotFound, ExitCode.REFUSED, "bens"),
    "no token": Row(show("running"), Unauthorized, ExitCode.REFUSED, "token", user=None),
    "an unknown token": Row(
        show("running"), Unauthorized, ExitCode.REFUSED, "token", user="nobody"
    ),
    "a running job is not deleted": Row(delete("running"), Conflict, ExitCode.REFUSED, "running"),
    "a taken name": Row(submit(name="running"), Conflict, ExitCode.REFUSED, "running"),
    "more than the server has": Row(
        submit(n_workers=65), NeverFits, ExitCode.REFUSED, "n_workers 65"
    ),
    "no worker": Row(submit(n_workers=0), InvalidRequest, ExitCode.USAGE, "n_workers=0"),
    "too many workers": Row(
        submit(n_workers=1000000), InvalidRequest, ExitCode.USAGE, "n_workers=1000000"
    ),
    "an unknown type": Row(submit(type="mpi"), InvalidRequest, ExitCode.USAGE, "mpi"),
    "a name that no job can have": Row(
        submit(name="Not A Name"), InvalidRequest, ExitCode.USAGE, "Not A Name"
    ),
    "a dependency that is not there": Row(
        submit(after=["nowhere"]), NotFound, ExitCode.REFUSED, "nowhere"
    ),
    "a cancel of no job": Row(cancel("nowhere"), NotFound, ExitCode.REFUSED, "nowhere"),
    "a deletion of no job": Row(delete("nowhere"), NotFound, ExitCode.REFUSED, "nowhere"),
    "a group that is not there": Row(show_group("nowhere"), NotFound, ExitCode.REFUSED, "nowhere"),
    "a pattern that can't be compiled": Row(
        submit(metrics="("), InvalidRequest, ExitCode.USAGE, "metrics='('"
    ),
    "a pattern of files outside of the job": Row(
        submit(outputs=["/etc/*"]), InvalidRequest, ExitCode.USAGE, "/etc/*"
    ),
    "an alarm that is no rule": Row(
        submit(alarm=["loss > ten -> stop"]),
        InvalidRequest,
        ExitCode.USAGE,
        "column 8: 'ten' stands behind 'loss >'",
    ),
    "too many alarms": Row(
        submit(alarm=[f"loss > {number} -> notify" for number in range(21)]),
        InvalidRequest,
        ExitCode.USAGE,
        "at most 20",
    ),
    "an alarm that retries without retries": Row(
        submit(alarm=["nan -> retry"]), InvalidRequest, ExitCode.USAGE, "needs max_retry"
    ),
    "an alarm that would move checkpoints of others": Row(
        submit(alarm=["nan -> retry"], max_retry=1, checkpoint_dir="/tmp/shared"),
        InvalidRequest,
        ExitCode.USAGE,
        "leave checkpoint_dir out",
    ),
    "a state that is none": Row(list_by_state("LOST"), InvalidRequest, ExitCode.USAGE, "LOST"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a running job of ann and a job of ben; no row changes them."""
    server = Running(tmp_path_factory.mktemp("refusals"))
    answer = server.as_user("ann").submit(name="running")
    server.call(lambda: server.runtime.runs(answer.json()["id"]))
    server.as_user("ben").submit(name="bens")
    yield server
    server.stop()


def token_of(site: Running, user: str | None) -> str | None:
    return None if user is None else site.tokens.get(user, "x" * 40)


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_rest_refuses_with_status_code_and_sentence(row: Row, site: Running) -> None:
    refusal = by_rest(site, token_of(site, row.user), row.call)
    assert refusal.error is row.error
    assert row.says in refusal.said


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_the_sdk_raises_the_same_class_with_the_sentence(
    row: Row, site: Running, environment: dict[str, str]
) -> None:
    refusal = by_sdk(site, token_of(site, row.user), row.call)
    assert refusal.error is row.error
    assert row.says in refusal.said


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_the_command_line_ends_with_the_code_and_the_sentence(
    row: Row, site: Running, run_here: Run
) -> None:
    code, said = by_cli(site, token_of(site, row.user), row.call, run_here)
    assert (code, row.says in said) == (row.exit_code, True), said
