"""Pages at `/`, `/jobs/NAME`, `/server`, `/login` and `/static`. Links are relative: a proxy may
put a prefix in front.

A page needs the cookie of a login; its forms carry the token of the login's pages, and answer with
a redirect.
"""

import hashlib
import json
import os
import secrets
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from client_lib.errors import (
    ClientLibError,
    Forbidden,
    InvalidRequest,
    NotFound,
    ServerError,
    TooLarge,
    Unauthorized,
)
from client_lib.reports import difference
from client_lib.reports.difference import JobDiff, Ran
from client_lib.spec.metrics import JobMetrics
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.secrets import MASK
from client_lib.spec.states import State
from client_lib.spec.wire import EventList, JobInfo
from server_stub.files.snapshot_files import SnapshotFile, read_files
from server_stub.http.api import answers, server
from server_stub.http.api.context import Context, Named
from server_stub.http.api.jobs import readable
from server_stub.http.auth import cookie, csrf_token, set_cookie
from server_stub.http.limits import STRANGERS_BODY_BYTES, Guard
from server_stub.http.page import views
from server_stub.http.waiting import while_connected
from server_stub.turns import finished
from server_stub.users import User

JOBS = 100  # in a page of the table
MEMBERS = 1000  # of an unfolded group: all
FORM_MAX_BYTES = 512 * 1024  # it carries the arguments of a script
LOGIN_MAX_BYTES = STRANGERS_BODY_BYTES  # anyone may send it
_FIELDS = 20
_DIGITS = 9  # of a number in a form
_POINTS = 1000  # of a curve whose best value is compared
_OTHERS_MAX = 8  # jobs with which a page compares one
_COMPARED_MAX = 50  # files
# The lines of a larger file are not compared: at these bounds a comparison takes up to 0.1 s.
_COMPARED_BYTES = 64 * 1024
_COMPARED_LINES = 5000
# an archive takes seconds; others need the shared threads
_threads = ThreadPoolExecutor(2, thread_name_prefix="code")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, Named], Coroutine[Any, Any, Response]]


