"""Requests to the Kubernetes API, raw JSON in and raw JSON out, and watches. The one module that
imports `kubernetes`.

The library reads kubeconfigs and service accounts, refreshes their tokens and makes the TLS
connections. Its models, retries and watches are not used, because they differ between its releases
(tested: 35.0.0 and 37.0.2). Every request blocks: make it with `call_in_thread`,
`call_until_answered` or in a `StreamThread`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.config import ConfigException

from client_lib.errors import ServerError
from client_lib.version import user_agent

JSON = "application/json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
METADATA = f"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, {JSON}"
"""Accept header that asks for the metadata of an object without its content, which may be large."""
CONNECT_S = 5.0
READ_S = 30.0
_LINE_MAX = 16 * 2**20
_CHUNK = 65536
_UNUSABLE = (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError)
"""Exceptions of the library for a missing, damaged or incomplete kubeconfig or token."""
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
THREADS = 16
FIRST_PAUSE_S = 0.5
"""Pause before a request is repeated for the first time; each later pause is twice as long."""
LONGEST_PAUSE_S = 15.0
BUSY_S = 60.0
"""Longest wait within a request for an API server that has too many requests (429, as of API
Priority and Fairness).
"""
# 45 s: an API server does not know its users and custom resources at once after its start
FEW_TRIES = 8
WATCH_S = 50  # time limit of one watch at the API server
SILENCE_S = 65.0  # a watch without data for longer has a dead connection
RELIST_S = 900.0  # a new list finds changes that a watch has lost
LASTED_S = 5.0  # a watch of this length counts as progress, though nothing changed
PAGE = 500

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)
Query = Mapping[str, str | int]


class ApiError(Exception):
    """A request that the API server rejected, or did not answer (`status` 0)."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        """`retry_after_s`: pause that a busy API server asks for; 0: none."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class Api:
    """One cluster, accessed as one user. Safe to use from several threads."""

    def __init__(self, configuration: client.Configuration) -> None:
        configuration.connection_pool_maxsize = 32
        self._configuration = configuration
        self._pool: urllib3.PoolManager = client.ApiClient(configuration).rest_client.pool_manager
        self.host = str(configuration.host)
        self._closed = threading.Event()

    def close(self) -> None:
        """End the waits of all requests, which then raise ApiError."""
        self._closed.set()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Query | None = None,
        accept: str = JSON,
    ) -> Any:
        """The JSON of the response. A PATCH is a strategic merge. Raises ApiError."""
        text = self._send(method, path, body, query, accept).data
        try:
            return json.loads(text) if text else {}
        except ValueError as error:  # of a proxy
            raise ApiError(0, f"{self.host} does not answer with JSON: {text[:100]!r}") from error

    def get(self, path: str, query: Query | None = None) -> Any:
        return self.request("GET", path, query=query)

    def create(self, path: str, body: Mapping[str, object]) -> Any:
        """Create an object in a collection and return its metadata. A field unknown
        to the cluster is an error.
        """
        return self.request("POST", path, body, {"fieldValidation": "Strict"}, accept=METADATA)

    def text(self, path: str, query: Query | None = None) -> bytes:
        return self._send("GET", path, None, query).data

    def stream(self, path: str, query: Query, read_s: float) -> Stream:
        """Open a response that continues; it ends after `read_s` without data. Raises ApiError."""
        return Stream(self._send("GET", path, None, query, stream_s=read_s))

    def _send(
        self,
        method: str,
        path: str,
        body: object,
        query: Query | None,
        accept: str = JSON,
        stream_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """The response with its content; with `stream_s` its content is not read yet. A request
        that a busy API server has not begun is sent again after the pause that the server asks for.
        """
        give_up_at = time.monotonic() + BUSY_S
        while True:
            try:
                return self._send_once(method, path, body, query, accept, stream_s)
            except ApiError as error:
                # not all at the same moment
                pause_s = error.retry_after_s * random.uniform(1.0, 1.1)
                if not pause_s or time.monotonic() + pause_s > give_up_at:
                    raise
                if self._closed.wait(pause_s):
                    raise

    def _send_once(
        self,
        method: str,
        path: str,
        body: object,
        query: Query | None,
        accept: str,
        stream_s: float | None,
    ) -> urllib3.BaseHTTPResponse:
        url = self.host + path + ("?" + urlencode(query) if query else "")
        kind = STRATEGIC_MERGE if method == "PATCH" else JSON
        headers = {
            "Accept": accept,
            "Content-Type": kind,
            "User-Agent": user_agent("client-lib-server"),
        }
        try:
            # renews an expired token
            settings: Mapping[str, Any] = self._configuration.auth_settings()
        except _UNUSABLE as error:
            raise ApiError(
                0, f"the credentials for {self.host} can't be renewed: {error}"
            ) from error
        headers |= {setting["key"]: str(setting["value"]) for setting in settings.values()}
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=stream_s or READ_S),
                retries=False,
                preload_content=False,  # an error whose text breaks off has a status nevertheless
            )
            if response.status < 300 and stream_s is None:
                response.read(cache_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"{self.host} does not answer: {error}") from error
        if response.status < 300:
            return response
        text = ""
        with contextlib.suppress(urllib3.exceptions.HTTPError):  # it breaks off
            text = response.data.decode("utf-8", "replace").strip()
        response.release_conn()
        try:
            message = json.loads(text)["message"]  # of a Status object
        except (ValueError, KeyError, TypeError):
            message = text or f"HTTP status {response.status}"
        raise ApiError(response.status, str(message), _retry_after_s(response))


