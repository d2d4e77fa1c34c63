"""GPUs: what nvidia-smi's answer means, and how they are handed out, with a program
that answers in its place.
"""

import asyncio
import errno
import gc
import json
import os
import re
import sys
from pathlib import Path

import pytest

from client_lib.errors import NeverFits
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from client_lib.spec.states import Reason
from server_stub.runtimes.local import gpus, runtime
from server_stub.runtimes.local.gpus import Gpu, GpuProcess, parse, visible
from tests.kit.bounds import Bounds
from tests.kit.processes import alive
from tests.kit.waiting import eventually
from tests.runtimes.conftest import running

THREE = "\n".join(f"{n}, GPU-{n}{n}, NVIDIA A100-SXM4-80GB, 81920, 4" for n in range(3))
SHOW = (
    "import json, os\nnames = ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'LOCAL_RANK', "
    "'WORLD_SIZE', 'ACCELERATE_USE_CPU')\nprint(json.dumps({n: os.environ.get(n) for n in "
    "names}))\n"
)


# --- what the answer means


def nameless(_: int) -> str:
    return ""


def test_the_answers_are_put_together() -> None:
    found = parse(
        "1, GPU-b, NVIDIA X, 24576, 300\n0, GPU-a, NVIDIA X, 24576, 5\n",
        "GPU-b, 77, 290\n",
        lambda pid: f"python{pid}",
    )
    assert found == [
        Gpu(0, "GPU-a", "NVIDIA X", 24576, 5),
        Gpu(1, "GPU-b", "NVIDIA X", 24576, 300, (GpuProcess(77, 290, "python77"),)),
    ]


def test_what_the_driver_does_not_tell_is_not_invented() -> None:
    found = parse(
        "0, GPU-a, NVIDIA X, [N/A], [N/A]\n", "GPU-a, 77, [Insufficient Permissions]\n", nameless
    )
    assert found == [Gpu(0, "GPU-a", "NVIDIA X", 0, 0, (GpuProcess(77, None),))]
    assert found[0].held(100) == "GPU 0: pid 77 holds memory"


def test_an_answer_of_another_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="not of 5 fields"):
        parse("No devices were found\n", "", nameless)


def test_who_holds_a_gpu_is_said_with_how_much() -> None:
    card = Gpu(2, "u", "n", 81920, 13000, (GpuProcess(7, 12800, "python"), GpuProcess(8, 50)))
    assert card.held(100) == "GPU 2: pid 7 (python) holds 12.5 GiB"
    assert card.held(20_000) is None


def test_memory_without_a_visible_holder_counts_when_it_is_much() -> None:
    assert Gpu(0, "u", "n", 81920, 600).held(100) is None
    assert Gpu(0, "u", "n", 81920, 40960).held(100) == (
        "GPU 0: 40.0 GiB are in use by a process that nvidia-smi does not list"
    )


def test_visible_devices_are_read_as_cuda_reads_them() -> None:
    cards = parse(THREE, "", nameless)
    assert [g.index for g in visible(cards, ["2", "GPU-00", "2"])] == [2, 0]
    assert visible(cards, ["1", "-1", "2"]) == [cards[1]]
    assert visible(cards, ["MIG-1"]) == []
    assert visible(cards, None) == cards


# --- handed out


