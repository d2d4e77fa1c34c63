"""The work of the thread that writes: bounded for every request of both APIs at the bounds of its
fields, so that none keeps the others waiting. It is counted in rows, bytes and steps of SQLite's
machine, whatever else this machine does.
"""

import asyncio
import hashlib
import re
import socket
from collections.abc import Coroutine, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from fastapi.routing import iter_route_contexts
from sqlalchemy import event

from client_lib.spec import paths
from client_lib.spec.job import LABELS_MAX
from client_lib.spec.request import GROUP_BYTES_MAX, MEMBERS_MAX
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event
from server_stub.app import rest_api
from server_stub.http.api.public_v2 import routes
from server_stub.service.admission import GROUP_LABELS_MAX, MAX_SPEC_BYTES
from server_stub.store import rows
from server_stub.store.rows import NewJob
from tests.http.conftest import Running
from tests.kit.fakes import FakeRuntime
from tests.kit.waiting import until
from tests.mlspace.rest.conftest import COMMAND, JOBS
from tests.store.test_store import T0, row

OTHERS = 5000
"""Finished jobs in the database: a statement that reads them all takes 50 000 steps."""
TRANSITIONS = 700
"""More than 100 retries and 100 retries after failures of machines can have."""
OF_GROUPS = ("cancel", "resubmit")
"""Orders to all members of a group."""
STEPS = 100  # the unit in which SQLite counts them
ARCHIVE = b"some archive"
SHA = hashlib.sha256(ARCHIVE).hexdigest()


class Work(NamedTuple):
    rows: int = 0
    bytes: int = 0
    steps: int = 0


BOUND = Work(rows=LABELS_MAX + 20, bytes=4 * MAX_SPEC_BYTES, steps=40_000)
"""The most that one request may cause: a submit with all labels, stored again with
each change of its state.
"""


class SessionRuntime(FakeRuntime):
    """A runtime whose sessions end at once."""

    async def begin_session(
        self, job_id: str, attempt: int, request: Mapping[str, Any]
    ) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours


class Measured(Running):
    """A server that counts what its writer does, with a database of many finished jobs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.service = self.parts.service
        self.work = self.transaction = self.largest = Work()
        self.wait_for(self.service._store.write(self._add_others))
        engine = self.service._store._writing
        event.listen(engine, "begin", self._begin)
        event.listen(engine, "before_cursor_execute", self._count)

    def new_runtime(self) -> FakeRuntime:
        return SessionRuntime()

    def wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request of root; the counts begin anew, and include what follows from it."""
        self.begin()
        answer = self.as_user("root")(method, path, **options)
        self.settle()
        return answer

    def begin(self) -> None:
        self.settle()
        self.work = self.transaction = self.largest = Work()

    def settle(self) -> None:
        until(lambda: not self.call(lambda: self.service._reconciler._tasks._running))
        self.wait_for(self.service._store.read(rows.counts))

    def add_events(self, name: str, number: int) -> None:
        steps = [
            Event(time=T0, attempt=1, state=State.PENDING, reason=Reason.QUEUED, message="x" * 500)
        ] * number
        job = self.wait_for(self.service._store.read(rows.find, "root", name))
        self.wait_for(self.service._store.write(rows.add_events, job.seq, steps))

    def run(self, name: str) -> None:
        job = self.as_user("root")("GET", paths.job(name)).json()["id"]
        self.call(lambda: self.runtime.runs(job))
        self.settle()

    @staticmethod
    def _add_others(connection: Any) -> None:
        done = [
            NewJob(row(number, "root", state=State.SUCCEEDED, finished_at=T0), {}, None)
            for number in range(OTHERS)
        ]
        rows.add_jobs(connection, done)

    def _begin(self, _connection: Any) -> None:
        self.transaction = Work()

    def _count(
        self, _connection: Any, cursor: Any, _text: str, values: Any, _context: Any, many: bool
    ) -> None:
        cursor.connection.set_progress_handler(self._step, STEPS)
        written = values if many else [values]
        size = sum(len(str(value).encode()) for each in written for value in each)
        self._add(Work(len(written), size))

    def _step(self) -> None:
        self._add(Work(steps=STEPS))

    def _add(self, more: Work) -> None:
        self.work, self.transaction = (
            Work(*map(sum, zip(before, more, strict=True)))
            for before in (self.work, self.transaction)
        )
        self.largest = Work(*map(max, zip(self.largest, self.transaction, strict=True)))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    running = Measured(tmp_path_factory.mktemp("measured"))
    yield running
    running.stop()


