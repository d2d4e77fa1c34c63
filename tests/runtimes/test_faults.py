"""What the local runtime survives: killed ranks, launchers and servers, a reboot of the machine."""

import asyncio
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_lib.durable import read_json
from client_lib.launcher_protocol.directory import Directory
from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from client_lib.spec.validation import STORED
from server_stub.files.job_dirs import attempt_dir
from server_stub.runtimes import Attempt
from server_stub.runtimes.local import launcher
from tests.kit.bounds import Bounds
from tests.kit.processes import alive
from tests.kit.small_disk import fill, small_disk
from tests.kit.waiting import eventually
from tests.runtimes.conftest import Site, running

pytestmark = [pytest.mark.process, pytest.mark.anyio]


def held(site: Site, attempt: Attempt, worker: int = 0) -> dict[str, Any]:
    """Who holds the lock of a worker."""
    content = read_json(Directory(str(site.directory(attempt, worker))).lock)
    assert content is not None
    return content


def ranks(site: Site, attempt: Attempt, worker: int = 0) -> list[int]:
    recorded = read_json(Directory(str(site.directory(attempt, worker))).processes) or {}
    return [rank["pid"] for rank in recorded.values()]


@pytest.mark.smoke
async def test_a_killed_rank_fails_the_attempt_by_its_signal(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit("shot", "sleep 600", type="binary", n_workers=2)
        await site.phase(job, "running")
        os.kill(ranks(site, job, 1)[0], signal.SIGKILL)
        end = await site.ended(job)
    # the kernel's counter may grow by another's fault
    assert end.reason in (Reason.SIGNAL, Reason.OUT_OF_MEMORY)
    assert "rank 1" in end.message


@pytest.fixture(params=["0", "1"])
def _portable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_LIB_PORTABLE", request.param)
    # read from that variable when the module was imported
    monkeypatch.setattr(launcher, "LAUNCHER_SWEEPS", request.param == "0")


@pytest.mark.usefixtures("_portable")
async def test_when_a_launcher_is_killed_nothing_of_the_attempt_lives_on(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as site:
        script = "bash -c 'setsid sleep 600 & echo $!; wait'"
        job = site.submit("lost", script, type="binary", n_workers=2)
        await eventually(lambda: site.lines(job, 0) and site.lines(job, 1))
        grandchildren = [int(line) for w in (0, 1) for line in site.lines(job, w) if line.isdigit()]
        processes = [*grandchildren, *ranks(site, job, 0), *ranks(site, job, 1)]
        os.kill(held(site, job, 1)["pid"], signal.SIGKILL)
        end = await site.ended(job)
        assert not any(map(alive, processes))
    assert (end.reason, end.message) == (
        Reason.LAUNCHER_LOST,
        "the launcher of worker 1 was killed by signal 9 without a report",
    )


ITS_OWN_REPORT = """
import json, os, signal
path = os.path.join(os.environ["CLIENT_LIB_WORKER_DIR"], "report.json")
{make}
os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(
            "open(path, 'w').write('{}')",
            "report.json can't be read: protocol: Field required",
            id="empty",
        ),
        pytest.param(
            "open(path, 'w').write('[' * 10**6)", "report.json can't be read: ", id="deep"
        ),
        pytest.param("open(path, 'wb').truncate(2**40)", "without a report", id="huge"),
        pytest.param("os.mkfifo(path)", "without a report", id="pipe"),
        pytest.param("os.symlink('/dev/zero', path)", "without a report", id="link"),
        pytest.param("os.mkdir(path)", "without a report", id="folder"),
    ],
)
async def test_a_report_that_a_rank_has_written_ends_the_attempt(
    tmp_path: Path, make: str, said: str
) -> None:
    async with running(tmp_path) as site:
        (tmp_path / "train.py").write_text(ITS_OWN_REPORT.format(make=make))
        end = await site.ended(site.submit("writes", "train.py"))
    assert end.reason is Reason.LAUNCHER_LOST
    assert "without a report" in end.message
    assert said in end.message


@pytest.mark.parametrize("name", ["report.json", "report.json.new"])
@pytest.mark.parametrize("make", ["os.mkdir(path)", "os.mkfifo(path)"])
async def test_a_launcher_ends_if_a_rank_has_taken_the_name_of_its_report(
    tmp_path: Path, name: str, make: str
) -> None:
    async with running(tmp_path) as site:
        script = (
            f"import os; path = os.path.join(os.environ['CLIENT_LIB_WORKER_DIR'], {name!r}); {make}"
        )
        (tmp_path / "train.py").write_text(script)
        end = await site.ended(site.submit("takes", "train.py"))
    if "mkfifo" in make:  # it is replaced
        assert end.reason is Reason.COMPLETED
    else:
        assert end.reason is Reason.LAUNCHER_LOST
        assert "without a report: IsADirectoryError" in end.message


@pytest.mark.usefixtures("_portable")
async def test_when_a_rank_leaves_a_process_behind_it_is_gone_at_the_end(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as site:
        job = site.submit(
            "leaves",
            "bash -c 'setsid sleep 600 >/dev/null 2>&1 & echo $!'",
            type="binary",
            grace_s=0.1,
        )
        assert (await site.ended(job)).reason is Reason.COMPLETED
        left = next(int(line) for line in site.lines(job) if line.isdigit())
        assert not alive(left)


async def test_a_launcher_that_cannot_begin_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no encodings here' >&2\nexit 3\n")
    broken.chmod(0o755)
    async with running(tmp_path, python=str(broken)) as site:
        end = await site.ended(site.submit("broken", "true", type="binary"))
    assert end.reason is Reason.LAUNCHER_LOST
    assert (
        end.message
        == "the launcher of worker 0 ended with exit code 3 without a report: no encodings here"
    )


async def test_an_attempt_for_which_the_disk_has_no_room_ends_and_names_the_disk(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        async with running(disk) as site:
            attempt = site.attempt("full", "true", type="binary")
            attempt.job_dir.mkdir(parents=True)
            fill(disk)
            site.runtime.submit(attempt)
            end = await site.ended(attempt)
    assert end.reason is Reason.STORAGE_FULL
    assert f"No space left on device: '{disk}/jobs/full" in end.message


async def test_a_launcher_that_a_full_disk_ends_names_the_disk(tmp_path: Path) -> None:
    """It can't even print why."""
    broken, ballast = tmp_path / "python", tmp_path / "disk" / "ballast"
    broken.write_text(
        f"#!/bin/sh\nhead -c 100m /dev/zero > {ballast}\necho there is no room for this "
        "line\nexit 120\n"
    )
    broken.chmod(0o755)
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        async with running(disk, python=str(broken)) as site:
            end = await site.ended(site.submit("full", "true", type="binary"))
        assert not list(disk.rglob("reserve"))
    assert end.reason is Reason.STORAGE_FULL
    assert end.message == (
        f"the launcher of worker 0 had no room on the disk of {disk}/jobs/full/attempts/1/workers/0"
    )


async def test_a_frozen_launcher_is_killed_after_the_grace(tmp_path: Path, bounds: Bounds) -> None:
    # else the test takes 10 s
    bounds("server_stub.runtimes.local.gang", NO_ANSWER_S=0.3)
    async with running(tmp_path) as site:
        job = site.submit("frozen", "sleep 600", type="binary")
        await site.phase(job, "running")
        os.kill(held(site, job)["pid"], signal.SIGSTOP)
        site.runtime.stop("frozen", 1, 0.1)
        end = await site.ended(job)
        assert not any(map(alive, ranks(site, job)))
    assert end.reason is Reason.CANCELLED


async def test_the_launcher_that_has_the_lock_is_killed_though_a_second_one_was_started(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as site:
        job = site.submit("twice", "sleep 600", type="binary")
        await site.phase(job, "running")
        second = launcher.Launcher(site.directory(job), 0, "here", lambda: None)
        second.spawn(sys.executable)
        await second.reap()
        assert alive(held(site, job)["pid"])
        second.kill()
        assert (await site.ended(job)).reason is Reason.LAUNCHER_LOST


@pytest.mark.smoke
async def test_a_new_runtime_finds_what_runs_and_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit(
            "long",
            "bash -c 'while [ ! -e go ]; do sleep 0.02; done; echo done'",
            type="binary",
            n_workers=2,
        )
        await site.phase(job, "running")
        pids = [held(site, job, w)["pid"] for w in (0, 1)]
    async with running(tmp_path) as again:
        again.runtime.submit(job)
        assert (await again.phase(job, "running")).reason is Reason.RUNNING
        (tmp_path / "go").touch()
        end = await again.ended(job)
        assert [held(again, job, w)["pid"] for w in (0, 1)] == pids
        assert [again.lines(job, w)[-1] for w in (0, 1)] == ["done", "done"]
    assert end.reason is Reason.COMPLETED


@pytest.mark.smoke
async def test_a_new_runtime_reports_what_ended_meanwhile(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit("quick", "bash -c 'sleep 0.3; exit 7'", type="binary")
        await site.phase(job, "running")
    await eventually(lambda: (site.directory(job) / "report.json").exists())
    for _ in range(2):  # and again, if the server died before it had stored that
        async with running(tmp_path) as again:
            again.runtime.submit(job)
            end = await again.ended(job)
            assert end.first_failing
            assert (end.reason, end.first_failing.exit_code) == (Reason.EXIT_CODE, 7)


async def test_a_new_runtime_finds_a_launcher_that_died_meanwhile(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit("dead", "bash -c 'setsid sleep 600 & echo $!; wait'", type="binary")
        await eventually(lambda: any(line.isdigit() for line in site.lines(job)))
        grandchild = next(int(line) for line in site.lines(job) if line.isdigit())
    os.kill(held(site, job)["pid"], signal.SIGKILL)
    async with running(tmp_path) as again:
        again.runtime.submit(job)
        end = await again.ended(job)
        assert not alive(grandchild)
    assert (end.reason, end.message) == (
        Reason.LAUNCHER_LOST,
        "the launcher of worker 0 died without a report",
    )


@pytest.mark.smoke
async def test_what_was_written_down_but_never_launched_is_started_once(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit(
            "twice", "bash -c 'echo x >> count; sleep 0.2'", type="binary", n_workers=2
        )
        await site.ended(job)
    # as a server leaves it that dies between the record of the start and the second launcher
    for worker in (0, 1):
        for name in ("lock", "report.json", "processes.json"):
            (site.directory(job, worker) / name).unlink()
    (tmp_path / "count").unlink()
    async with running(tmp_path) as again:
        again.runtime.submit(job)
        assert (await again.ended(job)).reason is Reason.COMPLETED
    assert (tmp_path / "count").read_text() == "x\nx\n"


async def test_after_a_reboot_the_attempt_is_lost_with_its_machine(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit("old", "true", type="binary")
        await site.ended(job)
    file = attempt_dir(job.job_dir, 1) / "attempt.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"boot_id": "another"}))
    for name in ("lock", "report.json"):
        (site.directory(job) / name).unlink()
    async with running(tmp_path) as again:
        again.runtime.submit(job)
        assert (await again.ended(job)).reason is Reason.NODE_LOST


async def test_an_attempt_that_the_shutdown_of_its_machine_has_stopped_is_lost_with_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as site:
        job = site.submit("old", "sleep 600", type="binary", n_workers=2)
        await site.phase(job, "running")
        pids = [held(site, job, worker)["pid"] for worker in (0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    await eventually(
        lambda: all((site.directory(job, worker) / "report.json").exists() for worker in (0, 1))
    )
    file = attempt_dir(job.job_dir, 1) / "attempt.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"boot_id": "another"}))
    async with running(tmp_path) as again:
        again.runtime.submit(job)
        end = await again.ended(job)
    assert (end.reason, end.message) == (
        Reason.NODE_LOST,
        "the machine was rebooted while the job ran",
    )


async def test_a_stop_reaches_workers_found_again(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        job = site.submit("long", "sleep 600", type="binary", n_workers=2)
        await site.phase(job, "running")
    async with running(tmp_path) as again:
        again.runtime.submit(job)
        again.runtime.stop("long", 1, 1.0)
        assert (await again.ended(job)).reason is Reason.CANCELLED


async def test_attempts_found_again_keep_their_place_from_those_that_wait(tmp_path: Path) -> None:
    async with running(tmp_path, max_cpu_jobs=1) as site:
        runs = site.submit("runs", "sleep 600", type="binary")
        await site.phase(runs, "running")
        waits = site.submit("waits", "true", type="binary")
        await site.phase(waits, "waiting")
    again = Site(tmp_path, max_cpu_jobs=1)
    again.runtime.submit(waits)  # before start: nothing is admitted until all are here
    again.runtime.submit(runs)
    await again.start()
    await again.phase(waits, "waiting")
    again.runtime.stop("runs", 1, 1)
    await again.ended(waits)
    assert [s.job_id for s in again.seen if s.phase == "ended"] == ["runs", "waits"]
    await again.runtime.close()


SERVER = """
import asyncio, pickle, sys
from dataclasses import replace
from pathlib import Path
from server_stub.runtimes.local import LocalOptions
from server_stub.runtimes.local.runtime import LocalRuntime
from server_stub.settings import Settings

async def main(folder):
    settings = Settings(state_dir=folder, data_dir=folder, warm=False)
    runtime = LocalRuntime(LocalOptions(settings, nvidia_smi="no-such-nvidia-smi"))
    for attempt in pickle.loads((folder / "attempts.pickle").read_bytes()):
        runtime.submit(attempt)
    await runtime.start(lambda seen: print(seen.job_id, seen.phase, seen.reason, flush=True))
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""


def host(folder: Path) -> subprocess.Popen[bytes]:
    """A process of its own with a runtime in it."""
    return subprocess.Popen([sys.executable, "-c", SERVER, str(folder)], stdout=subprocess.PIPE)


FEW_MS = [0, 15, 40]
MANY_MS = [2, 4, 6, 8, 10, 12, 20, 25, 30, 50, 60, 70, 80, 90, 100, 120, 150, 200]


@pytest.mark.parametrize(
    "delay_ms", FEW_MS + [pytest.param(ms, marks=pytest.mark.long) for ms in MANY_MS]
)
async def test_a_server_killed_at_any_moment_starts_nothing_twice_and_loses_nothing(
    tmp_path: Path, delay_ms: int
) -> None:
    site = Site(tmp_path)
    (tmp_path / "once.py").write_text(
        "import os, time\n"
        "open('ran', 'a').write(os.environ['CLIENT_LIB_JOB_NAME'] + os.environ['RANK'] + '\\n')\n"
        "time.sleep(0.1)\n"
    )
    jobs = [site.attempt(f"job{n}-", "once.py", n_workers=2) for n in range(3)]
    for job in jobs:
        job.job_dir.mkdir(parents=True)
    (tmp_path / "attempts.pickle").write_bytes(pickle.dumps(jobs))
    server = host(tmp_path)
    await eventually(lambda: attempt_dir(jobs[0].job_dir, 1).exists())
    await asyncio.sleep(delay_ms / 1000)
    server.kill()
    server.communicate()
    for job in jobs:
        site.runtime.submit(job)
    await site.start()
    for job in jobs:
        assert (await site.ended(job)).reason is Reason.COMPLETED
    await site.runtime.close()
    assert sorted((tmp_path / "ran").read_text().split()) == sorted(
        f"job{n}-{r}" for n in range(3) for r in (0, 1)
    )


@pytest.mark.smoke
async def test_an_attempt_over_which_the_server_fails_ends_and_gives_back_what_it_got(
    tmp_path: Path,
) -> None:
    """An earlier version took a NUL byte in a path; no folder can have that name."""
    async with running(tmp_path, max_cpu_jobs=1) as site:
        free = site.runtime.instance_types()
        whole = site.attempt("one", "true", type="binary")
        spec = JobSpec.model_validate(
            whole.spec.model_dump() | {"checkpoint_dir": "/a\0"}, context=STORED
        )
        one = replace(whole, spec=spec)
        site.runtime.submit(one)
        end = await site.ended(one)
        assert (end.reason, "the server had an error in this attempt" in end.message) == (
            Reason.SERVER_ERROR,
            True,
        )
        assert (
            await site.ended(site.submit("two", "true", type="binary"))
        ).reason is Reason.COMPLETED
        await eventually(lambda: site.runtime.instance_types() == free)


async def test_an_attempt_that_ends_while_the_server_can_open_no_file_gives_back_what_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, leftovers = [OSError(errno.EMFILE, "Too many open files")] * 4, launcher.leftovers

    def found(folder: Path) -> list[int]:
        if failures:
            raise failures.pop()
        return leftovers(folder)

    async with running(tmp_path) as site:
        free = site.runtime.instance_types()
        job = site.submit("one", "sleep 600", type="binary")
        await site.phase(job, "running")
        # a server of which only this one call finds no free descriptor can't be had
        monkeypatch.setattr(launcher, "leftovers", found)
        os.kill(held(site, job)["pid"], signal.SIGKILL)
        assert (await site.ended(job)).reason is Reason.LAUNCHER_LOST
        await eventually(lambda: site.runtime.instance_types() == free)
    assert not failures


@pytest.mark.parametrize("content", ["{", "{}", '{"grant": 5}'])
async def test_an_attempt_whose_record_is_damaged_is_ended_and_not_started_twice(
    tmp_path: Path, content: str
) -> None:
    async with running(tmp_path) as site:
        job = site.submit("one", "sleep 600", type="binary", n_workers=2)
        await site.phase(job, "running")
        pids = ranks(site, job, 0) + ranks(site, job, 1)
    (attempt_dir(job.job_dir, 1) / "attempt.json").write_text(content)
    async with running(tmp_path) as site:
        site.runtime.submit(job)
        end = await site.ended(job)
        assert end.reason is Reason.SERVER_ERROR
        assert "attempt.json can't be read" in end.message
        assert not any(map(alive, pids))
