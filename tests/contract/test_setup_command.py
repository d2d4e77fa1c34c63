"""The job's own command before its ranks, on both runtimes."""

import pytest

from client_lib.spec.states import Reason, State
from tests.contract.places import Place, ended, prints

pytestmark = pytest.mark.process


@pytest.mark.smoke
def test_it_runs_once_on_each_worker_before_its_ranks(place: Place) -> None:
    job = place.run(
        "print(open('made').read().split())",
        setup="echo ${RANK-none} $MINE\necho once >> made",
        n_workers=2,
        processes_per_worker=2,
        env_variables={"MINE": "a b"},
    )
    assert job.info().state is State.SUCCEEDED, job.info().message
    lines = [entry.text for entry in job.log_entries(follow=False, stream="stdout")]
    assert sorted(lines) == ["['once']"] * 4 + ["none a b"] * 2


def test_its_failure_has_a_reason_of_its_own(place: Place) -> None:
    job = place.run("print('never')", setup="echo preparing; echo broken >&2; exit 3", n_workers=2)
    info = job.info()
    assert (info.state, info.reason) == (State.FAILED, Reason.SETUP_FAILED)
    assert info.message == "setup ended with exit code 3: broken"
    assert info.failure is not None
    assert (info.failure.rank, info.failure.exit_code) == (None, 3)
    assert info.failure.last_lines == ["preparing", "broken"]
    assert "setup ended with exit code 3" in job.explain().splitlines()[0]
    assert info.started_at is None
    assert not [entry for entry in job.log_entries(follow=False) if entry.text == "never"]


def test_it_runs_again_in_each_attempt(place: Place) -> None:
    setup = "echo attempt $CLIENT_LIB_ATTEMPT; test $CLIENT_LIB_ATTEMPT = 2"
    job = place.run("print('trained')", setup=setup, max_retry=1)
    assert job.info().state is State.SUCCEEDED, job.info().message
    lines = [entry.text for entry in job.log_entries(follow=False, stream="stdout")]
    assert lines == ["attempt 1", "attempt 2", "trained"]


def test_a_cancel_ends_it(place: Place) -> None:
    job = place.job("print('never')", setup="echo begun; sleep 600")
    job.submit()
    prints(job, "begun")
    assert job.info().state is State.PENDING
    job.cancel()
    assert ended(job).info().state is State.CANCELLED
