"""A registry of images inside a cluster: what the kubelet asks of one, over plain HTTP, as the
node's own localhost.

The network namespace of the node is its own, so no port of this machine is taken. The lowest layer
of an image may be one that the node has already: then it is never asked for.
"""

import base64
import ctypes
import hashlib
import io
import json
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.cluster import Cluster, images, oci

CLONE_NEWNET = 0x40000000
HOST = "localhost:5000"
PASSWORD = "Basic " + base64.b64encode(b"me:mine").decode()
HELD_S = 120.0


class Registry:
    """Images below `private/` want the user `me` with the password `mine`."""

    def __init__(self) -> None:
        self._manifests: dict[tuple[str, str], bytes] = {}
        self._blobs: dict[str, bytes] = {}
        self.let_go = threading.Event()
        """Until it is set, blobs of images below `private/` are not given."""

    def add(self, name: str, tag: str, base: Path) -> None:
        """The image of the archive `base` with one small layer of its own."""
        with tarfile.open(base) as archive:
            index = _json(archive, "index.json")
            manifest = _json(archive, _blob(index["manifests"][0]["digest"]))
            config = _json(archive, _blob(manifest["config"]["digest"]))
        layer = self._keep(
            f"{oci.MEDIA}.layer.v1.tar", _empty_file(f"of-{name.replace('/', '-')}-{tag}")
        )
        config["rootfs"]["diff_ids"].append(layer["digest"])
        manifest["layers"].append(layer)
        manifest["config"] = self._keep(
            manifest["config"]["mediaType"], json.dumps(config).encode()
        )
        data = json.dumps(manifest).encode()
        self._manifests[name, tag] = self._manifests[name, _digest(data)] = data

    def _keep(self, media_type: str, data: bytes) -> dict[str, Any]:
        """Its descriptor."""
        self._blobs[_digest(data)] = data
        return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        """Status and body, of /v2/NAME/manifests/TAG and /v2/NAME/blobs/DIGEST."""
        name, kind, reference = path.removeprefix("/v2/").rsplit("/", 2)
        private = name.startswith("private/")
        if private and authorization != PASSWORD:
            return 401, b"{}"
        if private and kind == "blobs":
            self.let_go.wait(HELD_S)
        found = (
            self._blobs.get(reference)
            if kind == "blobs"
            else self._manifests.get((name, reference))
        )
        return (404, b"{}") if found is None else (200, found)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _empty_file(name: str) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return layer.getvalue()


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _json(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    assert file is not None
    return json.load(file)


@contextmanager
def registry(cluster: Cluster) -> Iterator[Registry]:
    """As HOST on the node."""
    made = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = made.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="private"')
            if "/manifests/" in self.path:
                self.send_header("Content-Type", f"{oci.MEDIA}.manifest.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening_in(cluster.node().pid, int(HOST.rpartition(":")[2]))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    made.let_go.set()
    server.shutdown()
    server.server_close()


def listening_in(pid: int, port: int) -> socket.socket:
    """Of the network of that process. A thread may be in another network than its
    process, and so may a socket.
    """
    made: list[socket.socket] = []

    def listen() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)
        made.append(socket.create_server(("127.0.0.1", port)))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    return made[0]


def python_archive(cluster: Cluster) -> Path:
    """Of the image that every node of the tests has."""
    return images.archive(cluster.home, images.RECIPES["python"])
