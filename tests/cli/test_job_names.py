"""Names that are cut short, misspelt, or not there."""

from datetime import datetime, timezone

import pytest

from client_lib.cli.connection import Connection
from client_lib.errors import NotFound
from client_lib.spec.states import State
from tests.kit.jobs import CREATED, job_info
from tests.kit.small_server import SmallServer

from .conftest import Run
from .terminal import Terminal


def test_an_unambiguous_beginning_is_enough(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("train-x7k2m"), job_info("evaluate-q1w2e"))
    found = cli("status", "tra", "-o", "name")
    assert (found.stdout, found.stderr) == ("train-x7k2m\n", "tra is train-x7k2m\n")


def test_a_whole_name_wins_over_longer_ones(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("train"), job_info("train-2"))
    assert cli("status", "train", "-o", "name").stdout == "train\n"


def test_an_ambiguous_beginning_names_those_that_begin_so(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(job_info("train-1"), job_info("train-2"), job_info("other"))
    refused = cli("status", "train")
    assert refused.returncode == 5
    assert "train-2, train-1 begin so" in refused.stderr


def test_an_unknown_name_offers_the_nearest(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("train-x7k2m"), job_info("something-else"))
    refused = cli("status", "trian-x7k2m")
    assert refused.returncode == 5
    assert "no job named trian-x7k2m; did you mean train-x7k2m?" in refused.stderr
    assert "`client-lib list`" in refused.stderr
    assert refused.stdout == ""


def test_a_name_with_a_slash_or_a_query_stays_one_name(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("a"))
    assert cli("status", "../jobs/a?x=1").returncode == 5


@pytest.mark.parametrize(("name", "shown"), [("", "''"), ("a b", "'a b'"), ("\udcff", "'\\udcff'")])
def test_any_text_is_no_job_of_this_name(
    small_server: SmallServer, run_here: Run, name: str, shown: str
) -> None:
    small_server.answers["GET", "/api/v1/jobs/"] = (
        404,
        {"code": "not_found", "message": "there is nothing at this path"},
    )
    refused = run_here("status", name)
    assert (refused.returncode, f"no job named {shown}" in refused.stderr) == (5, True)


@pytest.mark.parametrize("command", ["cancel", "delete"])
def test_what_changes_a_job_takes_its_whole_name_in_a_script(
    small_server: SmallServer, cli: Run, command: str
) -> None:
    small_server.add(job_info("train-10"))
    refused = cli(command, "train-1")
    assert refused.returncode == 5
    assert "did you mean train-10? write the whole name" in refused.stderr
    assert "train-10" in small_server.jobs
    assert ("POST", "/api/v1/jobs/train-10/cancel") not in small_server.asked


@pytest.mark.process
@pytest.mark.smoke
@pytest.mark.parametrize(("answer", "left"), [(b"y\n", []), (b"n\n", ["train-10"])])
def test_on_a_terminal_the_nearest_is_asked_for(
    small_server: SmallServer, environment: dict[str, str], answer: bytes, left: list[str]
) -> None:
    small_server.add(job_info("train-10"))
    with Terminal("delete", "train-1", environment=environment) as terminal:
        terminal.read_until(b"did you mean train-10?")
        terminal.write(answer)
        terminal.read_to_end()
    assert list(small_server.jobs) == left


def test_several_are_cancelled_although_one_is_not_there(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(job_info("one"), job_info("two"))
    done = cli("cancel", "one", "missing", "two")
    assert (done.returncode, done.stdout) == (5, "one CANCELLED\ntwo CANCELLED\n")
    assert "no job named missing" in done.stderr


def test_an_empty_name_is_no_beginning_of_all(small_server: SmallServer) -> None:
    small_server.add(job_info("only-one"))
    with pytest.raises(NotFound, match="no job named"):
        Connection(small_server.url).full_name("")


@pytest.mark.parametrize(
    "command", [("status", "-o", "json"), ("wait",), ("explain",), ("stacks",), ("logs",)]
)
def test_without_a_name_the_newest_job_is_meant(
    small_server: SmallServer, cli: Run, command: tuple[str, ...]
) -> None:
    small_server.add(job_info("older", State.SUCCEEDED), job_info("newest", State.SUCCEEDED))
    named, unnamed = cli(command[0], "newest", *command[1:]), cli(*command)
    assert (unnamed.returncode, unnamed.stdout) == (named.returncode, named.stdout)
    assert unnamed.stderr == f"the newest job is newest\n{named.stderr}"


def test_without_a_name_and_a_job_there_is_a_next_step(small_server: SmallServer, cli: Run) -> None:
    refused = cli("logs")
    assert (refused.returncode, small_server.jobs) == (5, {})
    assert "there is no job\n`client-lib submit train.py`" in refused.stderr


def test_an_empty_variable_is_no_missing_name(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("newest"))
    assert cli("status", "").returncode == 5


def test_a_cancel_without_a_name_cancels_nothing_in_a_script(
    small_server: SmallServer, cli: Run
) -> None:
    small_server.add(job_info("newest"))
    refused = cli("cancel")
    assert refused.returncode == 2
    assert "client-lib cancel newest" in refused.stderr
    assert ("POST", "/api/v1/jobs/newest/cancel") not in small_server.asked


@pytest.mark.process
@pytest.mark.parametrize(("answer", "state"), [(b"y\n", State.CANCELLED), (b"n\n", State.RUNNING)])
def test_a_cancel_without_a_name_asks_on_a_terminal(
    small_server: SmallServer, environment: dict[str, str], answer: bytes, state: State
) -> None:
    small_server.add(job_info("older"), job_info("newest"))
    with Terminal("cancel", environment=environment) as terminal:
        terminal.read_until(b"cancel the newest job, newest (RUNNING)?")
        terminal.write(answer)
        terminal.read_to_end()
    assert (small_server.jobs["newest"].state, small_server.jobs["older"].state) == (
        state,
        State.RUNNING,
    )


@pytest.mark.parametrize(
    ("alias", "command"), [("ls", "list"), ("ps", "list"), ("stop", "cancel"), ("kill", "cancel")]
)
def test_the_words_of_other_tools_are_understood(
    small_server: SmallServer, cli: Run, alias: str, command: str
) -> None:
    small_server.add(job_info("one"))
    assert cli(alias, "--help").stdout.startswith(f"Usage: client-lib {command} ")
    assert f"\n  {alias} " not in cli("--help").stdout


def test_rm_deletes(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("one", State.SUCCEEDED))
    assert cli("rm", "one").returncode == 0
    assert small_server.jobs == {}


def test_options_of_all_commands_may_stand_in_front(small_server: SmallServer, cli: Run) -> None:
    small_server.add(job_info("one"))
    assert (
        cli(
            "--endpoint", small_server.url, "status", "one", "-o", "name", CLIENT_LIB_ENDPOINT=""
        ).stdout
        == "one\n"
    )
    nearer = cli(
        "--endpoint",
        "http://127.0.0.1:9",
        "status",
        "one",
        "-o",
        "name",
        "--endpoint",
        small_server.url,
    )
    assert nearer.stdout == "one\n"
    refused = cli("--profile", "work", "init")
    assert refused.returncode == 2
    assert "init takes no --profile" in refused.stderr


@pytest.fixture
def with_old_jobs(small_server: SmallServer) -> SmallServer:
    small_server.add(
        job_info("old", State.SUCCEEDED, finished_at=CREATED),
        job_info("old-failed", State.FAILED, finished_at=CREATED),
        job_info("still-running"),
        job_info("of-today", State.SUCCEEDED, finished_at=datetime.now(timezone.utc)),
    )
    return small_server


def test_prune_removes_what_ended_long_ago(with_old_jobs: SmallServer, cli: Run) -> None:
    shown = cli("prune", "--dry-run")
    assert (shown.returncode, sorted(shown.stdout.split())) == (0, ["old", "old-failed"])
    refused = cli("prune")
    assert (refused.returncode, len(with_old_jobs.jobs)) == (2, 4)
    assert "add --yes to the same command" in refused.stderr
    assert cli("prune", "--yes", "--state", "failed").returncode == 0
    assert list(with_old_jobs.jobs) == ["old", "still-running", "of-today"]
    assert cli("prune", "--yes", "--older", "0s").returncode == 0
    assert list(with_old_jobs.jobs) == ["still-running"]


@pytest.mark.parametrize("wrong", ["", "7", "d", "-1d", "1.5h", "7w", "9999999d", "²d"])
def test_an_age_that_is_none_is_refused_by_its_text(cli: Run, wrong: str) -> None:
    refused = cli("prune", "--older", wrong)
    assert refused.returncode == 2
    assert f"{wrong!r} is no age like 30m, 12h or 7d" in refused.stderr
