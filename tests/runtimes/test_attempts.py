"""Attempts of the local runtime from their start to their end, with real processes."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from client_lib.errors import Unavailable
from client_lib.spec.states import Reason
from server_stub.files.job_dirs import inputs_dir, log_dir
from server_stub.runtimes import Source
from server_stub.runtimes.local.launcher import leftovers
from tests.kit.processes import alive
from tests.kit.waiting import eventually
from tests.runtimes.conftest import running

pytestmark = pytest.mark.anyio

SHOW = (
    "import json, os, sys\nnames = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', "
    "'MASTER_PORT', 'GLOO_SOCKET_IFNAME', 'MINE')\nprint(json.dumps({n: os.environ.get(n) for n "
    "in names} | {'cwd': os.getcwd(), 'argv': sys.argv}))\n"
)


async def test_an_attempt_that_does_not_fit_on_this_machine_any_more_cannot_start(
    tmp_path: Path,
) -> None:
    """The reason is none of those after which a job starts again, as
    after the loss of a machine.
    """
    async with running(tmp_path) as site:
        end = await site.ended(
            site.submit("large", "true", type="binary", instance_type="no-longer-there")
        )
        assert (end.reason, end.started_at) == (Reason.START_FAILED, None)


async def test_a_gang_of_workers_runs_and_completes(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    async with running(tmp_path) as site:
        job = site.submit("gang", "show.py --deep 'a b'", n_workers=2, processes_per_worker=2)
        end = await site.ended(job)
        assert (end.reason, end.message) == (Reason.COMPLETED, "every rank ended with exit code 0")
        assert [w.exit_code for w in end.workers] == [0, 0]
        assert end.started_at
        assert end.ended_at
        assert end.started_at < end.ended_at
        shown = [
            json.loads(line) for w in (0, 1) for line in site.lines(job, w) if line.startswith("{")
        ]
    assert sorted(s["RANK"] for s in shown) == ["0", "1", "2", "3"]
    assert {s["WORLD_SIZE"] for s in shown} == {"4"}
    assert {s["MASTER_ADDR"] for s in shown} == {"127.0.0.1"}
    assert len({s["MASTER_PORT"] for s in shown}) == 1
    assert {s["GLOO_SOCKET_IFNAME"] for s in shown} == {"lo"}
    assert {s["cwd"] for s in shown} == {str(tmp_path)}
    assert shown[0]["argv"] == [str(tmp_path / "show.py"), "--deep", "a b"]


async def test_it_is_running_before_it_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit("short", "true", type="binary")
        await site.ended(job)
        phases = [s.phase for s in site.of(job)]
    assert phases[-2:] == ["running", "ended"]


async def test_the_first_failing_worker_ends_the_others_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad "
        "luck')\ntime.sleep(600)\n"
    )
    async with running(tmp_path) as site:
        job = site.submit("fail", "fail.py", n_workers=3)
        end = await site.ended(job)
    assert end.reason is Reason.EXIT_CODE
    assert "rank 1 ended with exit code 1" in end.message
    assert "bad luck" in end.message
    assert end.first_failing
    assert (end.first_failing.worker, end.first_failing.rank) == (1, 1)


async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, "
        "signal.SIG_IGN)\nprint('up')\ntime.sleep(600)\n"
    )
    async with running(tmp_path) as site:
        job = site.submit("stubborn", "stubborn.py")
        await site.phase(job, "running")
        await eventually(lambda: "up" in site.lines(job))
        before = time.monotonic()
        site.runtime.stop("stubborn", 1, 0.5)
        end = await site.ended(job)
        took = time.monotonic() - before
    assert end.reason is Reason.CANCELLED
    assert 0.4 < took < 2.5


async def test_stop_takes_the_grandchildren(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        script = "bash -c 'setsid sleep 600 & echo $!; wait'"
        job = site.submit("grand", script, type="binary")
        await eventually(lambda: any(line.isdigit() for line in site.lines(job)))
        grandchild = next(int(line) for line in site.lines(job) if line.isdigit())
        before = time.monotonic()
        site.runtime.stop("grand", 1, 1.0)
        assert (await site.ended(job)).reason is Reason.CANCELLED
        assert time.monotonic() - before < 2.5
    assert not alive(grandchild)


async def test_a_program_that_is_not_there_fails_the_start(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        end = await site.ended(site.submit("none", "no-such-program-at-all", type="binary"))
    assert end.reason is Reason.START_FAILED
    assert "no-such-program-at-all" in end.message


async def test_if_one_worker_cannot_start_no_rank_of_any_runs(tmp_path: Path) -> None:
    async with running(tmp_path, python="/no/such/python") as site:
        job = site.submit("gang", "touch ran", type="binary", n_workers=2)
        end = await site.ended(job)
    assert end.reason is Reason.START_FAILED
    assert "could not be started" in end.message
    assert not (tmp_path / "ran").exists()


async def test_stop_ends_an_attempt_that_waits(tmp_path: Path) -> None:
    async with running(tmp_path, max_cpu_jobs=1) as site:
        first = site.submit("first", "sleep 600", type="binary")
        await site.phase(first, "running")
        second = site.submit("second", "touch ran", type="binary")
        third = site.submit("third", "true", type="binary")
        await site.phase(third, "waiting")
        assert (
            site.of(second)[0].message
            == "1st of 2; waits for its turn: jobs without GPUs run 1 at a time"
        )
        assert (
            site.of(third)[0].message
            == "2nd of 2; waits for its turn: jobs without GPUs run 1 at a time"
        )
        site.runtime.stop("second", 1, 10)
        assert (await site.ended(second)).reason is Reason.CANCELLED
        site.runtime.stop("first", 1, 1)
        site.runtime.stop("first", 1, 1)
        await site.ended(first)
        assert (await site.ended(third)).reason is Reason.COMPLETED
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("delay_ms", [0, 1, 5, 10, 20, 30, 50, 80])
async def test_stop_at_any_moment_of_the_start_ends_all_of_it_soon(
    tmp_path: Path, delay_ms: int
) -> None:
    async with running(tmp_path) as site:
        job = site.submit("soon", "sleep 617", type="binary", n_workers=2)
        await asyncio.sleep(delay_ms / 1000)
        site.runtime.stop("soon", 1, 1.0)
        assert (await site.ended(job)).reason is Reason.CANCELLED
        assert [w for w in (0, 1) if leftovers(site.directory(job, w))] == []


async def test_a_launcher_that_never_gets_ready_can_be_stopped(tmp_path: Path) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o755)
    async with running(tmp_path, python=str(stuck)) as site:
        job = site.submit("stuck", "true", type="binary")
        assert (await site.phase(job, "waiting")).message == "0 of 1 workers are prepared"
        before = time.monotonic()
        site.runtime.stop("stuck", 1, 30.0)
        assert (await site.ended(job)).reason is Reason.CANCELLED
        assert time.monotonic() - before < 3


async def test_higher_priority_goes_first(tmp_path: Path) -> None:
    async with running(tmp_path, max_cpu_jobs=1) as site:
        first = site.submit("first", "sleep 600", type="binary")
        await site.phase(first, "running")
        low = site.submit("low", "true", type="binary", priority_class="low")
        high = site.submit("high", "true", type="binary", priority_class="high")
        await site.phase(high, "waiting")
        site.runtime.stop("first", 1, 1)
        await site.ended(low)
        ends = [s.job_id for s in site.seen if s.phase == "ended"]
    assert ends == ["first", "high", "low"]
    assert high.spec.priority_class.order > low.spec.priority_class.order


async def test_logs_are_signs_of_life(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit(
            "talks",
            "bash -c 'echo up; until [ -e again ]; do sleep 0.05; done; echo again; sleep 600'",
            type="binary",
        )
        await eventually(lambda: "up" in site.lines(job))
        life = site.runtime.signs_of_life("talks", 1)
        assert site.runtime.signs_of_life("talks", 1) == life
        (tmp_path / "again").touch()
        await eventually(lambda: "again" in site.lines(job))
        assert site.runtime.signs_of_life("talks", 1) != life
        for target in ("nowhere", "0"):  # a file that is listed, and is gone or can't be looked at
            removed = log_dir(job.job_dir, 1, 0) / "0"
            removed.symlink_to(target)
            assert site.runtime.signs_of_life("talks", 1) is not None
            removed.unlink()
        site.runtime.stop("talks", 1, 1)
        await site.ended(job)
        assert site.runtime.signs_of_life("unknown", 1) == site.runtime.signs_of_life("unknown", 1)


async def test_the_same_attempt_given_twice_runs_once(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit("once", "bash -c 'echo x >> count; sleep 0.2'", type="binary")
        site.runtime.submit(job)
        await site.phase(job, "running")
        site.runtime.submit(job)
        await site.ended(job)
    assert (tmp_path / "count").read_text() == "x\n"


async def test_attempts_of_one_job_have_directories_of_their_own_and_one_for_checkpoints(
    tmp_path: Path,
) -> None:
    (tmp_path / "again.py").write_text(
        "import os, pathlib\n"
        "kept = pathlib.Path(os.environ['CLIENT_LIB_CHECKPOINT_DIR'], 'kept')\n"
        "print(os.environ['CLIENT_LIB_ATTEMPT'], kept.exists())\n"
        "kept.touch()\n"
    )
    async with running(tmp_path) as site:
        for number in (1, 2):
            await site.ended(site.submit("again", "again.py", number=number))
        lines = [
            site.lines(site.attempt("again", "again.py", number=number))[-1] for number in (1, 2)
        ]
    assert lines == ["1 False", "2 True"]


async def test_a_job_that_waited_starts_when_the_database_answers_and_keeps_one_folder_of_inputs(
    tmp_path: Path,
) -> None:
    asked: list[int] = []

    async def after() -> list[list[Source]]:
        asked.append(len(asked))
        if len(asked) == 1:
            raise Unavailable("the database does not answer")
        return [[]]

    async with running(tmp_path) as site:
        for number in (1, 2):
            attempt = replace(site.attempt("second", "true", number, type="binary"), after=after)
            attempt.job_dir.mkdir(parents=True, exist_ok=True)
            site.runtime.submit(attempt)
            assert (await site.ended(attempt)).reason is Reason.COMPLETED
    assert len(asked) == 3
    assert [inputs_dir(attempt.job_dir, number).exists() for number in (1, 2)] == [False, True]


async def test_a_directory_that_cannot_be_made_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with running(tmp_path) as site:
        job = site.submit("full", "true", type="binary", checkpoint_dir="file/checkpoints")
        end = await site.ended(job)
    assert end.reason is Reason.START_FAILED
    assert str(tmp_path / "file/checkpoints") in end.message


async def test_nothing_of_an_attempt_is_readable_by_others(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit(
            "quiet",
            "true",
            type="binary",
            secrets=["HF_TOKEN"],
            _secrets={"HF_TOKEN": "s3cr3t-value"},
        )
        await site.ended(job)
    holding = [
        p for p in job.job_dir.rglob("*") if p.is_file() and b"s3cr3t-value" in p.read_bytes()
    ]
    assert [p.name for p in holding] == ["plan.json"]
    assert holding[0].stat().st_mode & 0o077 == 0
    assert site.directory(job).stat().st_mode & 0o077 == 0
