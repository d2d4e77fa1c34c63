"""The use of CPU, memory and GPUs by the ranks of a worker, measured on real processes."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client_lib.worker import usage
from client_lib.worker.loop import Callback, Loop, Timer
from client_lib.worker.usage import UsageSampler
from tests.kit.bounds import Bounds
from tests.kit.waiting import until
from tests.worker.conftest import Worker

Make = Callable[..., Worker]
WORKS = """
    import os, time
    block = bytearray(300 * 2**20)  # its pages are written
    if os.fork() == 0:
        end = time.time() + 600
        while time.time() < end:
            sum(range(10**5))
    time.sleep(600)
"""


class Later(Loop):
    """Takes note of timers, and fires none."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.pauses: list[float] = []
        self.callbacks: list[Callback] = []

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        self.pauses.append(delay_s)
        self.callbacks.append(callback)
        return super().call_later(delay_s, callback)


def used(one: Worker) -> list[dict[str, float]]:
    return [
        json.loads(each.text)["used"] for each in one.records() if each.text.startswith('{"used"')
    ]


@pytest.mark.process
def test_the_cpu_and_memory_of_ranks_and_their_children_are_logged(worker: Make) -> None:
    one = worker(WORKS).start().go()
    found = until(
        lambda: [each for each in used(one) if each["worker/memory_gib"] > 0.28],
        "a sample with the block",
    )
    assert found[0]["worker/memory_gib"] < 1.0
    until(
        lambda: [each for each in used(one) if 0.05 < each["worker/cpu_cores"] < 2.0],
        "the child computes",
    )
    one.stop(0.0)
    one.report()


@pytest.mark.process
def test_samples_are_no_sign_of_life_and_a_line_is(worker: Make) -> None:
    one = worker(
        "import time; print('begins', flush=True); time.sleep(4); print('more', flush=True); "
        "time.sleep(600)"
    )
    one.start().go()
    until(
        lambda: any("packages" in each.text for each in one.records()),
        "what it runs on is logged, too",
    )
    (log,) = Path(one.directory.log).iterdir()
    until(
        lambda: time.time() - log.stat().st_mtime > 0.3,
        "the last of the records that list the packages",
    )
    before = log.stat().st_mtime_ns
    until(lambda: used(one), "a sample")
    assert log.stat().st_mtime_ns == before
    until(lambda: "more" in one.lines(), "another line")
    assert log.stat().st_mtime_ns > before
    one.stop(0.0)
    one.report()


@pytest.mark.process
def test_a_job_that_is_not_observed_is_not_measured(worker: Make) -> None:
    one = worker("import time; time.sleep(3)", observe=False)
    one.run()
    assert used(one) == []


@pytest.fixture
def limited() -> Iterator[Path]:
    """A control group with a memory limit of 400 MiB."""
    versions = (("memory", "memory.limit_in_bytes"), ("", "memory.max"))
    made = next((found for version in versions if (found := _limited_group(*version))), None)
    if made is None:
        pytest.skip(
            "only root, on a machine with control groups for memory, can limit that of a process"
        )
    yield made
    until(lambda: not (made / "cgroup.procs").read_text(), "its processes have ended")
    made.rmdir()


def _limited_group(root: str, limit: str) -> Path | None:
    made = Path("/sys/fs/cgroup", root, f"client-lib-{os.getpid()}")
    try:
        made.mkdir()
        (made / limit).write_text(str(400 * 2**20))
    except OSError:
        with contextlib.suppress(OSError):
            made.rmdir()
        return None
    return made


def test_the_part_of_the_memory_limit_is_known(limited: Path) -> None:
    uses = (
        "from client_lib.worker.memory import memory_of_limit\nblock = bytearray(200 * "
        "2**20)\nprint(memory_of_limit())"
    )
    command = [
        "sh",
        "-c",
        'echo $$ > "$0"/cgroup.procs && exec "$@"',
        str(limited),
        sys.executable,
        "-c",
        uses,
    ]
    part = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 0.5 < part < 0.6


HERE: Any = SimpleNamespace(before_exec=lambda: None)  # the system of this process
SMI = """#!/bin/sh
echo "$@" > {folder}/asked
printf '0, 97, 1024\\n1, [N/A], [N/A]\\nodd line\\n'
sleep 600
"""


@pytest.mark.process
def test_gpus_are_those_of_the_worker_and_their_reader_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: Bounds
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    bounds(usage, _SHORTEST_S=0.05, _SHARE=1.0)
    lines: list[dict[str, Any]] = []
    loop = Loop(lambda: None)
    sampler = UsageSampler(
        loop,
        HERE,
        lambda: {os.getpid(): 0},
        time.monotonic(),
        ["0", "1"],
        lambda line: lines.append(json.loads(line)["used"]),
    )
    assert sampler._reader
    loop.call_later(1.0, loop.stop)
    loop.run()
    assert (tmp_path / "asked").read_text().split()[-1] == "--id=0,1"
    assert {name: value for name, value in lines[-1].items() if "gpu" in name} == {
        "worker/gpu0_percent": 97,
        "worker/gpu0_memory_gib": 1.0,
    }
    pid = sampler._reader[0]
    sampler.finish()
    assert os.waitpid(pid, 0)[1] == 9


def test_a_worker_with_much_to_read_is_read_rarely() -> None:
    loop = Later()
    begin = time.thread_time()
    # no processes, for which the kernel is asked all the same
    many = dict.fromkeys(range(10**6, 10**6 + 2000), 0)
    UsageSampler(loop, HERE, lambda: many, time.monotonic(), [], lambda _: None)
    assert loop.pauses[0] >= 0.9 * (time.thread_time() - begin) / usage._SHARE / 2
    UsageSampler(loop, HERE, lambda: {os.getpid(): 0}, time.monotonic() - 10**6, [], lambda _: None)
    assert loop.pauses[1] == usage._LONGEST_S


def test_a_clock_that_is_set_back_makes_no_rank_use_more_cores_than_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Later()
    cores: list[float] = []
    use = partial(UsageSampler, loop, HERE, lambda: {os.getpid(): 0}, time.monotonic() - 100.0, [])
    use(lambda line: cores.append(json.loads(line)["used"]["worker/cpu_cores"]))
    now = time.time()
    # the clock of the machine is not the test's to set
    monkeypatch.setattr("time.time", lambda: now - 3600.0)
    end = time.process_time() + 0.1
    while time.process_time() < end:
        sum(range(1000))
    loop.callbacks[-1]()
    assert len(cores) == 2
    assert 0.0 < cores[1] <= (os.cpu_count() or 1) + 1
