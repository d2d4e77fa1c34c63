"""Lists among many stored jobs: with 100 000 in the database and with 1000, in groups of 500.
Goals: ratios to the few.

    python benchmarks/stored_jobs.py [-n ROUNDS] [--calls CALLS]

Pages of 100 and the status of one job by the service without HTTP (goal 1.5); then
`client-lib list`, and `best`, which reads the curves of the 500 members of one group, spawn to exit
(goal 2.0). SQLite, filled by the store; both databases in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from interleave import table, wall_times
from own_server import COMMAND
from sqlalchemy import Connection

from client_lib.launcher_protocol.log_segments import segment_name
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import GroupInfo, JobInfo, Membership
from server_stub.files.job_dirs import log_dir
from server_stub.files.request_log import Place
from server_stub.http.users_file import local_user
from server_stub.service import JobFilters, Service
from server_stub.settings import Settings
from server_stub.store import Store, group_rows
from server_stub.store.rows import JobRow, NewJob
from tests.kit.fakes import FakeRuntime

GROUPS, STORED = (2, 200), 500  # groups of so many stored jobs
PAGES_GOAL, COMMANDS_GOAL = 1.5, 2.0
NOW = datetime.now(timezone.utc)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--rounds", type=int, default=3, help="of the commands")
    parser.add_argument("--calls", type=int, default=200, help="of the service")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        states = {f"{count * STORED} jobs": Path(scratch, str(count)) for count in GROUPS}
        for state, count in zip(states.values(), GROUPS, strict=True):
            _command(state, "list")  # makes the database
            _command(state, "server", "stop")
            asyncio.run(_fill(state, count))
        asyncio.run(_pages(states, options.calls))
        try:
            for words in (["list"], ["best", "scan-1", "--by", "loss"]):
                ways = {name: partial(_command, state, *words) for name, state in states.items()}
                title = f"client-lib {words[0]}, groups of {STORED}, goal {COMMANDS_GOAL}"
                print(table(title, wall_times(ways, options.rounds), to=(next(iter(ways)),)))
        finally:
            for state in states.values():
                _command(state, "server", "stop")


def _command(state: Path, *words: str) -> None:
    environment = {**os.environ, "CLIENT_LIB_STATE_DIR": str(state)}
    subprocess.run([COMMAND, *words], env=environment, check=True, stdout=subprocess.DEVNULL)


async def _pages(states: Mapping[str, Path], calls: int) -> None:
    services = {
        name: Service(Settings(state_dir=state), FakeRuntime()) for name, state in states.items()
    }
    for service in services.values():
        await service.start()
    user, every, succeeded = local_user(), JobFilters(), JobFilters(states=(State.SUCCEEDED,))
    middle = {name: count * STORED // 2 for name, count in zip(states, GROUPS, strict=True)}
    ways: dict[str, Callable[[Service, int], Awaitable[object]]] = {
        "page of 100": lambda service, _: service.page(user, every, 100, None),
        "page of 100 from the middle": lambda service, seq: service.page(
            user, every, 100, str(seq)
        ),
        "page of one state": lambda service, _: service.page(user, succeeded, 100, None),
        "status": lambda service, seq: service.get(user, f"scan-{seq // STORED}-{seq % STORED}"),
    }
    print(f"\nPages of 100 jobs, and the status of one ({calls} rounds)\n")
    print(
        "| | "
        + " | ".join(f"{name}, ms" for name in services)
        + f" | ratio (goal {PAGES_GOAL}) |\n|---|---|---|---|"
    )
    for what, way in ways.items():
        times: dict[str, list[float]] = {name: [] for name in services}
        for _ in range(calls):
            for name, service in services.items():
                began = time.perf_counter()
                await way(service, middle[name])
                times[name].append(time.perf_counter() - began)
        few, many = (statistics.median(each) * 1e3 for each in times.values())
        print(f"| {what} | {few:.2f} | {many:.2f} | {many / few:.2f} |")
    for service in services.values():
        await service.close()


async def _fill(state: Path, groups: int) -> None:
    settings = Settings(state_dir=state)
    store = Store(settings.database_url)
    await store.open()
    for number in range(groups):
        group = GroupInfo(
            name=f"scan-{number}",
            id=uuid.uuid4().hex,
            owner=local_user().name,
            created_at=NOW,
            size=STORED,
            script="/home/ann/train.py",
        )
        rows = _members(group)
        await store.write(_add, group, rows, 1 + number * STORED)
        for row in rows if number == 1 else ():
            log = log_dir(settings.data_dir / "jobs" / row.id, 1, 0)
            log.mkdir(parents=True)
            lines = [
                f"{n} {NOW:%Y-%m-%dT%H:%M:%S.%fZ} 0 stdout step {n} loss={1 / (n + 1)}\n"
                for n in range(100)
            ]
            (log / segment_name(0)).write_text("".join(lines))
    await store.close()


def _members(group: GroupInfo) -> list[JobRow]:
    first = JobInfo(
        name=f"{group.name}-NUMBER",
        id="ID",
        owner=group.owner,
        version=3,
        runtime="local",
        state=State.SUCCEEDED,
        reason=Reason.COMPLETED,
        spec=JobSpec(script=group.script, args=["--seed", "NUMBER"]),
        code=CodeInPlace(),
        created_at=NOW,
        finished_at=NOW,
        group=Membership(name=group.name, id=group.id, index=0, values={"seed": "NUMBER"}),
    )
    text = first.model_dump_json().replace('"index":0', '"index":NUMBER')
    same: dict[str, Any] = {
        "owner": group.owner,
        "state": first.state,
        "version": 3,
        "attempt": 1,
        "created_at": NOW,
    }
    return [
        JobRow(
            **same,
            id=(job_id := uuid.uuid4().hex),
            name=f"{group.name}-{index}",
            info=text.replace("NUMBER", str(index)).replace('"ID"', f'"{job_id}"'),
            place=Place(1, 0, 0),
            finished_at=NOW,
            group_id=group.id,
        )
        for index in range(STORED)
    ]


def _add(connection: Connection, group: GroupInfo, rows: list[JobRow], first: int) -> None:
    group_rows.add_group(
        connection, group_rows.NewGroup(group, [NewJob(row, {}, None) for row in rows]), first
    )


if __name__ == "__main__":
    main()
