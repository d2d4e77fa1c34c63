"""Sends a text to the webhook of a job (`notify`) when it ends, hangs or moves again, at a rule of
`alarm` with `-> notify`, and at an alert of its script.

The notification of an end is stored with the final state, and removed when the receiver has
accepted it, so a restart loses none. If the server crashes between the two, the receiver gets it
twice, with the same `id`.
"""

import asyncio
import ipaddress
import json
import logging
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any
from urllib.parse import SplitResult, urlsplit
from weakref import WeakValueDictionary

from client_lib.errors import ClientLibError, Forbidden
from client_lib.spec.job import SLACK
from client_lib.spec.request import SubmitRequest
from client_lib.spec.secrets import MASK, hidden_part
from client_lib.spec.wire import JobInfo
from server_stub.runtimes.tasks import Tasks
from server_stub.service.job_files import JobFiles
from server_stub.service.webhook import Told, message_of
from server_stub.store import Store, rows
from server_stub.store.rows import JobRow

log = logging.getLogger(__name__)
PAUSES_S = (1.0, 5.0, 30.0, 120.0, 600.0)  # between the tries of one notification
_TRY_S = 10.0
_AT_ONCE = 64
"""Largest number of tries at the same time."""
_AT_ONCE_OF_HOST = 8
"""Largest number of tries at the same time to one host."""
# Threads that resolve names. A name server that does not answer must not take the threads of
# `asyncio.to_thread`.
_RESOLVERS = 4
_TEMPORARY = (408, 425, 429, *range(500, 600))  # statuses after which it is tried again
_SLACK_HOST = "hooks.slack.com"
# reading the certificates of the machine takes 50 ms
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_CARRYING = {
    ipaddress.IPv6Network("::/96"): 0,  # compatible (RFC 4291)
    ipaddress.IPv6Network("::ffff:0:0:0/96"): 0,  # translated (RFC 2765)
    ipaddress.IPv6Network("64:ff9b::/96"): 0,  # NAT64 (RFC 6052)
    ipaddress.IPv6Network("2002::/16"): 80,  # 6to4 (RFC 3056)
}
"""Networks whose addresses carry an IPv4 address -> the number of bits behind that address."""
_TEREDO = ipaddress.IPv6Network("2001::/32")  # the last 32 bits, inverted (RFC 4380)
# The upper half of the interface identifier (RFC 5214), with any value of its bit for "universal".
_ISATAP = 0x00005EFE
_ISATAP_MASK = 0xFDFFFFFF
_LOCAL = (
    ipaddress.IPv6Network("64:ff9b:1::/48"),  # NAT64 within a site (RFC 8215)
    ipaddress.IPv6Network("fec0::/10"),  # site-local (RFC 3879)
)
"""Networks that not every Python knows as local."""
_tls_settings = cache(ssl.create_default_context)
_SECRET_MIN = 4  # characters: shorter values are words of any text


class Refused(Exception):
    """The receiver will not take the notification, or must not get it; the message says why."""


class AllowedHosts:
    """The hosts that webhooks may name, and the addresses that these may have."""

    def __init__(self, allowed: Sequence[str] | None, *, several_users: bool) -> None:
        """`allowed`: the setting `notify_hosts`."""
        self._any = allowed is None and not several_users
        self._names = []
        self._networks = []
        for entry in allowed or ():
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self._names.append(entry.lower())

    def check(self, url: str | None) -> None:
        """Check the field `notify`. Raises Forbidden: no job may name this host."""
        host = urlsplit((url or "").removeprefix(SLACK)).hostname or ""
        if url == MASK:
            raise Forbidden(f"notify={MASK!r} is a mask, not a URL", hint="give the webhook's URL")
        if url and not (
            self._any
            or any(fnmatchcase(host, name) for name in self._names)
            or self._is_listed(host)
        ):
            raise Forbidden(
                f"notify has the host {host}, which this server does not allow",
                hint="its operator can add it to CLIENT_LIB_SERVER_NOTIFY_HOSTS",
            )

    def check_address(self, address: str) -> None:
        """Raises Refused: the server must not connect to this address."""
        found = _addresses(address)
        if not self._any and not all(_is_public(each) or self._lists(each) for each in found):
            raise Refused(f"its address {address} is not public, and in no network of notify_hosts")

    def _is_listed(self, host: str) -> bool:
        try:
            found = _addresses(host)
        except ValueError:  # a name
            return False
        return all(map(self._lists, found))

    def _lists(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)


