"""Last output of real ranks, with the answers to two questions: did this rank die because a peer
had died, and which known cause has ended it?
"""

# ruff: noqa: E501  (messages are kept as they are printed)
LOST_PEER = {
    "gloo, closed": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
    "peer [127.0.0.1]:29990",
    "gloo, closed, torch 2.15": (
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] "
        "Connection closed by peer [127.0.0.1]:62853. This is typically caused by a remote worker "
        "crashing. Check the logs of the remote worker before reporting an error."
    ),
    "gloo, reset, torch 2.15": (
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] "
        "Read error [127.0.0.1]:11678: Connection reset by peer. This is typically caused by a "
        "remote worker hanging or bugs in the application."
    ),
    "monitored barrier, torch 2.15": (
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 1800000 ms\n Original "
        "exception: \n[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read "
        "error [127.0.0.1]:8090: Connection reset by peer."
    ),
    "store, recv, torch 2.15": (
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely "
        "closed. Did the remote server shutdown or crash?"
    ),
    "gloo, reset": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error "
    "[127.0.0.1]:3110: Connection reset by peer",
    "gloo, write": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:256] Write error "
    "[10.0.0.3]:1: Broken pipe",
    "gloo, recv": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out "
    "waiting 1800000ms for recv operation to complete",
    "gloo, send": "RuntimeError: [gloo] Timed out waiting 30000ms for send operation to complete",
    "gloo, pair": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/buffer.cc:94] Application timeout "
    "caused pair closure",
    "gloo, mesh": "RuntimeError: Gloo connectFullMesh failed with "
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    "monitored barrier": "RuntimeError: Rank 0 successfully reached monitoredBarrier, but received errors while "
    "waiting for send/recv from rank 1. Please check rank 1 logs for faulty rank.",
    "store, clients": "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 "
    "clients joined.",
    "store, wait": (
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: "
        "/default_pg/0//cpu//0/0"
    ),
    "store, recv": "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    "store, refused": "torch.distributed.DistNetworkError: The client socket has failed to connect to any "
    "network address of (127.0.0.1, 29500). The client socket has failed to connect to "
    "127.0.0.1:29500 (errno: 111 - Connection refused).",
    "store, timeout": "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while "
    "trying to connect to (train-worker-0, 23456).",
    "store, name": "torch.distributed.DistNetworkError: The IPv4 network addresses of (train-master-0, "
    "23456) cannot be retrieved (gai error: -2 - Name or service not known).",
    "store, 1.13": "RuntimeError: Socket Timeout",
    "store, old": "RuntimeError: Stop_waiting response is expected",
    "store, 2.4": "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
    "ncclUniqueId from [0] via c10d key-value store by store->get('0'), but store->get('0') "
    "got error: Connection reset by peer",
    "nccl, remote": "torch.distributed.DistBackendError: NCCL error in: "
    "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, remote process exited or there "
    "was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to "
    "a network error or a remote process exiting prematurely.",
    "nccl, system": "torch.distributed.DistBackendError: NCCL error in: "
    "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:268, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.19.3\nncclSystemError: System call (e.g. "
    "socket, malloc) or external library call failed or device error.",
    "nccl, plain": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp",
    "nccl, aborted": "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
    "rendezvous": "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to "
    "the C10d store has failed. See inner exception for details.",
    "rendezvous closed": "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    "rpc": (
        "RuntimeError: eof (this error originated at "
        "tensorpipe/transport/shm/connection_impl.cc:259)"
    ),
    "horovod": "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was "
    "caused by an exception on one of the ranks or an attempt to allreduce, allgather or "
    "broadcast a tensor after one of the ranks finished execution.",
    "python, refused": "ConnectionRefusedError: [Errno 111] Connection refused",
    "python, reset": "ConnectionResetError: [Errno 104] Connection reset by peer",
    "python, pipe": "BrokenPipeError: [Errno 32] Broken pipe",
    "python, route": "OSError: [Errno 113] No route to host",
}
"""Exceptions of ranks that lost a peer."""

OWN = {
    "plain": "KeyError: 'learning_rate'",
    "out of memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "port in use": "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
    "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
    "address already in use",
    "gloo, shapes": "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] "
    "op.preamble.length <= op.nbytes. 8 vs 4",
    "gloo, device": "RuntimeError: ProcessGroupGloo::allreduce: unsupported device type cuda",
    "no backend": "ValueError: Unknown c10d backend type GLO0",
    "nccl, usage": "torch.distributed.DistBackendError: NCCL error in: "
    "../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, invalid usage (run with "
    "NCCL_DEBUG=WARN for details), NCCL version 2.21.5\nncclInvalidUsage: This usually "
    "reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 "
    "and rank 0 both on CUDA device 1000",
    "nccl, cuda": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled "
    "cuda error (run with NCCL_DEBUG=INFO for details), NCCL version "
    "2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure "
    "'out of memory'",
    "mismatch": "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
    "collective: CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE), but Rank 1 is "
    "running collective: BARRIER.",
    "destroyed": "ValueError: Default process group has not been initialized, please make sure to call "
    "init_process_group.",
    "destroyed twice": "AssertionError: Invalid process group specified or has been destroyed.",
    "command": "subprocess.TimeoutExpired: Command '['rclone', 'sync']' timed out after 30 seconds",
    "http": "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hub.local', port=443): Read "
    "timed out. (read timeout=10)",
}
"""Exceptions that ranks raise by themselves."""

