"""The report of a worker as the server accepts it, from a pod as from a launcher of this machine.
Processes of the job can write it, so it may hold anything."""

import json
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

from client_lib.durable import Opener
from client_lib.launcher_protocol.json_entries import ENTRIES_MAX, entries
from client_lib.launcher_protocol.plan import PROTOCOL
from client_lib.launcher_protocol.report import Report, storable
from client_lib.spec.states import Reason

MAX_BYTES = 16 * 2**20
"""Size of the largest report that is read."""


def _checked_time(text: str) -> str:
    at = datetime.fromisoformat(text)
    # times are compared, and become seconds since 1970
    if at.tzinfo is None or not 1970 <= at.year < 9999:
        raise ValueError(f"{text!r} is no time with its zone")
    return text


def _checked_protocol(number: int) -> int:
    if number != PROTOCOL:
        raise ValueError(
            f"this server reads reports of protocol {PROTOCOL}, and this one is of {number}"
        )
    return number


_Time = Annotated[str, AfterValidator(_checked_time)]
_Number = Annotated[int, Field(ge=0, le=2**53)]
_Status = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_T = TypeVar("_T")
_Many = Annotated[list[_T], FailFast()]
"""A list of which only the first wrong entry is found: an error of each would take long to show."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class RankEnd(_Strict):
    """The fields of `client_lib.launcher_protocol.outcome.Ended`; the choice of the
    first failure needs them.
    """

    rank: _Number
    exit_code: _Status | None
    signal: _Status | None
    started_at: _Time
    ended_at: _Time
    failed_at: _Time | None = None
    stopped_by_us: bool
    lost_peer: bool = False
    exception: str | None
    traceback: str | None
    last_lines: _Many[str]
    script_end: Any = None
    """Its reader, `script_end_of_json`, takes anything."""


class LeftOut(_Strict):
    path: str
    size: _Number
    why: str


class KeptOutputs(_Strict):
    kept: _Number = 0
    problem: str | None = None
    left_out: _Many[LeftOut] = []
    left_out_count: _Number = 0


class WorkerReport(_Strict):
    """The fields of a report.json of `client_lib.worker` that the server reads;
    the others are stored too.
    """

    protocol: Annotated[int, AfterValidator(_checked_protocol)]
    worker: _Number
    attempt: _Number
    exit_code: _Status
    reason: Annotated[Reason, Field(strict=False)]
    message: str
    ended_at: _Time
    first_failing_rank: _Number | None = None
    ranks: _Many[RankEnd]
    log_end_seq: _Number
    log_end_offset: _Number
    outputs: KeptOutputs = KeptOutputs()
    last_lines: _Many[str] = []
    notes: _Many[str] = []


def parse(text: bytes | str) -> Report:
    """The whole report, with texts that a database can hold. Raises ValueError that names the first
    wrong field, or says that there are too many entries."""
    if entries(text) > ENTRIES_MAX:
        raise ValueError(f"it has more than {ENTRIES_MAX} commas and brackets")
    try:
        WorkerReport.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error
    report: Report = storable(json.loads(text))
    return report


def read(path: str, opener: Opener | None = None) -> Report | None:
    """The report in a worker's directory; None: it is missing. Raises
    ValueError as `parse` does.
    """
    try:
        with open(path, "rb", opener=opener) as file:
            return parse(file.read())
    except FileNotFoundError:
        return None
