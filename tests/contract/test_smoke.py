"""A short trial of a job, on both runtimes."""

import pytest

from client_lib.spec.states import Reason, State
from tests.contract.places import Place

pytestmark = pytest.mark.process

TRAINS = """
import itertools, time
for step in itertools.count(1):
    print(f"step {step} loss={1 / step:.4f}", flush=True)
    time.sleep(0.2)
"""


@pytest.mark.smoke
def test_it_ends_after_the_first_steps_with_all_ranks_stopped(place: Place) -> None:
    info = place.run(TRAINS, smoke=True, n_workers=2).info()
    assert (info.state, info.reason) == (State.SUCCEEDED, Reason.COMPLETED), info.message
    assert info.message == "smoke test passed: 3 values of loss"


def test_a_failing_rank_fails_it(place: Place) -> None:
    script = "import os, time\nif os.environ['RANK'] == '1': raise KeyError('lr')\ntime.sleep(600)"
    info = place.run(script, smoke=True, n_workers=2).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.EXIT_CODE), info.message
    assert info.failure is not None
    assert info.failure.rank == 1
