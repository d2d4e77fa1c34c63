"""The check of the machines before the script, on both runtimes."""

import pytest

from client_lib.spec.states import Reason, State
from tests.contract.places import Place

pytestmark = pytest.mark.process


def test_a_failing_worker_ends_the_job_before_its_script(place: Place) -> None:
    setup = """echo 'raise ImportError("libcudart.so.12 is missing")' > torch.py"""
    variables = {"PYTHONPATH": "."}
    job = place.run(
        "print('never')", setup=setup, env_variables=variables, preflight_check=True, n_workers=2
    )
    info = job.info()
    assert (info.state, info.reason) == (State.FAILED, Reason.PREFLIGHT_FAILED), info.message
    assert "preflight needs torch: libcudart.so.12 is missing" in info.message
    assert info.failure is not None
    assert (info.failure.rank, info.failure.exit_code) == (None, 1)
    assert "exclude the machine" in job.explain()
    assert not [entry for entry in job.log_entries(follow=False) if entry.text == "never"]
