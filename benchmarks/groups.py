"""Submits of groups: 1000 members in one request, beside 100 jobs one by one, and `list` with all of them. Then `list`
and `best` with 100 000 stored jobs in 200 groups, beside 1000 in 2.
Then the end of 1000 jobs after one that is cancelled (they fail), beside that of 1000 which are cancelled themselves.

    python benchmarks/groups.py [-n ROUNDS] [--only submit|stored|after]

All with the real local server and SQLite, in turn: a group and a tenth of the single jobs by the SDK, of which few run,
so that the others wait; and the commands, on servers whose databases are filled by the store.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from interleave import table, wall_times
from sqlalchemy import Connection

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import GroupInfo, JobInfo, Membership
from client_lib.worker.format import segment_name
from server_stub.files.request_log import Place
from server_stub.http.users_file import local_user
from server_stub.runtimes import log_dir
from server_stub.settings import Settings
from server_stub.store import Store, group_rows
from server_stub.store.rows import JobRow, NewJob

MEMBERS = 1000
GOAL_S = 2.0
GROUPS, STORED, RATIO = (2, 200), 500, 2.0  # groups of so many stored jobs
NOW = datetime.now(timezone.utc)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["submit", "stored", "after"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        states = [Path(scratch, name) for name in ("state", *map(str, GROUPS))]
        os.environ["CLIENT_LIB_STATE_DIR"] = str(states[0])
        try:
            if options.only in (None, "submit"):
                _compare(Path(scratch), options.rounds)
            if options.only in (None, "after"):
                _end_after(Path(scratch), options.rounds)
            if options.only in (None, "stored"):
                _read_stored(states[1:], options.rounds)
        finally:
            for state in states:
                _command(state, "server", "stop")


def _compare(scratch: Path, rounds: int) -> None:
    from client_lib import Client, Job

    script = scratch / "sleep.py"
    script.write_text("import time; time.sleep(60)\n")
    client = Client()
    client.server_info()  # starts the server

    def group(name: str) -> None:
        Job(script=script, client=client).each(name, {"seed": range(MEMBERS)}, max_parallel=1, check=False)

    def one_by_one(name: str) -> None:
        for seed in range(MEMBERS // 10):
            Job(script=script, args=["--seed", str(seed)], name=f"{name}-{seed}", client=client).submit(check=False)

    ways: dict[str, Callable[[str], None]] = {"group": group, "one by one": one_by_one}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            way(f"{name.replace(' ', '-')}-{number}")
            times[name].append(time.perf_counter() - begin)
    for name, found in times.items():
        print(f"{name}: median {statistics.median(found):.2f} s, largest {max(found):.2f} s")
    begin = time.perf_counter()
    _command(Path(os.environ["CLIENT_LIB_STATE_DIR"]), "list")
    print(f"client-lib list with all of them: {time.perf_counter() - begin:.2f} s")
    print(f"goal of a group: {GOAL_S} s: {'met' if max(times['group']) <= GOAL_S else 'MISSED'}")


def _end_after(scratch: Path, rounds: int) -> None:
    from client_lib import Client, Group, Job

    script = scratch / "waits.py"
    script.write_text("import time; time.sleep(600)\n")
    client = Client()

    def ended(group: Group, end: Callable[[], object]) -> float:
        begin = time.perf_counter()
        end()
        while not group.state.final:
            time.sleep(0.02)
        return time.perf_counter() - begin

    times: dict[str, list[float]] = {"after one": [], "cancelled": []}
    for number in range(rounds):
        for name, found in times.items():
            first = Job(script=script, client=client)
            first.submit(check=False)
            waiting = Job(script=script, client=client, after=[first])
            group = waiting.each(f"{name[:5].strip()}-{number}", {"seed": range(MEMBERS)}, check=False)
            found.append(ended(group, first.cancel if name == "after one" else group.cancel))
            first.cancel()
    for name, found in times.items():
        print(f"end of {MEMBERS} jobs, {name}: median {statistics.median(found):.2f} s, largest {max(found):.2f} s")


def _command(state: Path, *words: str) -> None:
    environment = {**os.environ, "CLIENT_LIB_STATE_DIR": str(state)}
    subprocess.run([sys.executable, "-m", "client_lib", *words], env=environment, check=True, stdout=subprocess.DEVNULL)


def _read_stored(states: list[Path], rounds: int) -> None:
    for state, count in zip(states, GROUPS, strict=True):
        _command(state, "list")  # makes the database
        _command(state, "server", "stop")
        asyncio.run(_fill(state, count))
    commands = {"list": ["list"], "best": ["best", "scan-1", "--by", "loss"]}
    for name, words in commands.items():
        ways = {f"{count * STORED} jobs": partial(_command, s, *words) for s, count in zip(states, GROUPS, strict=True)}
        samples = wall_times(ways, rounds)
        few, many = map(statistics.median, samples.values())
        print(table(f"client-lib {name}, groups of {STORED}", samples, to=(next(iter(ways)),)))
        print(f"goal: {RATIO}: {'met' if many <= RATIO * few else 'MISSED'}")


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
            lines = [f"{n} {NOW:%Y-%m-%dT%H:%M:%S.%fZ} 0 stdout step {n} loss={1 / (n + 1)}\n" for n in range(100)]
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
    same: dict[str, Any] = {"owner": group.owner, "state": first.state, "version": 3, "attempt": 1, "created_at": NOW}
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
    group_rows.add_group(connection, group_rows.NewGroup(group, [NewJob(row, {}, None) for row in rows]), first)


if __name__ == "__main__":
    main()
