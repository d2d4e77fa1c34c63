"""Carries a session between the server and the launcher of this pod: two streams of bytes, unread."""

import http.client
import json
import socket
import threading
from contextlib import suppress
from typing import Callable

from client_lib.worker import control
from client_lib.worker.pod.server_client import ServerClient
from client_lib.worker.pod.threads import Backoff
from client_lib.worker.server_connection import RequestFailed, Unreachable
from client_lib.worker.session_frames import BLOCK, EXIT, SILENT_S, json_frame


def carry(new_server: Callable[[], ServerClient], mark: str, control_path: str) -> None:
    """Take up the session with this mark, and return at its end."""
    down, up, sent = new_server(), new_server(), 0

    def send(data: bytes) -> None:
        nonlocal sent
        backoff = Backoff()
        while True:
            try:
                up.put_session(mark, sent, data)
                break
            except Unreachable:  # also while the user reads nothing
                backoff.sleep()
        sent += len(data)

    try:
        from_user = down.call("GET", "/sessions/" + mark, wait_s=SILENT_S)
        request = json.loads(from_user.readline())
        try:
            with control.connect(control_path) as peer:
                control.begin_session(peer, request)
                threading.Thread(target=_pass_on, args=(from_user, peer), daemon=True).start()
                try:
                    for data in iter(lambda: peer.recv(BLOCK), b""):
                        send(data)
                finally:
                    with suppress(OSError):
                        peer.shutdown(socket.SHUT_RDWR)  # `close` alone waits for the other thread
        except OSError as error:
            send(json_frame(EXIT, {"error": str(error)}))
        send(b"")
    except (OSError, RequestFailed, http.client.HTTPException):  # the session has ended, with the user or the server
        pass
    finally:
        up.close()
        down.close()


def _pass_on(from_user: http.client.HTTPResponse, peer: socket.socket) -> None:
    try:
        for data in iter(lambda: from_user.read1(BLOCK), b""):
            peer.sendall(data)
        peer.shutdown(socket.SHUT_RDWR)
    except (OSError, http.client.HTTPException, ValueError):  # the same as the end
        pass