def _retry_after_s(response: urllib3.BaseHTTPResponse) -> float:
    """Seconds after which a busy API server takes the request; 0: it does not say so."""
    told = response.headers.get("Retry-After", "")
    is_number = told.isascii() and told.isdecimal()
    return float(told) if response.status == 429 and is_number else 0.0


class Stream:
    """Lines of a response, as they arrive. Ends when the server ends it, on a lost
    connection, or after `abort`.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            for chunk in self._response.stream(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
                if len(rest) > _LINE_MAX:
                    raise ApiError(0, f"a line of more than {_LINE_MAX} bytes")
        except (urllib3.exceptions.HTTPError, OSError, AttributeError):
            # limit of a proxy, restart of the API server, silence, `abort`: the normal ends of a
            # watch
            return
        finally:
            self._response.close()

    def abort(self) -> None:
        """End the iteration from another thread."""
        sock = getattr(getattr(self._response, "connection", None), "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)


class StreamThread(threading.Thread):
    """A thread, made on an event loop, that reads one stream of the API after another and can be
    stopped at any moment, also while a stream is silent. Its `run` must return soon after
    `stopping` is set."""

    def __init__(self, api: Api, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._api = api
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self.stopping = threading.Event()

    def stop(self) -> None:
        """Abort the stream and return at once."""
        self.stopping.set()
        if self._stream is not None:
            self._stream.abort()

    def _call_on_loop(self, call: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server is stopping
            self._loop.call_soon_threadsafe(call, *args)

    def _lines(self, path: str, query: Query, silence_s: float) -> Iterator[bytes]:
        """The lines of the next stream, until `stop`. Raises ApiError."""
        self._stream = self._api.stream(path, query, silence_s)
        if self.stopping.is_set():  # `stop` found no stream to abort
            self._stream.abort()
        for line in self._stream:
            if self.stopping.is_set():
                return
            yield line


_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kubernetes")


async def call_in_thread(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Execute a blocking request in a thread and return its result. The pool is separate from
    asyncio's own, so that a slow API server cannot delay writing worker reports to disk."""
    return await asyncio.get_running_loop().run_in_executor(
        _threads, lambda: call(*args, **options)
    )


def find(api: Api, path: str, *, may_be_hidden: bool = False) -> Any:
    """The object at `path`; None if it does not exist, or if it `may_be_hidden` and this server may
    not read it. Raises ApiError."""
    try:
        return api.get(path)
    except ApiError as error:
        if error.status == 404 or (error.status == 403 and may_be_hidden):
            return None
        raise


def serves(api: Api, api_version: str, plural: str) -> bool:
    """True if the cluster has such objects. Raises ApiError."""
    served = find(api, f"/apis/{api_version}", may_be_hidden=True)
    return served is not None and plural in [
        each.get("name") for each in served.get("resources", [])
    ]


