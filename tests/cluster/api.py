"""A small client of the Kubernetes REST API: JSON in, JSON out, standard library alone.

For this tool, and for tests that look at a cluster past the code under test. It retries nothing.
"""

import base64
import contextlib
import http.client
import json
import os
import ssl
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.errors import ApiError

TIMEOUT_S = 30.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class Api:
    """Requests as the user of one kubeconfig that certificates.kubeconfig wrote. Safe to
    use from several threads.
    """

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self._host = urllib.parse.urlsplit(cluster["server"]).netloc
        self._tls = ssl.create_default_context(
            cadata=_decoded(cluster["certificate-authority-data"])
        )
        _load_client(self._tls, user)

    def get(self, path: str) -> Any:
        """The object or list; text where the answer is no JSON. Raises ApiError."""
        return self.request("GET", path)

    def create(self, path: str, body: dict[str, Any] | str) -> Any:
        """POST to a collection. A str is YAML and goes as it is."""
        return self.request(
            "POST", path, body, "application/json" if isinstance(body, dict) else "application/yaml"
        )

    def apply(self, path: str, body: dict[str, Any] | str) -> Any:
        """Server-side apply of one object: makes it or brings it to this.
        `path` is the object's own.
        """
        return self.request("PATCH", f"{path}?fieldManager=cluster&force=true", body, APPLY)

    def merge(self, path: str, body: dict[str, Any]) -> Any:
        """JSON merge patch."""
        return self.request("PATCH", path, body, MERGE)

    def delete(self, path: str, policy: str = "Background") -> Any:
        return self.request("DELETE", path, {"propagationPolicy": policy})

    def request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | str | None = None,
        content_type: str = "",
    ) -> Any:
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        headers = {"Accept": "application/json", "Content-Type": content_type or "application/json"}
        connection = http.client.HTTPSConnection(self._host, timeout=TIMEOUT_S, context=self._tls)
        try:
            connection.request(method, path, data and data.encode(), headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"{method} {path}: {self._host} does not answer: {error}") from error
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiError(response.status, f"{method} {path}: {response.status}: {_message(text)}")
        return json.loads(text) if "json" in (response.getheader("Content-Type") or "") else text

    def watch(self, path: str) -> Iterator[Any]:
        """The events of a path with `watch=1`, until the API server or the caller ends it."""
        connection = http.client.HTTPSConnection(self._host, context=self._tls)
        connection.request("GET", path, headers={"Accept": "application/json"})
        with contextlib.closing(connection), connection.getresponse() as response:
            for line in response:
                yield json.loads(line)


def _load_client(tls: ssl.SSLContext, user: dict[str, str]) -> None:
    """ssl takes a certificate from a file only."""
    descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(
                _decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"])
            )
        tls.load_cert_chain(path)
    finally:
        os.unlink(path)


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()


def _message(text: str) -> str:
    """The message of a Status, or the answer as it is."""
    try:
        return str(json.loads(text).get("message", text))
    except (ValueError, AttributeError):
        return text.strip()
