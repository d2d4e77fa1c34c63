"""Pages at `/`, `/jobs/NAME`, `/server`, `/login` and `/static`. Links are relative: a proxy may put a prefix in front.

A page needs the cookie of a login; its forms carry the token of the login's pages, and answer with a redirect.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from client_lib.errors import ClientLibError, Forbidden, InvalidRequest, NotFound, TooLarge, Unauthorized
from client_lib.spec.job import MASK
from client_lib.spec.wire import EventList, JobInfo
from server_stub.files import outputs
from server_stub.http.api import answers, server
from server_stub.http.api.context import Context
from server_stub.http.auth import cookie, csrf_token, set_cookie
from server_stub.http.limits import Gate
from server_stub.http.page import code, views
from server_stub.service.values import User

JOBS = 100  # in a page of the table
MEMBERS = 1000  # of an unfolded group: all
FORM_MAX_BYTES = 512 * 1024  # it carries the arguments of a script
LOGIN_MAX_BYTES = 16 * 1024  # anyone may send it
_FIELDS = 20
_DIGITS = 9  # of a number in a form
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Pages:
    """The pages of one server."""

    def __init__(self, parts: Context) -> None:
        self._parts, self._logins = parts, parts.logins

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
                Gate,
                settings=self._parts.settings,
                bodies=self._parts.bodies,
                error=answers.error,
                max_body_bytes=FORM_MAX_BYTES,
            ),
        ]
        return Starlette(routes=routes, middleware=layers, exception_handlers=dict.fromkeys(_ERRORS, _error))

    def _for_user(
        self, handler: Callable[[Request, User], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Only for those who are logged in; others get the form of the login."""

        async def endpoint(request: Request) -> Response:
            user = self._logins.of_cookie(request.scope)
            if user is None:  # nothing of its body is read
                return _page(request, "login.html", 401)
            self._logins.user(request.scope, (await _form(request)).get("csrf"))
            request.scope["user"] = user
            return await handler(request, user)

        return endpoint

    async def _login(self, request: Request) -> Response:
        """Log in by the code of a link or by the token in the form; without both, show the form."""
        job, code = request.query_params.get("job"), request.query_params.get("code")
        if request.method == "POST":
            if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
                raise Forbidden("this form was sent by a page of another site")
            value = self._logins.log_in((await _form(request, LOGIN_MAX_BYTES)).get("token", "").strip())
        elif code:
            value = self._logins.log_in(None, code)
        else:
            return _page(request, "login.html")
        # not a redirect: after a link on another site the browser would leave the new cookie out
        response = _page(request, "entered.html", to=f"jobs/{quote(job, '')}" if job else "./")
        set_cookie(response, request.scope, value)
        return response

    async def _logout(self, request: Request, _: User) -> Response:
        self._logins.log_out(cookie(request.scope))
        response = RedirectResponse("login", 303)
        set_cookie(response, request.scope, "")
        return response

    async def _jobs(self, request: Request, user: User) -> Response:
        query = {key: value for key, value in request.query_params.items() if value}
        service, opened, members = self._parts.service, query.pop("open", ""), []
        page = json.loads(await service.page(user, views.filters(query), JOBS, query.get("cursor")))
        if any(f"{group['owner']}/{group['name']}" == opened for group in page["groups"]):
            owner, _, name = opened.rpartition("/")
            wanted = views.filters({"owner": owner, "group": name})
            members = json.loads(await service.page(user, wanted, MEMBERS, None))["jobs"]
        rows = views.rows(page, opened, members)
        return _page(request, "jobs.html", rows=rows, next_cursor=page["next_cursor"], query=query, opened=opened)

    async def _job(self, request: Request, user: User) -> Response:
        service, name, owner = self._parts.service, request.path_params["name"], request.query_params.get("owner")
        info = JobInfo.model_validate_json((await service.get(user, name, owner)).json)
        events = EventList.model_validate_json(await service.lookup.events(user, name, owner)).events
        place = await service.find_outputs(user, name, owner)
        files, left_out = await asyncio.to_thread(outputs.listing, place.job_dir)
        kept: dict[str, Any] = {"files": files, "left_out": left_out, "in_place": place.in_place}
        kept["key"] = secrets.token_hex(16)
        kept["types"] = [each.name for each in (await server.get_instance_types(self._parts, user)).instance_types]
        return _page(request, "job.html", **views.job(info, events, datetime.now(timezone.utc)), **kept)

    async def _code(self, request: Request, user: User) -> Response:
        name, owner = request.path_params["name"], request.query_params.get("owner")
        shown = await code.shown(self._parts, user, name, owner, request.query_params.get("file", ""))
        return _page(request, "code.html", **shown)

    async def _difference(self, request: Request, user: User) -> Response:
        name, query = request.path_params["name"], request.query_params
        diff = await code.difference(self._parts, user, name, query.get("with", ""), query.get("owner"))
        return _page(request, "difference.html", name=name, owner=query.get("owner") or user.name, diff=diff)

    async def _server(self, request: Request, user: User) -> Response:
        parts = self._parts
        figures = {
            "jobs": await parts.service.lookup.counts(),
            "followers": parts.hub.followers,
            "requests": parts.traffic.answers(),
            "errors": parts.traffic.answers(least_status=500),
            "free_bytes": parts.service.room.free,
        }
        info, report = await server.get_info(parts, user), await server.get_doctor(parts, user)
        types = (await server.get_instance_types(parts, user)).instance_types
        return _page(request, "server.html", info=info, checks=report.checks, types=types, figures=figures)

    async def _act(self, request: Request, user: User) -> Response:
        service, name, owner = self._parts.service, request.path_params["name"], request.query_params.get("owner")
        action, form = request.path_params["action"], await _form(request)
        if action == "cancel":
            await service.cancel(user, name, owner)
        elif action == "delete":
            await service.delete(user, name, owner, force=True)
            return RedirectResponse("../../", 303)
        elif action == "resubmit":
            changes = _changes(form)
            # of a double click the second one finds the job of the first; other arguments are another job
            drawn = json.dumps([form["key"], name, changes]).encode() if form.get("key") else None
            key = f"page-{hashlib.sha256(drawn).hexdigest()}" if drawn else None
            text = await service.submits.resubmit(user, name, changes, key)
            name = json.loads(text.json)["name"]
        else:
            raise NotFound(f"there is no page {request.scope['path']}")
        return RedirectResponse(f"../{quote(name, '')}?owner={quote(owner or user.name, '')}", 303)