class Notifier:
    """Event loop only."""

    def __init__(self, store: Store, files: JobFiles, hosts: AllowedHosts) -> None:
        self._store = store
        self._files = files
        self._hosts = hosts
        self._tasks = Tasks(log, "a notification can't be sent")
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._host_limits: WeakValueDictionary[str | None, asyncio.Semaphore] = (
            WeakValueDictionary()
        )
        self._resolvers = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="resolver")

    async def start(self) -> None:
        """Send what an earlier server could not send."""
        for row in await self._store.read_all(rows.unsent):
            self.ended(row)

    async def close(self) -> None:
        """Stop sending; notifications of ends stay stored."""
        await self._tasks.close()
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    def busy(self) -> bool:
        """True while a notification waits for its receiver."""
        return len(self._tasks) > 0

    def ended(self, row: JobRow) -> None:
        """Send what is stored with the final state of a job."""
        if row.unsent:
            self._tasks.begin(self._send_end(row, row.unsent))

    def tell(self, row: JobRow, info: JobInfo, event: Told) -> None:
        """Send what has happened to a running job. A server that ends meanwhile does not
        send it.
        """
        if info.spec.notify:
            self._tasks.begin(self._send(row, message_of(info, event)))

    async def _send_end(self, row: JobRow, stored: str) -> None:
        await self._send(row, json.loads(stored))
        await self._store.write(rows.set_sent, row.seq)

    async def _send(self, row: JobRow, message: dict[str, Any]) -> None:
        """Send the message, or give up and log why."""

        # all that is kept of the request for the minutes of the tries
        def url_and_body() -> tuple[str, bytes]:
            request = self._files.request_of(row)
            self._hosts.check(request.spec.notify)  # the setting may have changed
            return request.spec.notify or "", _body(message, request)

        try:
            await self._deliver(*await asyncio.to_thread(url_and_body))
        except (ClientLibError, Refused, OSError, ValueError, LookupError) as error:
            log.warning(
                "job %s: its notification %r was not sent: %s", row.id, message["event"], error
            )

    async def _deliver(self, url: str, body: bytes) -> None:
        """Try until the receiver has taken the body. Raises the last problem."""
        host = urlsplit(url.removeprefix(SLACK)).hostname
        host_limit = self._host_limits.setdefault(host, asyncio.Semaphore(_AT_ONCE_OF_HOST))
        for pause_s in (*PAUSES_S, None):
            try:
                async with host_limit, self._limit:
                    await self._try(url, body)
                return
            except (OSError, ValueError, LookupError):
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def _try(self, url: str, body: bytes) -> None:
        """One try, of bounded time. Raises as `_post` does."""
        posting = asyncio.ensure_future(
            _post(urlsplit(url.removeprefix(SLACK)), body, self._hosts, self._resolvers)
        )
        try:
            # wait_for of Python 3.11 forgets a cancellation that comes together with the end of the
            # call
            if not (await asyncio.wait({posting}, timeout=_TRY_S))[0]:
                raise OSError(f"no answer within {_TRY_S:g} s")
            posting.result()
        finally:
            posting.cancel()


def _body(message: dict[str, Any], request: SubmitRequest) -> bytes:
    """The message in the form that the receiver takes, without the values of secrets."""
    url = request.spec.notify or ""
    shown = request.spec.masked()
    variables = request.spec.environment()
    shown_variables = shown.environment()
    pairs = [(value, shown_variables[name]) for name, value in variables.items()]
    pairs += zip(request.spec.command(), shown.command(), strict=True)
    private = [hidden_part(text, masked) for text, masked in pairs if text != masked]
    text = message["text"]
    for secret in sorted([*private, *request.secret_values.values()], key=len, reverse=True):
        text = text.replace(secret, MASK) if len(secret) >= _SECRET_MIN else text
    slack = url.startswith(SLACK) or urlsplit(url).hostname == _SLACK_HOST
    return json.dumps({"text": text} if slack else message | {"text": text}).encode()


async def _post(url: SplitResult, body: bytes, hosts: AllowedHosts, resolvers: Executor) -> None:
    """One try. The name is resolved once, and the connection made to a checked address: a second
    answer of the name server could be another one. Redirects are not followed.

    Raises:
        Refused: the receiver will never take it.
        OSError, ValueError, LookupError: try again; the latter two for an answer that is no HTTP.
    """
    loop = asyncio.get_running_loop()
    is_tls = url.scheme == "https"
    tls = (
        {"ssl": await asyncio.to_thread(_tls_settings), "server_hostname": url.hostname}
        if is_tls
        else {}
    )
    port = url.port or (443 if tls else 80)
    resolve = partial(socket.getaddrinfo, url.hostname, port, type=socket.SOCK_STREAM)
    found = await loop.run_in_executor(resolvers, resolve)
    addresses = [str(address[0]) for *_, address in found]
    for address in addresses:
        hosts.check_address(address)
    # The name server puts the address first that its machine prefers.
    reader, writer = await asyncio.open_connection(addresses[0], port, **tls)  # type: ignore[arg-type]
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nUser-Agent: client_lib\r\nConnection: "
        f"close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with closing(writer):
        writer.write(head.encode() + body)
        status = int((await reader.readline()).split()[1])
    if status in _TEMPORARY:
        raise OSError(f"it answered {status}")
    if not 200 <= status < 300:
        raise Refused(f"it answered {status}")


def _addresses(text: str) -> list[_Address]:
    """Parse an IP address. For an IPv6 address that carries an IPv4 address, return both, because a
    router on the way may use the IPv4 address. For a mapped address, return the IPv4 address only.
    Raises ValueError."""
    found = ipaddress.ip_address(text)
    if isinstance(found, ipaddress.IPv4Address):
        return [found]
    if found.ipv4_mapped:
        return [found.ipv4_mapped]
    bits = int(found)
    carried = [bits >> shift for network, shift in _CARRYING.items() if found in network]
    if found in _TEREDO:
        carried.append(~bits)
    if (bits >> 32) & _ISATAP_MASK == _ISATAP:
        carried.append(bits)
    return [found, *(ipaddress.IPv4Address(value & 0xFFFFFFFF) for value in carried)]


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and any(address in each for each in _LOCAL):
        return False
    return address.is_global and not address.is_multicast