class Pages:
    """The pages of one server."""

    def __init__(self, parts: Context) -> None:
        self._parts = parts
        self._logins = parts.logins

    def application(self) -> Starlette:
        """The routes with their layers."""
        routes = [
            Route("/", self._for_user(self._jobs)),
            Route("/jobs/{name}", self._for_user(self._job)),
            Route("/jobs/{name}/code", self._for_user(self._code)),
            Route("/jobs/{name}/difference", self._for_user(self._difference)),
            Route("/jobs/{name}/{action}", self._for_user(self._act), methods=["POST"]),
            Route("/server", self._for_user(self._server)),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._for_user(self._logout), methods=["POST"]),
            Mount("/static", StaticFiles(directory=views.FOLDER / "static")),
        ]
        layers = [
            Middleware(BaseHTTPMiddleware, dispatch=_with_headers),
            Middleware(
                Guard, bodies=self._parts.bodies, error=answers.error, max_body_bytes=FORM_MAX_BYTES
            ),
        ]
        return Starlette(
            routes=routes,
            middleware=layers,
            exception_handlers={**dict.fromkeys(_ERRORS, _error), Exception: _bug},
        )

    def _for_user(self, handler: Handler) -> Endpoint:
        """Only for logged-in users; others get the login form."""

        async def endpoint(request: Request) -> Response:
            user = self._logins.of_cookie(request.scope)
            if user is None:  # nothing of its body is read
                return _page(request, "login.html", 401)
            request.scope["user"] = user
            self._logins.user(request.scope, (await _form(request)).get("csrf"))
            of = Named(user, request.path_params.get("name", ""), request.query_params.get("owner"))
            page = handler(request, of)
            return await (while_connected(request, page) if request.method == "GET" else page)

        return endpoint

    async def _login(self, request: Request) -> Response:
        """Log in by the code of a link or by the token in the form; without both, show the form."""
        to = _after_login(request.query_params)
        code = request.query_params.get("code")
        if request.method == "POST":
            if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
                raise Forbidden("this form was sent by a page of another site")
            value = self._logins.log_in(
                (await _form(request, LOGIN_MAX_BYTES)).get("token", "").strip()
            )
        elif code:
            value = self._logins.log_in(None, code)
        else:
            return _page(request, "login.html")
        # not a redirect: after a link on another site the browser would leave the new cookie out
        response = _page(request, "entered.html", to=to)
        set_cookie(response, request.scope, value)
        return response

    async def _logout(self, request: Request, _: Named) -> Response:
        self._logins.log_out(cookie(request.scope))
        response = RedirectResponse("login", 303)
        set_cookie(response, request.scope, "")
        return response

    async def _jobs(self, request: Request, of: Named) -> Response:
        query = {key: value for key, value in request.query_params.items() if value}
        service = self._parts.service
        opened = query.pop("open", "")
        members = []
        page = json.loads(
            await service.page(of.user, views.filters(query), JOBS, query.get("cursor"))
        )
        if any(f"{group['owner']}/{group['name']}" == opened for group in page["groups"]):
            owner, _, name = opened.rpartition("/")
            wanted = views.filters({"owner": owner, "group": name})
            members = json.loads(await service.page(of.user, wanted, MEMBERS, None))["jobs"]
        rows = views.rows(page, opened, members)
        return _page(
            request,
            "jobs.html",
            rows=rows,
            next_cursor=page["next_cursor"],
            query=query,
            opened=opened,
        )

    async def _job(self, request: Request, of: Named) -> Response:
        service = self._parts.service
        info = await self._info(of)
        events = EventList.model_validate_json(await service.lookup.events(*of)).events
        now = datetime.now(timezone.utc)
        checkpoints = views.checkpoints(await service.checkpoints.seen(*of), now)
        shown = views.job(info, events, now) | checkpoints | dict(await service.outputs(*of))
        types = [
            each.name
            for each in (await server.get_instance_types(self._parts, of.user)).instance_types
        ]
        return _page(request, "job.html", **shown, types=types, key=secrets.token_hex(16))

    async def _info(self, of: Named) -> JobInfo:
        return JobInfo.model_validate_json(await self._parts.service.get(*of))

    async def _code(self, request: Request, of: Named) -> Response:
        """The code of a job, with the text of one file."""
        service = self._parts.service
        info = await self._info(of)
        file = request.query_params.get("file", "")
        if not isinstance(info.code, CodeSnapshot):
            ran = (await service.provenance.of(*of)).submitted
            script = (await service.lookup.find(*of)).row.script_path
            in_place = os.path.dirname(script) if script else (await service.outputs(*of)).in_place
            return _page(request, "code.html", job=info, ran=ran, in_place=in_place, files=[])
        wanted = {file or info.code.script or ""}
        archive = readable(self._parts, of.user, info.code.sha256)
        async with self._parts.comparisons.of(of.user.name):
            found = await _in_thread(read_files, archive, wanted)
        chosen = next((each for each in found if each.name in wanted), None)
        if file and chosen is None:
            raise NotFound(f"the code of job {of.name} has no file {file}")
        return _page(request, "code.html", job=info, files=found, chosen=chosen)

    async def _difference(self, request: Request, of: Named) -> Response:
        """Changes from each job `with` to this job; without `with`, from the last success to a
        failed job.
        """
        second = await self._ran(of)
        asked = ",".join(request.query_params.getlist("with")).split(",")
        others = list(dict.fromkeys(filter(None, map(str.strip, asked))))
        if len(others) > _OTHERS_MAX:
            raise InvalidRequest(
                f"with={','.join(others)}: at most {_OTHERS_MAX} jobs are compared"
            )
        if not others and second.provenance.last_success:
            others = [second.provenance.last_success]
        diffs = []
        for other in others:
            first = await self._ran(of._replace(name=other))
            async with self._parts.comparisons.of(of.user.name):
                diffs.append(await self._compared(of.user, first, second))
        return _page(
            request,
            "difference.html",
            name=of.name,
            owner=of.owner or of.user.name,
            diffs=diffs,
            failed=second.info.state is State.FAILED,
        )

    async def _ran(self, of: Named) -> Ran:
        service = self._parts.service
        ran = Ran(await self._info(of), await service.provenance.of(*of))
        with suppress(ClientLibError):  # it was submitted with observe=False
            found = await service.metrics.of(of.user, of.name, 0, _POINTS, of.owner)
            ran = ran._replace(metrics=JobMetrics.model_validate_json(found))
        return ran

    async def _compared(self, user: User, first: Ran, second: Ran) -> JobDiff:
        before = first.info.code
        after = second.info.code
        more = 0
        if isinstance(before, CodeSnapshot) and isinstance(after, CodeSnapshot) and before != after:
            # of another user, or too large: only the digests are compared
            with suppress(ClientLibError):
                archives = [readable(self._parts, user, each.sha256) for each in (before, after)]
                old, new, more = await _in_thread(_texts, archives)
                first = first._replace(texts=old)
                second = second._replace(texts=new)
        found = await _in_thread(difference.compare, first, second)
        if not more:
            return found
        one_or_more = "1 more file that differs" if more == 1 else f"{more} more files that differ"
        return found._replace(
            parts={**found.parts, "not compared": [f"{one_or_more}: a page shows {_COMPARED_MAX}"]}
        )

    async def _server(self, request: Request, of: Named) -> Response:
        parts = self._parts
        figures = {
            "jobs": await parts.service.lookup.counts(),
            "followers": parts.hub.followers,
            "requests": parts.traffic.answers(),
            "errors": parts.traffic.answers(least_status=500),
            "free_bytes": parts.service.room.free,
        }
        info = await server.get_info(parts, of.user)
        report = await server.get_doctor(parts, of.user)
        types = (await server.get_instance_types(parts, of.user)).instance_types
        return _page(
            request, "server.html", info=info, checks=report.checks, types=types, figures=figures
        )

    async def _act(self, request: Request, of: Named) -> Response:
        service = self._parts.service
        name = of.name
        action = request.path_params["action"]
        form = await _form(request)
        if action == "cancel":
            await service.cancel(*of)
        elif action == "delete":
            await service.delete(*of, force=True)
            return RedirectResponse("../../", 303)
        elif action == "resubmit":
            changes = _changes(form)
            # of a double click the second one finds the job of the first; other arguments are
            # another job
            drawn = json.dumps([form["key"], name, changes]).encode() if form.get("key") else None
            key = f"page-{hashlib.sha256(drawn).hexdigest()}" if drawn else None
            text = await service.submits.resubmit(of.user, name, changes, key)
            name = json.loads(text)["name"]
        else:
            raise NotFound(f"there is no page {request.scope['path']}")
        return RedirectResponse(
            f"../{quote(name, '')}?owner={quote(of.owner or of.user.name, '')}", 303
        )


