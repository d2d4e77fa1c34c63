"""The table of the platform's words is complete, and the dates read as the platform's do."""

from datetime import datetime, timedelta, timezone

import pytest

from client_lib.spec import mlspace
from client_lib.spec.mlspace import Status
from client_lib.spec.states import Reason, State

THEN = datetime(2020, 2, 28, 14, 54, 31, 999_000, tzinfo=timezone.utc)


@pytest.mark.parametrize("state", list(State))
def test_every_state_is_found_by_the_status_it_is_listed_as(state: State) -> None:
    for reason in Reason:
        assert state in mlspace.STATES_OF[mlspace.listed_status(state, reason)]


def test_every_status_is_a_filter() -> None:
    assert set(mlspace.STATES_OF) == set(Status)


@pytest.mark.parametrize("state", list(State))
def test_one_job_is_shown_with_a_status_that_every_client_knows(state: State) -> None:
    assert mlspace.shown_status(state) not in (Status.RESTARTING, Status.TERMINATING)


def test_a_job_that_stops_is_terminating_in_a_list_and_running_by_itself() -> None:
    assert mlspace.listed_status(State.RUNNING, Reason.STOPPING) == "Terminating"
    assert mlspace.shown_status(State.RUNNING) == "Running"


def test_dates() -> None:
    assert (mlspace.iso(THEN), mlspace.iso(None)) == ("2020-02-28T14:54:31Z", None)
    assert (mlspace.unix(THEN), mlspace.unix(None)) == (1582901671, 0)


def test_durations_are_whole_seconds_and_never_null() -> None:
    later = THEN + timedelta(seconds=125.9)
    assert mlspace.duration(None, None, later) == "0s"
    assert mlspace.duration(THEN, None, later) == "125s"
    assert mlspace.duration(THEN, later, later + timedelta(days=1)) == "125s"
    assert mlspace.duration(later, THEN, later) == "0s"  # a clock that was set back


def test_worker_0_is_the_master() -> None:
    assert [mlspace.pod_name(worker) for worker in range(3)] == [
        "mpimaster-0",
        "mpiworker-0",
        "mpiworker-1",
    ]