def largest_spec() -> dict[str, Any]:
    """A valid spec at its bounds, in the number of its labels and in its size."""
    labels = {f"{number:03}{'é' * 250}": "é" * 255 for number in range(LABELS_MAX)}
    size = (
        MAX_SPEC_BYTES - sum(len((key + value).encode()) for key, value in labels.items()) - 20_000
    )
    args = ["x" * 100_000] * (size // 100_000)
    return {"labels": labels, "args": args, "max_retry": 100}


def submit(measured: Measured, name: str, **spec: Any) -> requests.Response:
    body = {
        "spec": {"script": "echo", "type": "binary", "name": name} | spec,
        "code": {"mode": "in_place"},
    }
    return measured.request(
        "POST", paths.JOBS, json=body, headers={paths.IDEMPOTENCY_KEY: f"{name}{'k' * 200}"}
    )


def exceeds(work: Work) -> bool:
    return any(done > most for done, most in zip(work, BOUND, strict=True))


def test_a_submit_at_its_bounds(measured: Measured) -> None:
    assert submit(measured, "large", **largest_spec()).status_code == 201
    assert measured.work.rows > LABELS_MAX  # they are counted
    assert measured.work.bytes > MAX_SPEC_BYTES
    assert not exceeds(measured.work), measured.work
    assert submit(measured, "large", **largest_spec()).status_code == 200  # with the same key
    assert not exceeds(measured.work), measured.work
    options = COMMAND | {"job_desc": "x" * 100_000, "flags": {"x" * 200: "x" * 100_000}}
    assert measured.request("POST", JOBS, json=options).status_code == 200
    assert not exceeds(measured.work), measured.work


def submit_group(measured: Measured, name: str, size: int) -> None:
    """A group of so many of the largest members that a group of MEMBERS_MAX can have."""
    labels = {f"label-{number}": "x" * 50 for number in range(GROUP_LABELS_MAX // MEMBERS_MAX)}
    data = {"DATA": "x" * (GROUP_BYTES_MAX // MEMBERS_MAX - 2000)}
    spec = {"script": "echo", "type": "binary", "labels": labels, "env_variables": data}
    order = {
        "name": name,
        "request": {"spec": spec, "code": {"mode": "in_place"}},
        "members": [{"args": []}] * size,
    }
    answer = measured.request("POST", paths.GROUPS, json=order)
    assert answer.status_code == 201, answer.text


def test_a_group_at_its_bounds(measured: Measured) -> None:
    submit_group(measured, "group-at-its-bounds", MEMBERS_MAX)
    stored = measured.largest
    assert stored.rows <= GROUP_LABELS_MAX + 3 * MEMBERS_MAX
    assert stored.bytes <= 2 * GROUP_BYTES_MAX
    assert stored.steps <= 15 * BOUND.steps


def test_an_order_to_a_group_causes_a_few_times_the_work_of_its_submit(measured: Measured) -> None:
    submit_group(measured, "ordered", 50)
    first = measured.largest
    for order in OF_GROUPS:
        answer = measured.request(
            "POST", f"{paths.GROUPS}/ordered/{order}", headers={paths.IDEMPOTENCY_KEY: order}
        )
        assert answer.status_code < 300, answer.text
        assert all(now <= 3 * then for now, then in zip(measured.largest, first, strict=True)), (
            measured.largest,
            first,
        )


def changes(name: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every request that changes something, besides submits."""
    session = paths.job_session(name, "0" * 32)
    plain = {"spec": {"script": "echo", "type": "binary"}, "code": {"mode": "in_place"}}
    group = {
        "name": f"g{name}",
        "request": plain,
        "members": [{"args": [str(number)]} for number in range(50)],
    }
    return [
        ("POST", paths.RENDER, {"json": plain | {"spec": largest_spec() | COMMAND}}),
        ("PUT", paths.snapshot(SHA), {"data": ARCHIVE}),
        ("POST", session, {"json": {"argv": ["x" * 100_000] * 9}}),
        ("PUT", session, {"data": b"x" * 100_000}),
        ("POST", paths.job(name, "cancel"), {}),
        ("POST", paths.job(name, "checkpoints/prune"), {"json": {"keep": 1}}),
        ("DELETE", paths.job(name), {}),
        ("DELETE", paths.job(name), {"params": {"force": "true"}}),
        ("POST", f"{JOBS}/restart", {"json": {"job_name": name}}),
        ("DELETE", f"{JOBS}/{name}", {"params": {"region": "x" * 1000}}),
        ("POST", paths.LOGIN_LINKS, {}),
        ("POST", paths.GROUPS, {"json": group}),
        (
            "POST",
            "/public/v2/service_auth",
            {"json": {"client_id": "root", "client_secret": "x" * 1000}},
        ),
    ]


def of_both_apis(*methods: str) -> set[tuple[str, str]]:
    found = [route for app in (rest_api(), routes()) for route in iter_route_contexts(app.routes)]
    all_ = {(method, str(route.path)) for route in found for method in route.methods or ()}
    return {
        (method, path)
        for method, path in all_
        if method in methods and not paths.is_of_workers(path)
    }


def test_every_route_that_changes_something_is_tested_here() -> None:
    marks = {"0" * 32: "{session}", SHA: "{sha256}", "a-job": "{name}"}
    tested = {
        (method, reduce(lambda text, mark: text.replace(*mark), marks.items(), path))
        for method, path, _ in changes("a-job")
    }
    tested |= {("POST", f"{paths.GROUPS}/{{name}}/{order}") for order in OF_GROUPS}
    assert tested | {("POST", paths.JOBS), ("POST", JOBS)} == of_both_apis(
        "POST", "PUT", "DELETE", "PATCH"
    )


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.CANCELLED])
@pytest.mark.parametrize("number", range(len(changes(""))))
def test_a_request_on_the_largest_job_with_the_longest_history(
    number: int, state: State, measured: Measured
) -> None:
    name = f"job-{number}-{state.lower()}"
    assert submit(measured, name, **largest_spec()).status_code == 201
    if state is State.RUNNING:
        measured.run(name)
    if state is State.CANCELLED:
        measured.request("POST", paths.job(name, "cancel"))
    measured.add_events(name, TRANSITIONS)
    method, path, options = changes(name)[number]
    answer = measured.request(method, path, **options)
    assert answer.status_code < 500, answer.text
    assert not exceeds(measured.work), measured.work


def test_reading_needs_no_writer(measured: Measured) -> None:
    submit(measured, "read", **largest_spec())
    values = {"name": "read", "rank": "0", "session": "0" * 32, "sha256": SHA}
    for _, path in sorted(of_both_apis("GET", "HEAD")):
        answer = measured.request(
            "GET", re.sub(r"{(\w+).*?}", lambda found: values.get(found[1], "x"), path)
        )
        assert answer.status_code != 500, answer.text
        checks = path in (paths.READYZ, paths.DOCTOR)  # whether the database can be written
        assert measured.work.rows <= 2 * checks, path


def test_labels_of_a_list_are_bounded(measured: Measured) -> None:
    for number, status in ((LABELS_MAX, 200), (LABELS_MAX + 1, 422), (3000, 422)):
        labels = [("label", f"k{key}=v") for key in range(number)]
        answer = measured.request("GET", paths.JOBS, params=labels)
        assert answer.status_code == status, answer.text
    assert "label" in answer.json()["message"]


def test_a_job_with_endless_events_is_removed_in_pieces(measured: Measured) -> None:
    submit(measured, "entered")
    measured.request("POST", paths.job("entered", "cancel"))
    measured.add_events("entered", 10_000)  # each session is one
    assert measured.request("DELETE", paths.job("entered")).status_code == 200
    assert measured.work.steps > BOUND.steps
    assert not exceeds(measured.largest), measured.largest


def test_many_jobs_are_removed_in_pieces(measured: Measured) -> None:
    measured.begin()
    measured.wait_for(measured.service._cleanup.remove(range(1, OTHERS + 1)))
    assert measured.work.rows > OTHERS
    assert not exceeds(measured.largest), measured.largest