def _after_login(query: Mapping[str, str]) -> str:
    """The page to which a link leads: a job's, or the list, with a group (owner/name) unfolded."""
    if job := query.get("job"):
        return f"jobs/{quote(job, '')}"
    group = query.get("group")
    return f"./?open={quote(group, '')}" if group else "./"


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    return await finished(_threads.submit(function, *arguments))


def _texts(archives: Sequence[Path]) -> tuple[dict[str, str], dict[str, str], int]:
    """The texts of the files that differ between two snapshots, and how many
    more such files there are.
    """
    old, new = [{each.name: each for each in read_files(archive)} for archive in archives]
    differ = [each for each in sorted({*old, *new}) if old.get(each) != new.get(each)]
    names = differ[:_COMPARED_MAX]
    first, second = [
        {each.name: _text(each) for each in read_files(archive, names) if each.name in names}
        for archive in archives
    ]
    return first, second, len(differ) - len(names)


def _text(file: SnapshotFile) -> str:
    """The text of a file that is compared; for one that is no text or is too long, a sentence."""
    if (
        file.text is None
        or file.size > _COMPARED_BYTES
        or len(difference.lines(file.text)) > _COMPARED_LINES
    ):
        limits = f"{_COMPARED_BYTES // 1024} KiB or {_COMPARED_LINES} lines"
        why = f"longer than {limits}" if file.size > _COMPARED_BYTES or file.text else "no text"
        return f"{file.size} bytes with digest {file.digest[:12]}; lines are not compared: {why}\n"
    return file.text


