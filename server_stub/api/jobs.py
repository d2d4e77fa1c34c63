"""`/jobs`: submit, list, one job and what hangs on it. Logs are in `logs`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from client_lib.errors import InvalidRequest
from client_lib.spec import paths
from client_lib.spec.states import State
from client_lib.spec.validation import invalid_request
from client_lib.spec.wire import Answer, EventList, JobInfo, JobPage, Manifest, SubmitRequest
from server_stub.api.answers import json_model, json_text
from server_stub.api.context import Context, context, header, owner, user
from server_stub.api.operation import OWNER, check_query, new_router, number, operation
from server_stub.service import JobFilters, JobText

WAIT_MAX_S = 60.0
KEY_MAX = 255
_KEY = paths.IDEMPOTENCY_KEY.lower().encode()
PAGE = 100

router = new_router()
JOB = f"{paths.JOBS}/{{name}}"

_LIST = {
    "state": f"Only jobs in this state: {', '.join(State)}.",
    "label": "`key=value`; may be repeated, all of them must match.",
    "name": "Only names that begin so.",
    "limit": f"Jobs in a page; default {PAGE}.",
    "cursor": "`next_cursor` of the page before.",
    "owner": "Whose jobs, for admins and where the server shares jobs; `*`: everybody's; absent: one's own.",
}
_WAIT = {
    "after_version": "Answer when the job's version is greater, or `wait` is over, or at once if the job is final.",
    "wait": f"Seconds, at most {WAIT_MAX_S:.0f}; default {WAIT_MAX_S / 2:.0f} with `after_version`.",
}
_FORCE = {"force": "`true`: a job that runs is stopped and then removed."}


@operation(
    router,
    "POST",
    paths.JOBS,
    answer=JobInfo,
    status=201,
    body=SubmitRequest,
    headers={paths.IDEMPOTENCY_KEY: "The same key and request: the same job (200); another request: 409 key_reused."},
)
async def submit_job(request: Request) -> Response:
    """Accept a job. It is on disk before this answers."""
    check_query(request)
    parts = context(request)
    sent = await request.body()
    job, created = await parts.service.submit(user(request), parse_submit(sent), _idempotency_key(request), sent=sent)
    return json_text(job.json, 201 if created else 200)


@operation(router, "GET", paths.JOBS, answer=JobPage, query=_LIST)
async def list_jobs(request: Request) -> Response:
    """One's jobs, newest first."""
    check_query(request, _LIST)
    parts = context(request)
    query = request.query_params
    filters = JobFilters(
        state=_state(query.get("state")),
        labels=_labels(query.getlist("label")),
        name_prefix=query.get("name"),
        owner=owner(request),
    )
    limit = int(number(request, "limit", PAGE, low=1, high=parts.settings.max_page))
    return json_text(await parts.service.page(user(request), filters, limit, query.get("cursor")))


@operation(router, "GET", JOB, answer=JobInfo, query=_WAIT | OWNER)
async def get_job(request: Request) -> Response:
    """The job; with `after_version` as soon as it has changed."""
    check_query(request, _WAIT, OWNER)
    parts, name = context(request), request.path_params["name"]
    if "after_version" not in request.query_params:
        return json_text((await parts.service.get(user(request), name, owner(request))).json)
    version = int(number(request, "after_version", 0, low=-1, high=2**53))
    wait_s = number(request, "wait", WAIT_MAX_S / 2, low=0, high=WAIT_MAX_S)
    return json_text((await _wait(request, parts, name, version, wait_s)).json)


async def _wait(request: Request, parts: Context, name: str, version: int, wait_s: float) -> JobText:
    """The job when it has changed; as it is when the server stops, so that a stop waits for no long poll."""
    asked = user(request), name, owner(request)
    change = asyncio.ensure_future(parts.service.wait(asked[0], name, version, wait_s, asked[2]))
    stop = asyncio.ensure_future(parts.stopping.wait())
    try:
        await asyncio.wait({change, stop}, return_when=asyncio.FIRST_COMPLETED)
        return change.result() if change.done() else await parts.service.get(*asked)
    finally:
        change.cancel()
        stop.cancel()


