"""A TLS server whose certificate is signed by the operator's own authority."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.waiting import until
from tests.worker_gateway.conftest import Start
from tests.worker_gateway.test_outages import texts

pytestmark = pytest.mark.process


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1, signed by itself."""
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=client-lib", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, *names, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture
def https(authority: tuple[Path, Path], port: int) -> Iterator[str]:
    """The URL of an ingress before the server on `port`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority)
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(plain,), daemon=True).start()

    def serve(plain: socket.socket) -> None:
        try:
            behind = socket.create_connection(("127.0.0.1", port))
            with behind, context.wrap_socket(plain, server_side=True) as front:
                threading.Thread(target=pump, args=(behind, front), daemon=True).start()
                pump(front, behind)
        except OSError:  # a client that does not trust us, or a server that is not there
            pass

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    threading.Thread(target=accept, daemon=True).start()
    yield f"https://127.0.0.1:{listening.getsockname()[1]}"
    listening.close()


@pytest.mark.smoke
def test_the_mounted_authority_is_trusted(
    site: Start, https: str, authority: tuple[Path, Path]
) -> None:
    server = site(pods={"server_url": https, "ca": authority[0].read_text()})
    job = server.accepted("tls", "print('by https')", n_workers=2)
    assert server.ended("tls")["state"] == "SUCCEEDED"
    assert texts(server.stored_log(job, 1)) == ["by https"]


def test_without_it_nothing_is_said_to_the_server(site: Start, https: str) -> None:
    server = site(pods={"server_url": https})
    job = server.accepted("tls", "open('ran', 'w').close()")
    until(
        lambda: (
            (server.pod(job) / "stderr").exists()
            and "CERTIFICATE_VERIFY" in (server.pod(job) / "stderr").read_text()
        )
    )
    assert not (server.attempt(job) / "workers/0/worker.json").exists()
    assert not (server.folder / "ran").exists()