_TRACE = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    step()\n'
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_CLOSED = LOST_PEER["gloo, closed"]

CHAINS = {
    "cleanup fails after an error": (
        f"{_TRACE}KeyError: 'lr'\n{_DURING}{_TRACE}{_CLOSED}\n",
        _CLOSED,
        False,
    ),
    "loss of a peer is wrapped": (
        f"{_TRACE}{_CLOSED}\n{_CAUSED}{_TRACE}train.Failed: 3\n",
        "train.Failed: 3",
        True,
    ),
    "lost twice": (
        f"{_TRACE}{_CLOSED}\n{_DURING}{_TRACE}BrokenPipeError: 1\n",
        "BrokenPipeError: 1",
        True,
    ),
    "an error is wrapped": (
        f"{_TRACE}KeyError: 1\n{_CAUSED}{_TRACE}train.Failed: 3\n",
        "train.Failed: 3",
        False,
    ),
}
"""Traceback, exception, whether it died because of a peer."""

_FRAMES = [
    f"frame #{number}: <unknown function> + 0x1 (0x2 in libtorch_cuda.so)" for number in range(20)
]
ABORTS = {
    "watchdog": (
        [
            (
                "[rank0]:[E ProcessGroupNCCL.cpp:1746] [PG ID 0 Rank 0] taking the entire process "
                "down."
            ),
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread "
            "terminated with exception: [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1, OpType=ALLREDUCE)",
            *_FRAMES,
        ],
        True,
    ),
    "gloo": (
        [
            "terminate called after throwing an instance of 'gloo::IoException'",
            f"  what():  {_CLOSED}",
        ],
        True,
    ),
    "heap": (
        [
            (
                "[W socket.cpp:697] The client socket has failed to connect to [::1]:1 (Connection "
                "refused)"
            ),
            "free(): invalid",
        ],
        False,
    ),
    "assertion": (
        [
            "Connection refused",
            "terminate called after throwing an instance of 'std::logic_error'",
            "  what():  shape",
        ],
        False,
    ),
}
"""Last lines of a rank that ended by SIGABRT, whether it died because of a peer."""

