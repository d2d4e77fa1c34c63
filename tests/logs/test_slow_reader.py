"""A reader with little room gets the lines in order, whole and once, however slow it is."""

import gc
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from client_lib.log_reading.reader import log_lines
from client_lib.spec import paths
from client_lib.spec.paths import LOG_FRAMES
from tests.kit.waiting import until
from tests.logs.log_server import NAME, write_job
from tests.logs.support import LogWriter, Server, each_kind_of_events


@each_kind_of_events
def test_a_reader_that_stops_for_a_while_gets_every_line_once(
    logs_server: Server, writer: LogWriter, tmp_path: Path
) -> None:
    """Its buffers are full in the middle of a frame: what was begun is
    finished, what came since follows.
    """
    with _follow(logs_server) as connection:
        until(lambda: logs_server.followers() == 1)
        sent = [f"{number} " + "x" * 5000 for number in range(2000)]
        for text in sent:
            writer.write(text)
        write_job(tmp_path, state="SUCCEEDED", reason="Completed")
        assert list(log_lines(lambda _: _body(connection), {}, retry_s=0)) == sent


def test_a_reader_that_vanishes_in_an_unfinished_write_frees_its_place(
    logs_server: Server, writer: LogWriter
) -> None:
    with _follow(logs_server) as connection:
        until(lambda: logs_server.followers() == 1)
        for number in range(2000):
            writer.write(f"{number} " + "x" * 5000)
        connection.recv(1)
    until(lambda: logs_server.followers() == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed in /proc")
def test_readers_that_vanish_leave_no_file_open(
    logs_server: Server, writer: LogWriter, tmp_path: Path
) -> None:
    """The files are closed with the connection, and not when the garbage
    collector finds their readers.
    """
    gc.disable()
    try:
        readers = [_follow(logs_server) for _ in range(10)]
        until(lambda: logs_server.followers() == len(readers))
        for number in range(2000):
            writer.write(f"{number} " + "x" * 5000)
        until(lambda: len(_open_below(tmp_path)) > len(readers))
        for reader in readers:
            reader.recv(1)
            reader.close()
        until(lambda: not _open_below(tmp_path))
    finally:
        gc.enable()


def _open_below(folder: Path) -> list[str]:
    """The files below `folder` that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # closed since
            pass
    return [path for path in found if path.startswith(f"{folder}/")]


def _follow(logs_server: Server) -> socket.socket:
    """A reader with little room."""
    at = urlsplit(logs_server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect((at.hostname, at.port))
    head = (
        f"GET {paths.job(NAME, 'logs')}?follow=true HTTP/1.1\r\nHost: x\r\nAccept: "
        f"{LOG_FRAMES}\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


def _body(connection: socket.socket) -> Iterator[bytes]:
    with connection.makefile("rb") as answer:
        while answer.readline() != b"\r\n":
            pass
        while size := int(answer.readline(), 16):
            yield answer.read(size)
            answer.readline()