_ERRORS = (ClientLibError, HTTPException, ClientDisconnect, OSError)


async def _error(request: Request, problem: Exception) -> Response:
    if isinstance(problem, ClientDisconnect):  # as `answers` does
        return Response(status_code=499)
    if isinstance(problem, OSError):
        problem = answers.out_of_files(problem)
    known = (
        problem
        if isinstance(problem, ClientLibError)
        else NotFound(f"there is no page {request.scope['path']}")
    )
    template = "login.html" if isinstance(known, Unauthorized) else "error.html"
    return _page(request, template, known.http_status, problem=known)


async def _bug(request: Request, _: Exception) -> Response:
    """The page for an error that nobody foresaw; the layers around the pages log it."""
    problem = ServerError(
        "the server could not show this page",
        hint=f"its log has the cause, at request {request.scope['request_id']}",
    )
    response = _page(request, "error.html", problem.http_status, problem=problem)
    response.headers.update(HEADERS)  # `_with_headers` was left by the error
    return response


def _page(request: Request, template: str, status: int = 200, **view: object) -> Response:
    user = request.scope.get("user")
    shared = {
        "base": "../" * (request.scope["path"].count("/") - 1),
        "csrf": csrf_token(request.scope) if user else "",
        "user": user,
        "now": datetime.now(timezone.utc),
    }
    return HTMLResponse(
        views.render(template, **shared, **view), status, {"Cache-Control": "no-store"}
    )


async def _form(request: Request, most: int = FORM_MAX_BYTES) -> dict[str, str]:
    """The fields of the form that was sent, with plain ends of lines. Raises
    TooLarge, InvalidRequest.
    """
    body = await request.body()
    if len(body) > most:
        raise TooLarge(f"the form is larger than the {most} bytes that this page takes")
    try:
        fields = parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS
        )
    except ValueError as error:
        raise InvalidRequest(f"the form has more than {_FIELDS} fields") from error
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def _changes(form: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a spec that the form of a new run has. Raises InvalidRequest."""
    found: dict[str, Any] = {}
    if "args" in form and form["args"] != form.get("args_before"):
        try:
            found["args"] = shlex.split(form["args"])
        except ValueError as error:
            raise InvalidRequest(
                f"args: {error}: {form['args']!r}", hint="quote it as in a shell"
            ) from error
    if "n_workers" in form:
        if not form["n_workers"].isdecimal() or len(form["n_workers"]) > _DIGITS:
            raise InvalidRequest(
                f"n_workers: {form['n_workers'][: _DIGITS + 1]!r} is no number of workers"
            )
        found["n_workers"] = int(form["n_workers"])
    if "instance_type" in form:
        found["instance_type"] = form["instance_type"] or None
    if "env_variables" in form and form["env_variables"] != form.get("env_variables_before"):
        found["env_variables"] = _variables(
            form["env_variables"], form.get("env_variables_before", "")
        )
    return found


def _variables(text: str, before: str) -> dict[str, str]:
    """The variables of an edited text; of a line that was there before, the stored value
    is kept, whatever its type.
    """
    found = {}
    kept = set(before.split("\n"))
    for line in filter(str.strip, text.split("\n")):
        name, is_variable, value = line.partition("=")
        if not is_variable:
            raise InvalidRequest(
                f"env_variables: {line!r} is no variable", hint="write NAME=value, one per line"
            )
        found[name.strip()] = MASK if line in kept else value
    return found


async def _with_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    response.headers.update(HEADERS)
    # of static files: browsers ask again, by their ETag
    response.headers.setdefault("Cache-Control", "no-cache")
    return response
