"""The server itself: info, doctor, instance types, render; and in
`probes` its health and metrics.
"""

import asyncio
import re
from typing import Annotated

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from client_lib import __version__
from client_lib.errors import Forbidden, NotSupported, Unavailable
from client_lib.spec import paths
from client_lib.spec.request import SubmitRequest
from client_lib.spec.wire import (
    Check,
    DoctorReport,
    InstanceTypes,
    LoginIssuer,
    LoginLink,
    Manifest,
    ServerInfo,
)
from client_lib.version import commit
from server_stub.http import metrics
from server_stub.http.api.context import CurrentUser, JsonBody, Parts
from server_stub.http.api.large_bodies import BodyRoute
from server_stub.http.auth import LINK_S
from server_stub.http.users_file import bearer

_PLACE = re.compile(r"(?:\w[\w+.-]*://|(?<![\w./])/)[^\s,;()'\"]*[^\s,;()'\":.]")

router = APIRouter(route_class=BodyRoute)
probes = APIRouter(
    default_response_class=Response,
    responses={
        200: {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    },
)


@router.get(paths.INFO)
async def get_info(parts: Parts, user: CurrentUser) -> ServerInfo:
    """Version and settings of the server, and the user of the token."""
    return ServerInfo(
        version=__version__,
        commit=commit(),
        runtime=parts.settings.runtime,
        user=user.name,
        admin=user.admin,
        data_dir=str(parts.settings.data_dir) if user.admin else None,
        warm_pools=parts.service.runtime.warm_pools() if user.admin else [],
    )


@router.post(paths.LOGIN_LINKS, status_code=201)
async def add_login_link(request: Request, parts: Parts, user: CurrentUser) -> LoginLink:
    """A link to the pages of this server that logs a browser in as the user of
    the token. It works once.
    """
    header = request.headers.get("authorization")
    if header is None:
        raise Forbidden(
            f"a login link of {user.name} can't be made with a cookie",
            hint="send the token in the Authorization header",
        )
    return LoginLink(
        path=f"login?code={parts.logins.new_link(bearer(header), user)}", expires_s=LINK_S
    )


@router.get(paths.LOGIN, openapi_extra={"security": []})
async def get_login(parts: Parts) -> LoginIssuer:
    """The issuer of the tokens that this server takes, for a client without a token."""
    oidc = parts.users.tokens().oidc
    if oidc is None:
        raise NotSupported(
            "this server has no login by an issuer", hint="its operator gives you a token"
        )
    client_id = oidc.client_id or oidc.audience
    of_client = client_id == oidc.audience  # an ID token is always for the client that asked
    return LoginIssuer(
        issuer=oidc.issuer, client_id=client_id, token="id_token" if of_client else "access_token"
    )


@router.get(paths.DOCTOR)
async def get_doctor(parts: Parts, user: CurrentUser) -> DoctorReport:
    """Problems of the server, and the fix for each; paths and addresses
    are shown to admins only.
    """
    report = await parts.service.doctor()
    if (issuer := parts.users.tokens().oidc) is not None:
        from server_stub.http import oidc

        report.checks.append(await asyncio.to_thread(oidc.check, issuer.issuer))
    return (
        report
        if user.admin
        else DoctorReport(checks=[_for_users(check) for check in report.checks])
    )


def _for_users(check: Check) -> Check:
    if check.name == "database":  # messages of its driver contain hosts and users
        return Check(
            name=check.name,
            ok=check.ok,
            message="answers" if check.ok else "does not answer",
            fix=check.fix,
        )
    fix = None if check.fix is None else without_places(check.fix)
    return Check(name=check.name, ok=check.ok, message=without_places(check.message), fix=fix)


def without_places(text: str) -> str:
    """The text with … in place of each absolute path and each URL."""
    return _PLACE.sub("…", text)


@router.get(paths.INSTANCE_TYPES)
async def get_instance_types(parts: Parts, user: CurrentUser) -> InstanceTypes:
    """The part of the catalogue that the user may use, with what is free now."""
    known = parts.service.runtime.instance_types()
    return InstanceTypes(
        instance_types=[each for each in known if user.team is None or user.team.offers(each.name)]
    )


@router.post(paths.RENDER)
async def render(
    parts: Parts, user: CurrentUser, order: Annotated[SubmitRequest, JsonBody]
) -> Manifest:
    """The plan or manifest that a submit of this request would create. Nothing is created."""
    return await parts.service.render(user, order)


@probes.get(paths.PING, name="ping")
@probes.get(paths.HEALTHZ)
async def healthz() -> Response:
    """The process lives."""
    return PlainTextResponse("ok\n")


@probes.get(paths.READYZ)
async def readyz(parts: Parts) -> Response:
    """The server takes requests: its database takes writes and it is not stopping.

    A warning to operators may follow `ok` on a line of its own.
    """
    if parts.stopping.is_set():
        raise Unavailable("the server is stopping")
    await parts.service.check()
    warning = parts.service.runtime.warning()
    return PlainTextResponse(f"ok\nwarning: {warning}\n" if warning else "ok\n")


@probes.get(paths.METRICS)
async def get_metrics(parts: Parts) -> Response:
    """Metrics in Prometheus' text format."""
    service = parts.service
    types = parts.service.runtime.instance_types()
    jobs = await service.lookup.counts()
    found = metrics.registry(parts.traffic, jobs, parts.hub.followers, types, service.room.free)
    return Response(metrics.exposition(found), media_type=metrics.CONTENT_TYPE)