class Smi:
    """A program that answers as nvidia-smi does, from two files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "nvidia-smi"
        self.program.write_text(
            f"#!/bin/sh\ncd {folder}\n[ -e broken ] && {{ echo 'no driver'; exit 9; }}\n"
            'case "$1" in *query-gpu*) cat gpus;; *) cat processes;; esac\n'
        )
        self.program.chmod(0o755)
        self.answer(THREE)

    def answer(self, cards: str, processes: str = "") -> None:
        (self._folder / "gpus").write_text(cards + "\n")
        (self._folder / "processes").write_text(processes + "\n")

    def break_down(self) -> None:
        (self._folder / "broken").touch()

    def repair(self) -> None:
        (self._folder / "broken").unlink()


@pytest.fixture
def smi(tmp_path: Path, bounds: Bounds) -> Smi:
    # the answers change faster here than GPUs do
    bounds(gpus, FRESH_S=0.0)
    bounds(runtime, LOOK_AGAIN_S=0.05)
    (tmp_path / "show.py").write_text(SHOW)
    return Smi(tmp_path)


@pytest.mark.anyio
async def test_a_job_sees_its_gpus_one_process_each(tmp_path: Path, smi: Smi) -> None:
    async with running(tmp_path, nvidia_smi=str(smi.program)) as site:
        job = site.submit("two", "show.py", instance_type="a100.2gpu")
        assert (await site.ended(job)).reason is Reason.COMPLETED
        seen = [json.loads(line) for line in site.lines(job) if line.startswith("{")]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in seen] == ["0,1", "0,1"]
    assert sorted(s["LOCAL_RANK"] for s in seen) == ["0", "1"]
    assert {s["CUDA_DEVICE_ORDER"] for s in seen} == {"PCI_BUS_ID"}
    assert {s["ACCELERATE_USE_CPU"] for s in seen} == {None}


@pytest.mark.anyio
async def test_without_a_type_a_job_gets_all_free_gpus(tmp_path: Path, smi: Smi) -> None:
    async with running(tmp_path, nvidia_smi=str(smi.program)) as site:
        job = site.submit("all", "show.py", n_workers=3)
        await site.ended(job)
        seen = [json.loads(site.lines(job, w)[-1]) for w in range(3)]
    assert [s["CUDA_VISIBLE_DEVICES"] for s in seen] == ["0", "1", "2"]


@pytest.mark.anyio
async def test_gpus_are_taken_back_and_given_to_the_next(tmp_path: Path, smi: Smi) -> None:
    async with running(tmp_path, nvidia_smi=str(smi.program)) as site:
        first = site.submit(
            "first", "sleep 600", type="binary", instance_type="a100.2gpu", processes_per_worker=1
        )
        await site.phase(first, "running")
        second = site.submit("second", "show.py", instance_type="a100.2gpu")
        assert (
            await site.phase(second, "waiting")
        ).message == "waits for 2 GPUs; 2 of 3 GPUs are in use"
        free = [kind.available for kind in site.runtime.instance_types() if kind.gpus]
        assert free == [1, 0, 0]
        third = site.submit("third", "show.py", type="nogpu")
        await site.ended(third)  # needs none, waits for none
        assert json.loads(site.lines(third)[-1])["CUDA_VISIBLE_DEVICES"] == ""
        site.runtime.stop("first", 1, 1)
        assert (await site.ended(second)).reason is Reason.COMPLETED


@pytest.mark.anyio
async def test_a_gpu_that_a_stranger_holds_is_not_handed_out_until_it_is_free(
    tmp_path: Path, smi: Smi
) -> None:
    smi.answer(THREE, f"GPU-00, {os.getpid()}, 12800")
    async with running(tmp_path, nvidia_smi=str(smi.program)) as site:
        one = site.submit("one", "show.py", instance_type="a100.1gpu")
        await site.ended(one)
        assert json.loads(site.lines(one)[-1])["CUDA_VISIBLE_DEVICES"] == "1"
        three = site.submit("three", "show.py", instance_type="a100.3gpu")
        held = (
            "waits for 3 GPUs; 0 of 3 GPUs are in use; "
            rf"GPU 0: pid {os.getpid()} \(.*holds 12.5 GiB"
        )
        # the GPU of `one` is released after its end is reported
        await site.until(lambda: any(re.fullmatch(held, seen.message) for seen in site.of(three)))
        smi.answer(THREE)
        assert (await site.ended(three)).reason is Reason.COMPLETED


@pytest.mark.anyio
async def test_while_nvidia_smi_fails_no_gpu_is_handed_out_and_pending_says_why(
    tmp_path: Path, smi: Smi
) -> None:
    async with running(tmp_path, nvidia_smi=str(smi.program)) as site:
        smi.break_down()
        job = site.submit("waits", "show.py", instance_type="a100.1gpu")
        assert "ended with 9: no driver" in (await site.phase(job, "waiting")).message
        smi.repair()
        assert (await site.ended(job)).reason is Reason.COMPLETED


@pytest.mark.anyio
async def test_bounds_of_the_submitter_and_of_the_spec_are_kept(tmp_path: Path, smi: Smi) -> None:
    bound = Submitter(python=sys.executable, working_dir=str(tmp_path), gpus=["2", "1"])
    async with running(tmp_path, nvidia_smi=str(smi.program)) as site:
        mine = site.submit("mine", "show.py", instance_type="a100.1gpu", _submitter=bound)
        chosen = site.submit("chosen", "show.py", gpus=[2, 0])
        for job in (mine, chosen):
            await site.ended(job)
        assert json.loads(site.lines(mine)[-1])["CUDA_VISIBLE_DEVICES"] == "1"
        assert json.loads(site.lines(chosen)[-1])["CUDA_VISIBLE_DEVICES"] == "0,2"
        with pytest.raises(NeverFits, match="of which this job may use GPU 2, 1"):
            site.runtime.check(JobSpec(script="/t.py", instance_type="a100.3gpu"), "me", bound)


@pytest.mark.anyio
async def test_gpus_of_a_job_found_again_are_not_handed_out(tmp_path: Path, smi: Smi) -> None:
    async with running(tmp_path, nvidia_smi=str(smi.program)) as site:
        holds = site.submit(
            "holds", "sleep 600", type="binary", gpus=[0, 1], processes_per_worker=1
        )
        await site.phase(holds, "running")
    async with running(tmp_path, nvidia_smi=str(smi.program)) as again:
        other = again.submit("other", "show.py", instance_type="a100.1gpu")
        again.runtime.submit(holds)  # in the same turn of the loop, after it
        await again.ended(other)
        assert json.loads(again.lines(other)[-1])["CUDA_VISIBLE_DEVICES"] == "2"
        again.runtime.stop("holds", 1, 1)
        await again.ended(holds)


@pytest.mark.anyio
async def test_without_nvidia_smi_a_gpu_type_runs_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    async with running(tmp_path) as site:
        job = site.submit("laptop", "show.py", instance_type="a100.8gpu", n_workers=2)
        await site.ended(job)
        seen = json.loads(site.lines(job, 1)[-1])
        assert len(site.runtime.check(job.spec, "me", job.submitter)) == 1
    assert (seen["WORLD_SIZE"], seen["CUDA_VISIBLE_DEVICES"], seen["ACCELERATE_USE_CPU"]) == (
        "2",
        "",
        "true",
    )


@pytest.mark.anyio
async def test_the_doctor_looks_at_the_gpus(tmp_path: Path, smi: Smi) -> None:
    async with running(tmp_path, nvidia_smi=str(smi.program)) as site:
        report = {check.name: check for check in await site.runtime.doctor()}
        assert report["gpus"].message == "3 of 3 are free"
        assert all(check.ok or check.fix for check in report.values())
        smi.answer(THREE, "GPU-00, 1, 500")
        held = {check.name: check for check in await site.runtime.doctor()}["gpus"]
        assert not held.ok
        assert held.message.startswith("GPU 0: pid 1 (")
        smi.break_down()
        broken = {check.name: check for check in await site.runtime.doctor()}["gpus"]
        assert "no driver" in broken.message


@pytest.mark.anyio
async def test_an_nvidia_smi_that_hangs_is_given_up(tmp_path: Path, bounds: Bounds) -> None:
    bounds(gpus, TIMEOUT_S=0.2)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    cards = gpus.Gpus(str(program))
    await asyncio.wait_for(cards.look(), 5)
    assert cards.failure == f"{program} gave no answer in 0 s"


@pytest.mark.anyio
async def test_a_process_whose_program_can_not_be_read_is_a_failure_not_a_crash(
    smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content(path: str) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", path)

    # a server without descriptors could not start the stand-in of nvidia-smi either
    monkeypatch.setattr(gpus, "content", content)
    smi.answer(THREE, "GPU-00, 17, 100")
    cards = gpus.Gpus(str(smi.program))
    await cards.look()
    assert "Too many open files" in str(cards.failure)


@pytest.mark.anyio
async def test_a_look_that_is_broken_off_leaves_no_process(tmp_path: Path) -> None:
    program, pids = tmp_path / "nvidia-smi", tmp_path / "pids"
    program.write_text(f"#!/bin/sh\necho $$ >> {pids}\nexec sleep 600\n")
    program.chmod(0o755)
    look = asyncio.ensure_future(gpus.Gpus(str(program)).look())
    await eventually(lambda: pids.exists() and "\n" in pids.read_text())
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert not alive(int(pids.read_text()))


def test_one_that_fails_leaves_no_pipe_to_a_loop_that_is_closed(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    unraisable: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        # the interpreter's way to tell of such errors
        patch.setattr(sys, "unraisablehook", lambda seen: unraisable.append(seen.exc_value))
        for _ in range(30):
            cards = gpus.Gpus(str(program))
            asyncio.run(cards.look())
            assert "ended with 9" in str(cards.failure)
        gc.collect()
    assert [
        error for error in unraisable if isinstance(error, RuntimeError)
    ] == []  # "Event loop is closed"


@pytest.mark.anyio
async def test_an_nvidia_smi_that_cannot_be_run_is_a_failure_not_a_crash(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    cards = gpus.Gpus(str(program))
    await cards.look()
    assert str(cards.failure).startswith(f"{program} could not be started: ")