CAUSED = {
    "prints `Bus error` or `out of shared memory`": (
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory. Please try to raise your shared "
        "memory limit.",
        "RuntimeError: unable to write to file </torch_7_1>: No space left on device (28)",
        "OSError: [Errno 28] No space left on device: '/dev/shm/x'",
    ),
    "prints `No space left on device`": (
        "OSError: [Errno 28] No space left on device: '/data/model.pt'",
    ),
    "prints `No module named ...`": (
        "ModuleNotFoundError: No module named 'flash_attn.ops'",
        "/usr/bin/python3: No module named flash_attn.ops",
        "/env/bin/python3.11: No module named train",
    ),
    "starts processes while it is imported": (
        "RuntimeError: \n        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.",
    ),
    "cannot use a port that another job has": (
        "port 29500 is held by job b (process 7)\n"
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use",
    ),
    "prints `Address already in use`": (
        OWN["port in use"],
        "OSError: [Errno 98] Address already in use",
    ),
    "can't resolve the host name of a job of ML Space": (
        "ping: lm-mpi-job-0b5e9a5c-mpimaster-0: Name or service not known",
        "curl: (6) Could not resolve host: train-x7k2m-mpiworker-3.train-x7k2m",
        "The client socket has failed to connect to any network address of "
        "(lm-mpi-job-1-mpimaster-0, 29500). The IPv4 network addresses of "
        "(lm-mpi-job-1-mpimaster-0, 29500) cannot be retrieved (gai error: -2 - Name or service "
        "not known)",
        "  sock = create_connection(('lm-mpi-job-1-mpimaster-0', 29500))\n"
        + 9 * '  File "/opt/conda/lib/python3.11/socket.py", line 827, in create_connection\n'
        + "socket.gaierror: [Errno -2] Name or service not known",
    ),
    "prints `CUDA out of memory`": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    "makes a collective that other ranks do not make": (
        "rank 0 made 8 collectives, ranks 1, 2 made 7: the extra one is barrier in save_checkpoint "
        "(ckpt.py:4), which only rank 0 entered; ranks 1, 2 had ended with code 0 when rank 0 was "
        f"in barrier (ckpt.py:8)\n{_CLOSED}",
    ),
    "lost a rank that had left a loop by an exit": (
        "rank 1 had ended with code 0 when rank 0 was in all_reduce (train.py:6): rank 1 left a "
        f"loop by an exit (train.py:4). Its last line: 'preempted, saving'\n{_CLOSED}",
    ),
    "lost a rank that had ended with code 0": (
        "rank 1 had ended with code 0 when rank 0 was in all_reduce (train.py:6): does it have "
        f"less data?\n{_CLOSED}",
    ),
    "needs a GPU and finds none": (
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: nccl2 requires at least one CUDA device",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA "
        "GPU",
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "RuntimeError: Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False.",
    ),
    "looks for RANK or WORLD_SIZE, and finds none": (
        "KeyError: 'RANK'",
        "KeyError: 'LOCAL_RANK'",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
        "variable RANK expected, but not set",
    ),
    "asks for input, or stops at `breakpoint()`": (
        "bdb.BdbQuit",
        "EOFError: EOF when reading a line",
    ),
    "loads the checkpoint of a job with another number of ranks": (
        "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP "
        "world size of 4 but the current world size is 2. Automatic adjustment of ZeRO's optimizer "
        "state partitioning with a new world size is not currently supported.",
    ),
    "mixes tensors of different devices": (
        "RuntimeError: Expected all tensors to be on the same device, but found cuda:0 and cpu!",
        OWN["gloo, device"],
    ),
    "prints `device-side assert triggered`": (
        "RuntimeError: CUDA error: device-side assert triggered",
    ),
    "prints `Duplicate GPU detected`": (
        "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        OWN["nccl, usage"],
    ),
    "asks for a GPU that the worker does not have": (
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
    ),
    "has a PyTorch that does not fit the GPU or its driver": (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    ),
    "uses NCCL of different versions": (
        "init.cc:1102 NCCL WARN Mismatched NCCL version detected : rank 0 version 22005 rank 1 "
        "22606",
    ),
    "has GPUs without peer access": (
        "Cuda failure 217 'peer access is not supported between these two devices'",
    ),
    "prints `Watchdog caught collective operation timeout`": (
        "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out.",
        "\n".join(ABORTS["watchdog"][0]),
    ),
    "can't reach a worker over its network interface": (
        "RuntimeError: connect [127.0.1.1]:38155: Connection refused",
    ),
    "prints `No route to host`": (
        "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.3<4> failed : No route "
        "to host",
        LOST_PEER["python, route"],
    ),
    "waits for ranks that never join": (LOST_PEER["store, clients"],),
    "gives Lightning another number of nodes than the job has": (
        "ValueError: You set `devices=2` and `num_nodes=1` in Lightning, but the product (2 * 1) "
        "does not match the world size (4).",
    ),
    "calls a collective with tensors of different sizes": (OWN["gloo, shapes"], OWN["mismatch"]),
    "has parameters that get no gradient": (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one.",
    ),
    "uses torch.distributed without a process group": (OWN["destroyed"],),
    "prints `Cannot re-initialize CUDA in forked subprocess`": (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method",
    ),
    "loses a DataLoader worker": (
        "RuntimeError: DataLoader worker (pid(s) 25772) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
    ),
    "needs a Hugging Face token": ("huggingface_hub.errors.GatedRepoError: 401 Client Error.",),
    "can't reach a host to download from": (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='cdn.example.org', "
        "port=443): Max retries exceeded with url: /a",
    ),
    "prints `Permission denied`": ("PermissionError: [Errno 13] Permission denied: '/data/out'",),
    "needs a newer C library": (
        "ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found (required by /x/_C.so)",
    ),
    "runs under the wrong Python": (
        "ERROR: Package 'x' requires a different Python: 3.8.10 not in '>=3.10'",
    ),
    "forks after tokenizers ran in threads": (
        "huggingface/tokenizers: The current process just got forked, after parallelism has "
        "already been used. Disabling parallelism to avoid deadlocks...",
    ),
}
"""Texts by the known cause that they show, its symptom. The texts of errors that any machine can
raise are in `test_real_endings.py`, as code."""

UNKNOWN = (
    "KeyError: 'RANKING'",
    "KeyError: 'learning_rate'",
    "ValueError: wrong shape {3}",
    "socket.gaierror: [Errno -2] Name or service not known",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'",
    OWN["no backend"],
    OWN["http"],
    LOST_PEER["gloo, closed, torch 2.15"],
    LOST_PEER["store, recv"],
    LOST_PEER["nccl, remote"],
)
"""Exceptions that are of no known cause."""