@operation(router, "GET", f"{JOB}/events", answer=EventList, query=OWNER)
async def get_events(request: Request) -> Response:
    """What happened to the job, oldest first; every change of its state is one."""
    check_query(request, OWNER)
    return json_text(await context(request).service.events(user(request), request.path_params["name"], owner(request)))


@operation(router, "GET", f"{JOB}/manifest", answer=Manifest, query=OWNER)
async def get_manifest(request: Request) -> Response:
    """What the newest attempt was started as; secrets masked."""
    check_query(request, OWNER)
    return json_model(
        await context(request).service.manifest(user(request), request.path_params["name"], owner(request))
    )


@operation(router, "GET", f"{JOB}/request", answer=SubmitRequest, query=OWNER)
async def get_request(request: Request) -> Response:
    """The request that made the job, without its submitter and the values of its secrets."""
    check_query(request, OWNER)
    return json_text(await context(request).service.request(user(request), request.path_params["name"], owner(request)))


@operation(router, "GET", f"{JOB}/results/{{rank}}", answer=(paths.RESULT,), query=OWNER)
async def get_result(request: Request) -> Response:
    """What the job's function returned or raised in this rank: a line of JSON, then a pickle, which runs code of who
    wrote it when it is read."""
    check_query(request, OWNER)
    path = await context(request).service.find_result(
        user(request), request.path_params["name"], _rank(request.path_params["rank"]), owner(request)
    )
    return FileResponse(path, media_type=paths.RESULT)


@operation(router, "POST", f"{JOB}/cancel", answer=JobInfo, query=OWNER)
async def cancel_job(request: Request) -> Response:
    """Order the end of the job; it arrives later. A final job stays as it is."""
    check_query(request, OWNER)
    job = await context(request).service.cancel(user(request), request.path_params["name"], owner(request))
    return json_text(job.json)


@operation(router, "DELETE", JOB, answer=Answer, query=_FORCE | OWNER)
async def delete_job(request: Request) -> Response:
    """Remove the job with its logs and events; 409 while it runs, unless forced."""
    check_query(request, _FORCE, OWNER)
    sentence = await context(request).service.delete(
        user(request), request.path_params["name"], owner(request), force=_flag(request, "force")
    )
    return json_model(Answer(message=sentence))


def parse_submit(body: bytes) -> SubmitRequest:
    """Raises InvalidRequest with a sentence per wrong field."""
    try:
        return SubmitRequest.model_validate_json(body)
    except ValidationError as found:
        raise _no_object(found) or invalid_request(found, SubmitRequest) from found


def _no_object(found: ValidationError) -> InvalidRequest | None:
    """What is wrong with the body as a whole. It is not in the answer itself: it may hold secrets."""
    first = found.errors(include_url=False, include_input=False)[0]
    return None if first["loc"] else InvalidRequest(f"the body is no JSON object: {first['msg']}")


def _idempotency_key(request: Request) -> str | None:
    key = header(request, _KEY)
    if key is not None and not 0 < len(key) <= KEY_MAX:
        raise InvalidRequest(f"{paths.IDEMPOTENCY_KEY} has {len(key)} characters; 1 to {KEY_MAX} are allowed")
    return key


def _state(text: str | None) -> State | None:
    if text is None:
        return None
    try:
        return State(text.upper())
    except ValueError as error:
        raise InvalidRequest(f"state={text!r}: there are: {', '.join(State)}") from error


def _labels(texts: Sequence[str]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidRequest(f"label={text!r}: must be key=value")
        labels[key] = value
    return labels


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(f"rank={text[:50]!r} is no rank: 0 is the first")
    return int(text)


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"{name}={text!r}: must be true or false")
    return text in ("true", "1")
