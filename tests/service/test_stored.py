"""Jobs as the database holds them, also with words that this version does not know."""

import json

from client_lib.spec.states import Reason, State
from server_stub.service.stored import from_row, row_of
from tests.service.bench import status

RUNNING = status(state=State.RUNNING, reason=Reason.RUNNING).info


def test_an_order_to_stop_with_a_reason_of_a_newer_version_keeps_its_words() -> None:
    stop = json.dumps({"reason": "Superseded", "message": "a newer run began", "retry": False})
    read = from_row(row_of(RUNNING)._replace(stop=stop))
    assert read.status.stop
    assert str(read.status.stop.reason) == "Superseded"
    assert read.status.stop.message == "a newer run began"
    assert read.info.state is State.RUNNING


def test_an_order_that_can_not_be_read_ends_the_job_with_the_reason() -> None:
    read = from_row(row_of(RUNNING)._replace(stop="{"))
    assert read.status.stop
    assert read.status.stop.reason is Reason.SERVER_ERROR
