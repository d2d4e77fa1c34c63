"""The hint for each known cause."""

import pytest

from client_lib.launcher_protocol.outcome import Ended
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.wire import Failure
from server_stub.failures import hint_for, missing_file, path_beside_submitter
from server_stub.runtimes.verdict import finished_peers as note

SNAPSHOT = CodeSnapshot(sha256="0" * 64, root="/home/ann/project", working_dir="src")
PYTHON = "/venv/bin/python"


def said(exception: str = "", *last_lines: str, **fields: object) -> Failure:
    values = {
        "rank": 0,
        "exit_code": 1,
        "exception": exception or None,
        "last_lines": list(last_lines),
    }
    return Failure.model_validate(values | fields)


def test_hint_a_file_that_the_snapshot_left_out() -> None:
    report = said("FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'")
    assert missing_file(report) == "data/x.csv"
    assert path_beside_submitter("data/x.csv", SNAPSHOT) == "/home/ann/project/src/data/x.csv"
    unpacked = "/d/jobs/1/attempts/1/workers/0/work/data/x.csv"
    assert path_beside_submitter(unpacked, SNAPSHOT) == "/home/ann/project/data/x.csv"
    assert path_beside_submitter("/data/x.csv", SNAPSHOT) is None
    hint = hint_for(report, PYTHON, beside_submitter="/home/ann/project/src/data/x.csv")
    assert hint
    assert ".clientlibignore" in hint
    assert hint_for(report) is None


def test_hint_python_can_not_open_the_script() -> None:
    assert (
        missing_file(said("", "python: can't open file '/w/a.py': [Errno 2] No such file"))
        == "/w/a.py"
    )


@pytest.mark.parametrize(
    "report",
    [
        said(
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is "
            "possible that dataloader's workers are out of shared memory. Please try to raise "
            "your shared memory limit."
        ),
        said("RuntimeError: unable to write to file </torch_7_1>: No space left on device (28)"),
        said("OSError: [Errno 28] No space left on device: '/dev/shm/x'"),
        said("", exit_code=135, signal=7),
        said("", exit_code=135),
    ],
)
def test_hint_shared_memory(report: Failure) -> None:
    assert "/dev/shm is too small" in (hint_for(report, PYTHON) or "")


def test_hint_full_disk() -> None:
    hint = (
        hint_for(said("OSError: [Errno 28] No space left on device: '/data/model.pt'"), PYTHON)
        or ""
    )
    assert "a disk that the script writes to is full" in hint


@pytest.mark.parametrize(
    "text",
    [
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_hint_address_in_use(text: str) -> None:
    assert "MASTER_PORT" in (hint_for(said(text), PYTHON) or "")


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_hint_cuda_out_of_memory(text: str) -> None:
    assert "smaller batch" in (hint_for(said(text), PYTHON) or "")


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: nccl2 requires at least one CUDA device",
        "RuntimeError: No CUDA GPUs are available",
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an "
            "NVIDIA GPU"
        ),
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: Distributed package doesn't have NCCL built in",
        (
            "RuntimeError: Attempting to deserialize object on a CUDA device but "
            "torch.cuda.is_available() is False."
        ),
    ],
)
def test_hint_nccl_or_cuda_without_gpus(text: str) -> None:
    assert "else 'gloo'" in (hint_for(said(text), PYTHON) or "")


@pytest.mark.parametrize(
    "text",
    [
        "ping: lm-mpi-job-0b5e9a5c-mpimaster-0: Name or service not known",
        "curl: (6) Could not resolve host: train-x7k2m-mpiworker-3.train-x7k2m",
        "The client socket has failed to connect to any network address of "
        "(lm-mpi-job-1-mpimaster-0, 29500). The IPv4 network addresses of "
        "(lm-mpi-job-1-mpimaster-0, 29500) cannot be retrieved (gai error: -2 - Name or service "
        "not known)",
        "  sock = create_connection(('lm-mpi-job-1-mpimaster-0', 29500))\n"
        + 9 * '  File "/opt/conda/lib/python3.11/socket.py", line 827, in create_connection\n'
        + "socket.gaierror: [Errno -2] Name or service not known",
    ],
)
def test_hint_the_address_of_another_job(text: str) -> None:
    assert "Other jobs have no host names" in (hint_for(said(text), PYTHON) or "")
    assert hint_for(said("socket.gaierror: [Errno -2] Name or service not known"), PYTHON) is None


