"""What workers elsewhere (pods) say and fetch, by the token of their attempt; see server_stub.workers.

Each request names the pod that speaks: the first owns the worker's place in this attempt, and another one is answered
409 and must start nothing; of an elastic job it may be let in for one that was lost. The protocol has a number; a
server answers the one it speaks, and ignores what a newer worker says beyond it.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from client_lib.errors import InvalidRequest, NotFound
from client_lib.spec import paths
from client_lib.spec.states import Reason
from client_lib.spec.wire import Answer, LogLengths, RankReport, WorkerOrder, WorkerSays
from client_lib.worker.plan import PROTOCOL
from client_lib.worker.report import rank_of_json
from server_stub.api.answers import json_model
from server_stub.api.context import context
from server_stub.api.operation import check_query, new_router, number, operation
from server_stub.workers.attempt import OpenAttempt
from server_stub.workers.worker import Worker

WAIT_MAX_S = 60.0
SPOKEN = frozenset({"1"})
"""Protocols of workers that this server understands."""
_UID_MAX = 100  # characters; a UUID has 36
_OFFSET_MAX = 2**53

router = new_router()

POD = {
    paths.POD_UID: "The pod that speaks; the first owns the worker's place, another one is answered 409.",
    paths.POD_NAME: "Its name, for people.",
    paths.POD_START: "Tells one start of its container from the next: those of an elastic job are started again.",
    paths.WORKER_PROTOCOL: f"The protocol that it speaks; this server: {', '.join(sorted(SPOKEN))}.",
}
_ORDER = {
    "knows": "The order that the worker has: the answer comes when it is to do something else.",
    "wait": f"Seconds that the answer may take, at most {WAIT_MAX_S:.0f}; default 0.",
}
_OFFSET = {
    "offset": "Of the first byte of the body in the worker's log.",
    "gap": "`1`: what is missing between what the server has and this is gone, and its records are counted as lost.",
}


@operation(router, "PUT", f"{paths.WORKERS}/state", answer=WorkerOrder, body=WorkerSays, query=_ORDER, headers=POD)
async def put_worker_state(request: Request) -> Response:
    """Say how far a worker is, and be told what it is to do: with `wait` as soon as that has changed."""
    check_query(request, _ORDER)
    attempt, worker = await speaker(request)
    said = _model(await request.body(), WorkerSays)
    worker.live(said.signs_of_life)
    await attempt.say(worker, said.state)
    wait_s = number(request, "wait", 0.0, low=0.0, high=WAIT_MAX_S)
    known = request.query_params.get("knows", "")
    return _order(await attempt.order(worker, known, wait_s, context(request).stopping))


def _order(order: Any) -> Response:
    return json_model(WorkerOrder(do=order.do, grace_s=order.grace_s))


@operation(router, "PUT", f"{paths.WORKERS}/log", answer=LogLengths, body="text/plain", query=_OFFSET, headers=POD)
async def put_worker_log(request: Request) -> Response:
    """Append whole records to a worker's log. What the server has already is passed over; where something between is
    missing nothing is taken, and the answer says from where to go on. An empty body asks how much there is."""
    check_query(request, _OFFSET)
    attempt, worker = await speaker(request)
    offset = int(number(request, "offset", 0, low=0, high=_OFFSET_MAX))
    gap = request.query_params.get("gap") == "1"
    lengths = await attempt.take_log(worker, offset, await request.body(), gap=gap)
    return json_model(LogLengths(**lengths._asdict()))


@operation(router, "PUT", f"{paths.WORKERS}/report", answer=Answer, body="application/json", headers=POD)
async def put_worker_report(request: Request) -> Response:
    """How the worker ended (report.json of client_lib.worker). The first report stays."""
    attempt, worker = await speaker(request)
    await attempt.take_report(worker, _report(await request.body()))
    return json_model(Answer(message="the report is stored"))


@operation(router, "PUT", f"{paths.WORKERS}/results/{{rank}}", answer=Answer, body=paths.RESULT, headers=POD)
async def put_worker_result(request: Request) -> Response:
    """What a function returned in one rank of the worker."""
    attempt, worker = await speaker(request)
    rank = _number_of(request, "rank")
    await attempt.take_result(worker, rank, request.stream(), context(request).settings.max_result_bytes)
    return json_model(Answer(message=f"the result of rank {rank} is stored"))


@operation(router, "GET", f"{paths.WORKERS}/snapshot", answer=("application/gzip",), headers=POD)
async def get_worker_snapshot(request: Request) -> Response:
    """The code of this job, and of no other."""
    attempt, _ = await speaker(request)
    return _file(attempt.gang.snapshot, "application/gzip")


@operation(router, "GET", f"{paths.WORKERS}/function", answer=("application/octet-stream",), headers=POD)
async def get_worker_function(request: Request) -> Response:
    """The pickled function of this job."""
    attempt, _ = await speaker(request)
    return _file(attempt.gang.function, "application/octet-stream")


async def speaker(request: Request) -> tuple[OpenAttempt, Worker]:
    """The attempt that the token opens, and the worker that the pod speaks for.

    Raises:
        Forbidden: the path is not of this token's attempt; NotFound: there is no such worker.
        Conflict: another pod owns the worker; InvalidRequest: it doesn't say who it is, or speaks another protocol.
    """
    attempt = cast(OpenAttempt, request.scope["attempt"])
    attempt.check(request.path_params["name"], _number_of(request, "attempt"))
    protocol = request.headers.get(paths.WORKER_PROTOCOL, "")
    if protocol not in SPOKEN:
        raise InvalidRequest(
            f"{paths.WORKER_PROTOCOL}={protocol[:20]!r}: this server speaks {', '.join(sorted(SPOKEN))}",
            hint="the launcher and the server must be of versions that are at most two minors apart",
        )
    uid = request.headers.get(paths.POD_UID, "")
    if not 0 < len(uid) <= _UID_MAX:
        raise InvalidRequest(f"{paths.POD_UID} has {len(uid)} characters; 1 to {_UID_MAX} are allowed")
    pod, start = request.headers.get(paths.POD_NAME), request.headers.get(paths.POD_START, "")
    return attempt, await attempt.worker(_number_of(request, "worker"), uid, pod, start[:_UID_MAX])


def _number_of(request: Request, name: str) -> int:
    text = request.path_params[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NotFound(f"{text[:50]!r} is no number of a {name}")
    return int(text)


def _model(body: bytes, model: type[BaseModel]) -> Any:
    try:
        return model.model_validate_json(body)
    except ValidationError as found:
        raise _refused(found) from found


def _refused(found: ValidationError) -> InvalidRequest:
    first = found.errors(include_url=False, include_input=False)[0]
    return InvalidRequest(f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}")


class _Report(BaseModel):
    """What the server reads of a report; the rest is kept as it is."""

    protocol: int
    worker: int
    attempt: int
    exit_code: int
    reason: Reason
    message: str
    ended_at: str
    ranks: list[RankReport]
    log_end_seq: int
    log_end_offset: int


def _report(body: bytes) -> dict[str, Any]:
    """Raises InvalidRequest for a body that is no report of a protocol that this server reads."""
    found = _model(body, _Report)
    if found.protocol != PROTOCOL:
        raise InvalidRequest(f"this server reads reports of protocol {PROTOCOL}, and this one is of {found.protocol}")
    report: dict[str, Any] = json.loads(body)
    try:
        datetime.fromisoformat(found.ended_at)
        for rank in report["ranks"]:
            rank_of_json(rank)
    except (KeyError, ValueError, TypeError) as error:  # who asks for the first failure relies on each field
        raise InvalidRequest(f"the report of worker {found.worker} can't be read: {error!r}") from error
    return report


def _file(path: Path | None, media_type: str) -> Response:
    if path is None or not path.is_file():
        raise NotFound("this job has none")
    return FileResponse(path, media_type=media_type)