async def call_until_answered(call: Callable[[], T], refusals: float = math.inf) -> T:
    """Execute a request in a thread, again after each ApiError, for steps that must not be left
    out. Raises ApiError: this server has been refused the right (403) so many times."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await call_in_thread(call)
        except ApiError as error:
            refusals -= error.status == 403
            if refusals <= 0:
                raise
            _log.warning("repeated in %g s: %s", pause_s, error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def connect(kubeconfig: Path | None, context: str | None) -> Api:
    """Connect as the user of a kubeconfig; without one as the service account of this pod, else as
    `kubectl` would. Raises ServerError: there is no usable configuration."""
    configuration = client.Configuration()
    try:
        if kubeconfig is None and context is None and _in_cluster():
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=None if kubeconfig is None else str(kubeconfig),
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
    except _UNUSABLE as error:
        raise ServerError(
            f"no Kubernetes cluster can be reached with {kubeconfig or 'the default kubeconfig'}: "
            f"{error}",
            hint="CLIENT_LIB_SERVER_KUBECONFIG and CLIENT_LIB_SERVER_KUBE_CONTEXT choose one; a "
            "pod needs neither",
        ) from error
    return Api(configuration)


def default_namespace(kubeconfig: Path | None, context: str | None) -> str:
    """The namespace of this pod, else the namespace of the context, else `default`."""
    if kubeconfig is None and context is None and _in_cluster():
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    try:
        contexts, current = config.list_kube_config_contexts(  # type: ignore[no-untyped-call]
            config_file=None if kubeconfig is None else str(kubeconfig)
        )
    except _UNUSABLE:
        return "default"  # `connect` reports the error
    wanted = next((each for each in contexts if each["name"] == context), current) or {}
    return str(wanted.get("context", {}).get("namespace") or "default")


def _in_cluster() -> bool:
    return (_SERVICE_ACCOUNT / "token").exists()


class ObjectWatch(StreamThread, Generic[T]):
    """Lists one kind of object and then watches its changes: `path` of its collection, `query` with
    selectors.

    `read` parses an object, in this thread; it returns None for one that does not matter. The
    result goes to the event loop on which the watch was made: to `take_list` with all others that
    exist, to `put` after a change, to `gone` with its last state after its deletion.

    The API server limits the time of a watch, and SILENCE_S ends one with a dead connection.
    Bookmarks renew the resourceVersion; after an expired one (410) all objects are listed again. A
    pause follows every round without progress.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: dict[str, str],
        read: Callable[[Any], T | None],
        take_list: Callable[[list[T]], None],
        put: Callable[[T], None],
        gone: Callable[[T], None],
        *,
        may_be_absent: bool = False,
    ) -> None:
        """`may_be_absent`: it is no problem if the cluster has no such kind, or does
        not let this server see it.
        """
        super().__init__(api, f"watch {path.rpartition('/')[2]}")
        self._path = path
        self._query = query
        self._may_be_absent = may_be_absent
        self._read = read
        self._take_list = take_list
        self._put = put
        self._gone = gone
        self._version: str | None = None
        self._listed_at = 0.0
        self.problem: str | None = None
        """Reason why the watch does not work at the moment; None: it works."""

    def run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self.stopping.is_set():
            try:
                progress = self._round()
                self.problem = None
            except ApiError as error:
                progress = False
                if error.status == 410:
                    self._version = None
                absent = self._may_be_absent and error.status in (403, 404)
                if not absent and self.problem != error.message:
                    self.problem = error.message
                    _log.warning("watching %s: %s", self._path, error.message)
            pause_s = FIRST_PAUSE_S if progress else min(pause_s * 2, LONGEST_PAUSE_S)
            if not progress:
                self.stopping.wait(pause_s * random.uniform(0.5, 1.0))

    def _round(self) -> bool:
        """List the objects if that is due, then make one watch. Returns
        True if it made progress.
        """
        begun = time.monotonic()
        if self._version is None or begun - self._listed_at > RELIST_S:
            self._version = self._list()
            self._listed_at = begun
            self.problem = None
        query = self._query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        query["resourceVersion"] = self._version
        changed = False
        for line in self._lines(self._path, query, SILENCE_S):
            try:
                event = json.loads(line)
                kind = event["type"]
                found = event["object"]
            except (ValueError, KeyError, TypeError):
                continue  # the connection broke within a line
            if kind == "ERROR":
                raise ApiError(
                    int(found.get("code", 500)), str(found.get("message", "the watch failed"))
                )
            changed = True
            self._version = str(found["metadata"]["resourceVersion"])
            if kind != "BOOKMARK" and (read := self._read(found)) is not None:
                self._call_on_loop(self._gone if kind == "DELETED" else self._put, read)
        return changed or time.monotonic() - begun > LASTED_S

    def _list(self) -> str:
        found: list[T] = []
        query: dict[str, str] = self._query | {"limit": str(PAGE)}
        while True:
            page = self._api.get(self._path, query)
            try:
                objects = page.get("items") or []
                following = page["metadata"].get("continue")
                version = page["metadata"]["resourceVersion"]
            except (
                AttributeError,
                LookupError,
                TypeError,
            ) as error:  # of a proxy; the watch must outlast it
                raise ApiError(0, f"it is no list of objects: {str(page)[:100]}") from error
            # of a page at a time: a parsed object is a hundredth of its JSON
            found += [read for each in objects if (read := self._read(each)) is not None]
            if not following:
                self._call_on_loop(self._take_list, found)
                return str(version)
            query = query | {"continue": following}
