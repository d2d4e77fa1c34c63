"""Sends a text to the webhook of a job (`notify`) when it ends, hangs or moves again.

The notification of an end is stored with the final state, and removed when the receiver has taken it: a restart of the
server loses none. The receiver gets one twice if the server dies between the two, and knows it by its `id`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from client_lib.errors import ClientLibError, Forbidden
from client_lib.spec.job import MASK, SLACK
from client_lib.spec.summary import summary
from client_lib.spec.wire import JobInfo, SubmitRequest
from server_stub.runtimes.tasks import Tasks
from server_stub.store import Store, rows
from server_stub.store.rows import JobRow

log = logging.getLogger(__name__)
PAUSES_S = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds between the tries of one notification."""
_TRY_S = 10.0
_AT_ONCE = 64  # tries of all jobs
_TEMPORARY = (408, 425, 429)  # and all from 500 on
_SLACK_HOST = "hooks.slack.com"
_SECRET_MIN = 4  # characters: shorter values are words of any text

Told = Literal["ended", "hangs", "moves"]


class Refused(Exception):
    """The receiver will not take the notification, or must not get it; the message says why."""


class AllowedHosts:
    """The hosts that webhooks may name, and the addresses that these may have."""

    def __init__(self, allowed: Sequence[str] | None, *, several_users: bool) -> None:
        """`allowed`: the setting `notify_hosts`."""
        self._any = allowed is None and not several_users
        self._names, self._networks = [], []
        for entry in allowed or ():
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self._names.append(entry.lower())

    def check(self, url: str) -> None:
        """Raises Forbidden: no job may name this host."""
        host = _parts(url).hostname or ""
        if self._any or any(fnmatchcase(host, name) for name in self._names) or self._is_listed(host):
            return
        raise Forbidden(
            f"notify names the host {host}, to which this server sends nothing",
            hint="its operator can add it to CLIENT_LIB_SERVER_NOTIFY_HOSTS",
        )

    def check_address(self, address: str) -> None:
        """Raises Refused: the server must not connect to this address."""
        found = _address(address)
        if not (self._any or self._is_listed(address) or (found.is_global and not found.is_multicast)):
            raise Refused(f"its address {address} is not public, and in no network of notify_hosts")

    def _is_listed(self, address: str) -> bool:
        try:
            found = _address(address)
        except ValueError:
            return False
        return any(found.version == network.version and found in network for network in self._networks)


def end_of(info: JobInfo) -> str:
    """The notification of the end of a job, as it is stored."""
    return json.dumps(_message(info, "ended"))


def _message(info: JobInfo, event: Told) -> dict[str, Any]:
    return {
        "text": summary(info),
        "event": event,
        "id": f"{info.id}-{info.version}",
        "job": info.name,
        "owner": info.owner,
        "state": info.state,
        "reason": info.reason,
        "attempt": info.attempt,
    }


