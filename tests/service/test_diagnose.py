"""Which rank is to blame, what its end means, and what to do: one test per known cause."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from client_lib.spec.job import JobSpec
from client_lib.spec.wire import CodeInPlace, CodeSnapshot, RankReport
from server_stub.diagnose import diagnose, exit_meaning, first_failing, sentence
from server_stub.hints import Facts, hint_for, missing_file, path_beside_submitter

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
SNAPSHOT = CodeSnapshot(sha256="0" * 64, root="/home/ann/project", working_dir="src")
IN_PLACE = Facts(CodeInPlace(), python="/venv/bin/python")


def rank(number: int, after_s: float = 0, exit_code: int | None = 1, **fields: object) -> RankReport:
    values = {"rank": number, "exit_code": exit_code, "ended_at": T0 + timedelta(seconds=after_s), **fields}
    return RankReport.model_validate(values)


def said(exception: str = "", *last_lines: str, **fields: object) -> RankReport:
    return rank(0, exception=exception or None, last_lines=list(last_lines), **fields)


def test_the_first_failing_rank_is_to_blame_not_those_stopped_by_us() -> None:
    ranks = [rank(0, 1, 143, stopped_by_us=True), rank(1, 3), rank(2, 2), rank(3, 0, 0)]
    found = first_failing(ranks)
    assert found
    assert found.rank == 2


def test_a_rank_that_lost_its_peer_is_not_the_cause_though_it_ended_first() -> None:
    ranks = [rank(0, 1, exception="RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1"), rank(1, 2)]
    found = first_failing(ranks)
    assert found
    assert found.rank == 1


def test_without_times_the_lowest_rank_is_named() -> None:
    found = first_failing([rank(1, ended_at=None), rank(0, ended_at=None)])
    assert found
    assert found.rank == 0


def test_nobody_is_to_blame_where_all_were_stopped_or_succeeded() -> None:
    ranks = [rank(0, exit_code=0), rank(1, exit_code=None, signal=15, stopped_by_us=True)]
    assert diagnose(ranks, JobSpec(script="a.py"), IN_PLACE) is None


def test_the_worker_follows_from_the_rank() -> None:
    def worker(number: int, reports: int, **spec: object) -> int | None:
        ranks = [rank(n, exit_code=1 if n == number else 0) for n in range(reports)]
        failure = diagnose(ranks, JobSpec.model_validate({"script": "a.py", **spec}), IN_PLACE)
        assert failure
        return failure.worker

    assert worker(3, 4) == 0
    assert worker(3, 4, n_workers=2) == 1
    assert worker(5, 6, n_workers=3, processes_per_worker=2) == 2
    assert worker(2, 3, n_workers=2) is None, "a report is missing"


@pytest.mark.parametrize(
    ("exit_code", "signal", "words"),
    [
        (137, None, "killed, most often out of memory"),
        (None, 9, "killed, most often out of memory"),
        (139, None, "segmentation fault"),
        (None, 11, "segmentation fault"),
        (143, None, "terminated"),
        (134, None, "aborted"),
        (126, None, "can't be executed"),
        (127, None, "command not found"),
        (2, None, "wrong usage"),
        (1, None, "an error in the script"),
        (None, 14, "SIGALRM"),
    ],
)
def test_what_an_end_means(exit_code: int | None, signal: int | None, words: str) -> None:
    assert words in (exit_meaning(exit_code, signal) or "")


def test_an_end_without_a_meaning_has_none() -> None:
    assert exit_meaning(0, None) is None
    assert exit_meaning(42, None) is None
    assert exit_meaning(255, None) is None


def test_a_failure_reads_as_a_sentence() -> None:
    failure = diagnose([rank(1, exit_code=None, signal=9)], JobSpec(script="a.py"), IN_PLACE)
    assert failure
    assert failure.exit_code == 137
    assert sentence(failure) == "rank 1 of worker 0 ended with exit code 137 (killed, most often out of memory)"


# --- hints


def test_hint_a_file_that_the_snapshot_left_out() -> None:
    report = said("FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'")
    assert missing_file(report) == "data/x.csv"
    assert path_beside_submitter("data/x.csv", SNAPSHOT) == "/home/ann/project/src/data/x.csv"
    unpacked = "/d/jobs/1/attempts/1/workers/0/work/data/x.csv"
    assert path_beside_submitter(unpacked, SNAPSHOT) == "/home/ann/project/data/x.csv"
    assert path_beside_submitter("/data/x.csv", SNAPSHOT) is None
    hint = hint_for(report, Facts(SNAPSHOT, beside_submitter="/home/ann/project/src/data/x.csv"))
    assert hint
    assert ".clientlibignore" in hint
    assert hint_for(report, Facts(SNAPSHOT)) is None


def test_hint_python_can_not_open_the_script() -> None:
    assert missing_file(said("", "python: can't open file '/w/a.py': [Errno 2] No such file")) == "/w/a.py"


@pytest.mark.parametrize(
    "report",
    [
        said("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
             "workers are out of shared memory. Please try to raise your shared memory limit."),
        said("RuntimeError: unable to write to file </torch_7_1>: No space left on device (28)"),
        said("OSError: [Errno 28] No space left on device: '/dev/shm/x'"),
        said("", exit_code=None, signal=7),
        said("", exit_code=135),
    ],
)  # fmt: skip
def test_hint_shared_memory(report: RankReport) -> None:
    assert "/dev/shm is too small" in (hint_for(report, IN_PLACE) or "")


@pytest.mark.parametrize(
    "text",
    [
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_hint_address_in_use(text: str) -> None:
    assert "MASTER_PORT" in (hint_for(said(text), IN_PLACE) or "")


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_hint_cuda_out_of_memory(text: str) -> None:
    assert "smaller batch" in (hint_for(said(text), IN_PLACE) or "")


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: nccl2 requires at least one CUDA device",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
    ],
)
def test_hint_nccl_or_cuda_without_gpus(text: str) -> None:
    assert "else 'gloo'" in (hint_for(said(text), IN_PLACE) or "")


def test_hint_a_missing_module_names_it_and_the_interpreter() -> None:
    for text in (
        "ModuleNotFoundError: No module named 'flash_attn.ops'",
        "/usr/bin/python3: No module named flash_attn.ops",
    ):
        hint = hint_for(said("", text), IN_PLACE) or ""
        assert "module flash_attn.ops" in hint
        assert "/venv/bin/python -m pip install" in hint


def test_hint_a_missing_module_has_the_name_of_its_package() -> None:
    hint = hint_for(said("ModuleNotFoundError: No module named 'yaml.representer'"), IN_PLACE) or ""
    assert "add requirements=['pyyaml']" in hint


def test_hint_killed() -> None:
    assert "memory" in (hint_for(said("", exit_code=None, signal=9), IN_PLACE) or "")


def test_no_hint_where_the_cause_is_not_known() -> None:
    assert hint_for(said("ValueError: wrong shape {3}"), IN_PLACE) is None