def test_hint_uneven_data() -> None:
    lost = Ended(
        0, 1, None, 0.0, 9.0, 9.0, False, True, "RuntimeError: Connection closed by peer", None, []
    )
    done = lost._replace(rank=1, exit_code=0, lost_peer=False, exception=None)
    told = note(lost, [lost, done])
    assert "DistributedSampler" in (hint_for(said(f"{lost.exception}\n{told}"), PYTHON) or "")


def test_hint_a_missing_module_names_it_and_the_interpreter() -> None:
    for text in (
        "ModuleNotFoundError: No module named 'flash_attn.ops'",
        "/usr/bin/python3: No module named flash_attn.ops",
    ):
        hint = hint_for(said("", text), PYTHON) or ""
        assert "module flash_attn.ops" in hint
        assert "/venv/bin/python -m pip install" in hint


def test_hint_a_missing_module_has_the_name_of_its_package() -> None:
    hint = hint_for(said("ModuleNotFoundError: No module named 'yaml.representer'"), PYTHON) or ""
    assert "add requirements=['pyyaml']" in hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [  # as the libraries print them, on hardware and networks that a test does not have
        (
            "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "set_device",
        ),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", "use LOCAL_RANK"),
        ("RuntimeError: CUDA error: device-side assert triggered", "CUDA_LAUNCH_BLOCKING=1"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "install the build",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
            "install the build",
        ),
        (
            (
                "init.cc:1102 NCCL WARN Mismatched NCCL version detected : rank 0 version 22005 "
                "rank 1 22606"
            ),
            "same image",
        ),
        (
            "Cuda failure 217 'peer access is not supported between these two devices'",
            "NCCL_P2P_DISABLE=1",
        ),
        (
            "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran "
            "for 600029 milliseconds before timing out.",
            "client-lib stacks",
        ),
        ("RuntimeError: connect [127.0.1.1]:38155: Connection refused", "network interface"),
        (
            (
                "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.3<4> failed : "
                "No route to host"
            ),
            "firewall",
        ),
        (
            "RuntimeError: [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
            "different sizes",
        ),
        ("RuntimeError: Detected mismatch between collectives on ranks.", "different collectives"),
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before",
            "find_unused_parameters",
        ),
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with",
            "keep the dataset on the CPU",
        ),
        (
            "before the\n        current process has finished its bootstrapping phase.",
            "__name__ == '__main__'",
        ),
        (
            (
                "RuntimeError: Expected all tensors to be on the same device, but found cuda:0 and "
                "cpu!"
            ),
            "one device",
        ),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "HF_TOKEN"),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='cdn.example.org', "
            "port=443): Max retries exceeded with url: /a",
            "can't reach cdn.example.org",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/data/out'", "open or write /data/out"),
        (
            "/lib/libc.so.6: version `GLIBC_2.34' not found (required by /x/_C.so)",
            "GLIBC_2.34 is missing",
        ),
        (
            "ERROR: Package 'x' requires a different Python: 3.8.10 not in '>=3.10'",
            "(/venv/bin/python)",
        ),
        (
            "huggingface/tokenizers: The current process just got forked, after",
            "TOKENIZERS_PARALLELISM=false",
        ),
    ],
)
def test_hint_texts_of_libraries(text: str, hint: str) -> None:
    assert hint in (hint_for(said(text), PYTHON) or "")


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'RANK'",
        "KeyError: 'LOCAL_RANK'",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
        "variable RANK expected, but not set",
    ],
)
def test_hint_a_script_for_a_launcher(text: str) -> None:
    assert "leave out `python`" in (hint_for(said(text), PYTHON) or "")
    assert hint_for(said("KeyError: 'RANKING'"), PYTHON) is None


@pytest.mark.parametrize("text", ["bdb.BdbQuit", "EOFError: EOF when reading a line"])
def test_hint_a_question_without_a_terminal(text: str) -> None:
    assert "`client-lib run`" in (hint_for(said(text), PYTHON) or "")


def test_hint_killed() -> None:
    assert "memory" in (hint_for(said("", exit_code=137, signal=9), PYTHON) or "")


def test_no_hint_where_the_cause_is_not_known() -> None:
    assert hint_for(said("ValueError: wrong shape {3}"), PYTHON) is None


def test_hint_a_checkpoint_of_another_number_of_ranks() -> None:
    report = said(
        "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP "
        "world size of 4 but the current world size is 2. Automatic adjustment of ZeRO's optimizer "
        "state partitioning with a new world size is not currently supported."
    )
    assert "as many ranks" in (hint_for(report) or "")
