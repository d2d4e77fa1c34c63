"""What is about the server and not about a job: info, doctor, instance types, render, health and metrics."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from client_lib import __version__
from client_lib.errors import Unavailable
from client_lib.spec import paths
from client_lib.spec.wire import DoctorReport, InstanceTypes, Manifest, ServerInfo, SubmitRequest
from server_stub.api.answers import json_model
from server_stub.api.context import context, user
from server_stub.api.jobs import parse_submit
from server_stub.api.operation import check_query, new_router, operation

router = new_router()


@operation(router, "GET", paths.INFO, answer=ServerInfo)
async def get_info(request: Request) -> Response:
    """Which server this is, and who asks."""
    check_query(request)
    settings, asking = context(request).settings, user(request)
    return json_model(
        ServerInfo(
            version=__version__,
            runtime=settings.runtime,
            user=asking.name,
            admin=asking.admin,
            data_dir=str(settings.data_dir) if asking.admin else None,
            warm_pools=context(request).service.warm_pools() if asking.admin else [],
        )
    )


@operation(router, "GET", paths.DOCTOR, answer=DoctorReport)
async def get_doctor(request: Request) -> Response:
    """What is wrong here, and the fix for each."""
    check_query(request)
    return json_model(await context(request).service.doctor())


@operation(router, "GET", paths.INSTANCE_TYPES, answer=InstanceTypes)
async def get_instance_types(request: Request) -> Response:
    """The catalogue, with what is free now."""
    check_query(request)
    return json_model(InstanceTypes(instance_types=context(request).service.instance_types()))


@operation(router, "POST", paths.RENDER, answer=Manifest, body=SubmitRequest)
async def render(request: Request) -> Response:
    """What a submit of this request would create. Nothing is created."""
    check_query(request)
    parts = context(request)
    order = parse_submit(await request.body())
    return json_model(parts.service.render(user(request), order))


@operation(router, "GET", paths.HEALTHZ, answer=("text/plain",))
async def healthz(_: Request) -> Response:
    """The process lives."""
    return PlainTextResponse("ok\n")


@operation(router, "GET", paths.READYZ, answer=("text/plain",))
async def readyz(request: Request) -> Response:
    """It takes requests: its database answers and it is not stopping."""
    parts = context(request)
    if parts.stopping.is_set():
        raise Unavailable("the server is stopping")
    await parts.service.counts()
    return PlainTextResponse("ok\n")


@operation(router, "GET", paths.METRICS, answer=("text/plain",))
async def get_metrics(request: Request) -> Response:
    """Prometheus' text format."""
    from server_stub import metrics  # prometheus-client takes 90 ms to import, and a local server is never scraped

    parts = context(request)
    service = parts.service
    text = metrics.exposition(parts.traffic, await service.counts(), parts.hub.followers, service.instance_types())
    return Response(text, media_type=metrics.CONTENT_TYPE)