_ERRORS = (ClientLibError, HTTPException, ClientDisconnect, OSError)


async def _error(request: Request, problem: Exception) -> Response:
    if isinstance(problem, ClientDisconnect):  # as `answers` does
        return Response(status_code=499)
    if isinstance(problem, OSError):
        problem = answers.out_of_files(problem)
    known = problem if isinstance(problem, ClientLibError) else NotFound(f"there is no page {request.scope['path']}")
    template = "login.html" if isinstance(known, Unauthorized) else "error.html"
    return _page(request, template, known.http_status, problem=known)


def _page(request: Request, template: str, status: int = 200, **view: object) -> Response:
    user = request.scope.get("user")
    shared = {
        "base": "../" * (request.scope["path"].count("/") - 1),
        "csrf": csrf_token(request.scope) if user else "",
        "user": user,
        "now": datetime.now(timezone.utc),
    }
    return HTMLResponse(views.render(template, **shared, **view), status, {"Cache-Control": "no-store"})


async def _form(request: Request, most: int = FORM_MAX_BYTES) -> dict[str, str]:
    """The fields of the form that was sent, with plain ends of lines. Raises TooLarge, InvalidRequest."""
    body = await request.body()
    if len(body) > most:
        raise TooLarge(f"the form is larger than the {most} bytes that this page takes")
    try:
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError as error:
        raise InvalidRequest(f"the form has more than {_FIELDS} fields") from error
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def _changes(form: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a spec that the form of a new run has. Raises InvalidRequest."""
    found: dict[str, Any] = {}
    if "args" in form and form["args"] != form.get("args_before"):
        found["args"] = _words(form["args"])
    if "n_workers" in form:
        if not form["n_workers"].isdecimal() or len(form["n_workers"]) > _DIGITS:
            raise InvalidRequest(f"n_workers: {form['n_workers'][: _DIGITS + 1]!r} is no number of workers")
        found["n_workers"] = int(form["n_workers"])
    if "instance_type" in form:
        found["instance_type"] = form["instance_type"] or None
    if "env_variables" in form and form["env_variables"] != form.get("env_variables_before"):
        found["env_variables"] = _variables(form["env_variables"], form.get("env_variables_before", ""))
    return found


def _variables(text: str, before: str) -> dict[str, str]:
    """The variables of an edited text; of a line that was there before, the stored value is kept, whatever its type."""
    found, kept = {}, set(before.split("\n"))
    for line in filter(str.strip, text.split("\n")):
        name, is_variable, value = line.partition("=")
        if not is_variable:
            raise InvalidRequest(f"env_variables: {line!r} is no variable", hint="write NAME=value, one per line")
        found[name.strip()] = MASK if line in kept else value
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidRequest(f"args: {error}: {text!r}", hint="quote it as in a shell") from error


async def _with_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-cache")  # of static files: browsers ask again, by their ETag
    return response