class Notifier:
    """Event loop only."""

    def __init__(self, store: Store, request_of: Callable[[JobRow], SubmitRequest], hosts: AllowedHosts) -> None:
        """`request_of` returns what was submitted; it reads the disk."""
        self._store, self._request_of, self._hosts = store, request_of, hosts
        self._tasks = Tasks(log, "a notification can't be sent")
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._open = 0

    async def start(self) -> None:
        """Send what an earlier server could not send."""
        for row in await self._store.read_all(rows.unsent):
            self.ended(row)

    async def close(self) -> None:
        """Stop sending; notifications of ends stay stored."""
        await self._tasks.close()

    def busy(self) -> bool:
        """True while a notification waits for its receiver."""
        return self._open > 0

    def ended(self, row: JobRow) -> None:
        """Send what is stored with the final state of a job."""
        if row.unsent:
            try:
                message = json.loads(row.unsent) | {"event": "ended"}
            except (ValueError, TypeError):
                log.warning("job %s: the notification of its end is damaged", row.id)
            else:
                self._tasks.begin(self._send(row, message))

    def tell(self, row: JobRow, info: JobInfo, event: Told) -> None:
        """Send that a running job hangs, or moves again. A server that ends meanwhile does not send it."""
        if info.spec.notify:
            self._tasks.begin(self._send(row, _message(info, event)))

    async def _send(self, row: JobRow, message: dict[str, Any]) -> None:
        self._open += 1
        try:
            await self._deliver(row, message)
            if message["event"] == "ended":
                await self._store.write(rows.set_sent, row.seq)
        finally:
            self._open -= 1

    async def _deliver(self, row: JobRow, message: dict[str, Any]) -> None:
        """Send the message, or give up and log why."""
        try:
            request = await asyncio.to_thread(self._request_of, row)
            url = request.spec.notify or ""
            self._hosts.check(url)  # the setting may have changed
            problem = await self._tried(url, _body(url, message, request))
        except (ClientLibError, Refused) as error:
            problem = str(error)
        if problem:
            log.warning("job %s: its notification %r was not sent: %s", row.id, message["event"], problem)

    async def _tried(self, url: str, body: bytes) -> str:
        """Try until the receiver has taken the body; the problem if it never does. Raises Refused."""
        for pause_s in (*PAUSES_S, None):
            try:
                async with self._limit:
                    await self._try(url, body)
                return ""
            except (OSError, ValueError) as error:
                problem = str(error)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        return problem

    async def _try(self, url: str, body: bytes) -> None:
        """One try, of bounded time. Raises as `_post` does."""
        posting = asyncio.ensure_future(_post(_parts(url), body, self._hosts))
        try:  # wait_for of Python 3.11 forgets a cancellation that comes together with the end of the call
            if not (await asyncio.wait({posting}, timeout=_TRY_S))[0]:
                raise OSError(f"no answer within {_TRY_S:g} s")
            posting.result()
        finally:
            posting.cancel()


def check(url: str | None, hosts: AllowedHosts) -> None:
    """Check the field `notify` of a submit. Raises Forbidden."""
    if url == MASK:
        raise Forbidden(f"notify={MASK!r} stands for an address that is not shown", hint="give the address itself")
    if url:
        hosts.check(url)


def _body(url: str, message: dict[str, Any], request: SubmitRequest) -> bytes:
    """The message in the form that the receiver of this URL takes, without the values of secrets."""
    host = _parts(url).hostname
    text = message["text"]
    hidden = request.spec.model_copy(update={"notify": None}).masked().env_variables
    private = [str(value) for name, value in request.spec.env_variables.items() if hidden[name] == MASK]
    for secret in sorted([*private, *request.secret_values.values()], key=len, reverse=True):
        text = text.replace(secret, MASK) if len(secret) >= _SECRET_MIN else text
    slack = url.startswith(SLACK) or host == _SLACK_HOST
    return json.dumps({"text": text} if slack else message | {"text": text}).encode()


async def _post(url: SplitResult, body: bytes, hosts: AllowedHosts) -> None:
    """One try. The name is resolved once, and the connection made to a checked address: a second answer of the name
    server could be another one. Redirects are not followed.

    Raises:
        Refused: the receiver will never take it.
        OSError, ValueError: try again.
    """
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    for address in addresses:
        hosts.check_address(address)
    tls = {"ssl": _tls(), "server_hostname": host} if url.scheme == "https" else {}
    for left, address in enumerate(addresses, 1 - len(addresses)):
        try:
            reader, writer = await asyncio.open_connection(address, port, **tls)  # type: ignore[arg-type]
            break
        except OSError:
            if left == 0:
                raise
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {url.netloc}",
        "User-Agent: client_lib",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    with closing(writer):
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        _judge(await reader.readline())


def _judge(status_line: bytes) -> None:
    """Raises Refused, OSError: by the status of an answer."""
    version, _, rest = status_line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise OSError("it does not answer in HTTP")
    status = int(rest[:3])
    if status in _TEMPORARY or status >= 500:
        raise OSError(f"it answered {status}")
    if not 200 <= status < 300:
        raise Refused(f"it answered {status}")


def _parts(url: str) -> SplitResult:
    return urlsplit(url.removeprefix(SLACK))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address, of one that wraps an IPv4 address that one. Raises ValueError."""
    found = ipaddress.ip_address(text)
    wrapped = (found.ipv4_mapped or found.sixtofour) if isinstance(found, ipaddress.IPv6Address) else None
    return wrapped or found


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
