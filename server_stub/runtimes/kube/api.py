"""Requests to the Kubernetes API: raw JSON in, raw JSON out. The one module that imports `kubernetes`.

The library reads kubeconfigs and service accounts, refreshes their tokens and makes the TLS connections; its models,
its retries and its watches are not used: they differ between its releases (tested: 35.0.0 and 37.0.2). Everything here
blocks: call it in a thread. Nothing here decides or retries.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.config import ConfigException

from client_lib.errors import ServerError

JSON = "application/json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
METADATA = f"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, {JSON}"
"""An object without its content: who has written it knows that, and it may be large."""
CONNECT_S, READ_S = 5.0, 30.0
_LINE_MAX = 16 * 2**20
_CHUNK = 65536
_UNUSABLE = (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError)
"""What the library raises of a kubeconfig that is missing, damaged or incomplete."""
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Query = Mapping[str, str | int | bool]


class ApiError(Exception):
    """The API server refused, or did not answer (`status` 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def expired(self) -> bool:
        """The resourceVersion is too old: list anew."""
        return self.status == 410


class Api:
    """One cluster, as one user. Safe to use from several threads."""

    def __init__(self, configuration: client.Configuration) -> None:
        configuration.connection_pool_maxsize = 32
        self._configuration = configuration
        self._pool: urllib3.PoolManager = client.ApiClient(configuration).rest_client.pool_manager
        self.host = str(configuration.host)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Query | None = None,
        kind: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """What the API answers, as JSON. `kind`: the Content-Type of `body`. Raises ApiError."""
        response = self._send(method, path, body, query, READ_S, kind, accept)
        try:
            text = response.read()
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"{self.host} broke off: {error}") from error
        finally:
            response.release_conn()
        return json.loads(text) if text else {}

    def get(self, path: str, query: Query | None = None) -> Any:
        return self.request("GET", path, query=query)

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST to a collection; a field that the cluster doesn't know is an error. The metadata of what was made."""
        return self.request("POST", path, body, {"fieldValidation": "Strict"}, accept=METADATA)

    def text(self, path: str, query: Query | None = None) -> bytes:
        """The answer as it is. Raises ApiError."""
        response = self._send("GET", path, None, query, READ_S)
        try:
            return bytes(response.read())
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"{self.host} broke off: {error}") from error
        finally:
            response.release_conn()

    def stream(self, path: str, query: Query, read_s: float) -> Stream:
        """An answer that goes on. Silence of `read_s` ends it. Raises ApiError."""
        return Stream(self._send("GET", path, None, query, read_s))

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Query | None,
        read_s: float,
        kind: str = JSON,
        accept: str = JSON,
    ) -> urllib3.BaseHTTPResponse:
        url = self.host + path + ("?" + urlencode(_plain(query)) if query else "")
        headers = {"Accept": accept, "Content-Type": kind, "User-Agent": "client-lib-server"}
        settings: Mapping[str, Any] = self._configuration.auth_settings()  # reads a new token when the old one is due
        headers |= {setting["key"]: str(setting["value"]) for setting in settings.values()}
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s),
                retries=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"{self.host} does not answer: {error}") from error
        if response.status >= 300:
            raise _refusal(response)
        return response


class Stream:
    """Lines of an answer, as they come. Ends when the server ends it, or breaks off, or after `abort`."""

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
            return  # a proxy's limit, a restart of the API server, silence, `abort`: the normal ends of a watch
        finally:
            self._response.close()

    def abort(self) -> None:
        """From another thread: the reader comes back at once."""
        connection = getattr(self._response, "connection", None)
        sock = getattr(connection, "sock", None)
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already


def connect(kubeconfig: Path | None, context: str | None) -> Api:
    """As the user of a kubeconfig; without one as this pod's service account, else as `kubectl` would.

    Raises ServerError: there is no configuration that can be used.
    """
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
        where = kubeconfig or "the default kubeconfig"
        raise ServerError(
            f"no Kubernetes cluster can be reached with {where}: {error}",
            hint="CLIENT_LIB_SERVER_KUBECONFIG and CLIENT_LIB_SERVER_KUBE_CONTEXT say which; a pod needs neither",
        ) from error
    return Api(configuration)


def default_namespace(kubeconfig: Path | None, context: str | None) -> str:
    """The pod's own, else that of the context, else `default`."""
    if kubeconfig is None and context is None and _in_cluster():
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    try:
        contexts, current = config.list_kube_config_contexts(  # type: ignore[no-untyped-call]
            config_file=None if kubeconfig is None else str(kubeconfig)
        )
    except _UNUSABLE:
        return "default"  # `connect` says what is wrong
    wanted = next((each for each in contexts if each["name"] == context), current) or {}
    return str(wanted.get("context", {}).get("namespace") or "default")


def _in_cluster() -> bool:
    return (_SERVICE_ACCOUNT / "token").exists()


def _plain(query: Query) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in query.items()}


def _refusal(response: urllib3.BaseHTTPResponse) -> ApiError:
    """With the message of the Status that the API answers, or the text as it is."""
    try:
        text = response.read(_CHUNK).decode("utf-8", "replace")
    except urllib3.exceptions.HTTPError:
        text = ""
    finally:
        response.release_conn()
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text.strip() or f"HTTP status {response.status}"
    return ApiError(response.status, str(message))
