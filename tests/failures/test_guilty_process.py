"""A rank that raises and takes time to end, while another one loses it: real
processes, each view of the job.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from client_lib import Client, Job, JobFailed
from client_lib.spec.states import Reason
from client_lib.spec.wire import JobInfo
from server_stub.runtimes.kube.observe.inventory import read_digest
from tests.failures.endings import LOST_PEER
from tests.kit.processes import kill_processes_of
from tests.kit.server_process import ServerProcess
from tests.worker_gateway.conftest import free_port, sites

pytestmark = pytest.mark.process

TEXTS = [
    "gloo, closed",
    "gloo, reset",
    "store, recv",
    "store, refused",
    "nccl, remote",
    "python, refused",
]
SHAPES = {"one worker": {"processes_per_worker": 2}, "two workers": {"n_workers": 2}}
SCRIPT = """
import atexit, os, sys, time
raised = os.path.join(os.path.dirname(__file__), "raised")
if os.environ["RANK"] == "1":
    def unwind():
        open(raised, "w").close()
        time.sleep(0.3)  # less than PEERS_END_S, also on a busy machine
    if {unwinds} == "finally":
        try:
            {{}}["learning_rate"]
        finally:
            unwind()
    atexit.register(unwind)
    {{}}["learning_rate"]
while not os.path.exists(raised):
    time.sleep(0.005)
{then}
"""
HANGS = """
import os, time
import torch.distributed as dist
from torch.distributed import distributed_c10d

raised = os.path.join(os.path.dirname(__file__), "raised")
dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    def hang(*_):
        open(raised, "w").close()
        time.sleep(600)
    distributed_c10d._update_default_pg = hang
    try:
        {}["learning_rate"]
    finally:
        dist.destroy_process_group()
while not os.path.exists(raised):
    time.sleep(0.005)
raise RuntimeError("NCCL communicator was aborted on rank 0.")
"""
UNWINDS_FOR_LONG = """
import contextlib, os, sys, time
raised = os.path.join(os.path.dirname(__file__), "raised")

def unwind(*_):
    open(raised, "w").close()
    time.sleep(600)

@contextlib.contextmanager
def uploading():
    try:
        yield
    finally:
        unwind()

class Uploads:
    def __enter__(self): pass
    __exit__ = unwind

def fail():
    return {{}}["learning_rate"]

if os.environ["RANK"] == "1":
{body}
while not os.path.exists(raised):
    time.sleep(0.005)
raise RuntimeError("Connection closed by peer [127.0.0.1]:29990")
"""
UNWINDING = {
    "finally": """
    try:
        fail()
    finally:
        unwind()
""",
    "finally of a function": """
    def train():
        try:
            fail()
        finally:
            try:
                {}["token"]
            except KeyError:
                unwind()
    train()
""",
    "except": """
    try:
        fail()
    except Exception:
        unwind()
        raise
""",
    "exit": """
    try:
        fail()
    except Exception:
        unwind()
        sys.exit(3)
""",
    "with": """
    with Uploads():
        fail()
""",
    "generator": """
    with uploading():
        fail()
""",
    "at exit": """
    import atexit
    atexit.register(unwind)
    fail()
""",
}
HANDLED = """
    for _ in range(3):
        try:
            fail()
        except Exception:
            unwind()  # waits before it tries again
"""
LESS_DATA = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(3 - dist.get_rank()):
    dist.all_reduce(torch.ones(1))
"""
KEY_ERROR = "rank 1 ended with exit code 1: KeyError: 'learning_rate'"


class Field(NamedTuple):
    client: Client
    url: str
    token: str
    state_dir: Path


@pytest.fixture(scope="module", params=["local", "pods"])
def field(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Field]:
    """A server that runs jobs as processes of this machine, or in real agents of pods."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "pods":
        with sites(folder, free_port()) as start:
            yield _field(start())
        return
    server = ServerProcess(folder / "state")
    yield _field(server)
    server.kill()
    kill_processes_of(folder)


def _field(server: ServerProcess) -> Field:
    url, token = server.facts()["url"], (server.state_dir / "token").read_text().strip()
    return Field(Client(url, token), url, token, server.state_dir)


def _script(folder: Path, unwinds: str, then: str) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(unwinds=repr(unwinds), then=then))
    return path


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("unwinds", "text"),
    [
        pytest.param("finally", TEXTS[0], marks=pytest.mark.smoke),
        *(("finally", text) for text in TEXTS[1:]),
        *(("at exit", text) for text in TEXTS),
    ],
)
def test_every_view_names_the_rank_that_raised_while_it_unwinds(
    field: Field, tmp_path: Path, shape: dict[str, int], unwinds: str, text: str
) -> None:
    script = _script(tmp_path, unwinds, f"raise RuntimeError({LOST_PEER[text]!r})")
    job = Job(script=script, grace_s=5, client=field.client, **shape)  # type: ignore[arg-type]
    job.submit()
    with pytest.raises(JobFailed) as failed:
        job.wait(timeout=60)
    info = job.info()
    worker = 1 if "n_workers" in shape else 0
    assert (info.reason, info.message) == (Reason.EXIT_CODE, KEY_ERROR)
    assert info.failure
    assert (info.failure.worker, info.failure.rank, info.failure.exit_code) == (worker, 1, 1)
    assert info.failure.exception == "KeyError: 'learning_rate'"
    assert f"rank 1 on worker {worker} ended" in str(failed.value)
    assert f"rank 1 on worker {worker} ended" in job.explain()
    for path in field.state_dir.glob(
        f"data/jobs/{info.id}/attempts/1/pods/{worker}/termination-log"
    ):
        digest = read_digest(path.read_text())
        assert digest
        assert (digest["message"], digest["exit_code"], digest["first_failing_rank"]) == (
            KEY_ERROR,
            1,
            1,
        )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_command_line_ends_with_the_exit_code_of_the_rank_that_raised(
    field: Field, tmp_path: Path, shape: dict[str, int]
) -> None:
    gives_up = f"print({LOST_PEER['python, refused']!r}, file=sys.stderr)\nsys.exit(3)"
    script = _script(tmp_path, "finally", gives_up)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in shape.items()]
    ours = {"ENDPOINT": field.url, "TOKEN": field.token, "STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "client_lib", "run", *options, str(script)],
        env=os.environ | {f"CLIENT_LIB_{name}": value for name, value in ours.items()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "(ExitCode): rank 1 on worker " in done.stderr
    assert "KeyError: 'learning_rate'" in done.stderr


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("body", UNWINDING.values(), ids=UNWINDING)
def test_a_rank_is_named_that_still_unwinds_when_it_is_stopped(
    field: Field, tmp_path: Path, shape: dict[str, int], body: str
) -> None:
    info = _failed(field, tmp_path, UNWINDS_FOR_LONG.format(body=body), shape)
    assert info.message == KEY_ERROR
    assert info.failure
    assert (info.failure.rank, info.failure.exit_code) == (1, 1)
    assert 'in fail\n    return {}["learning_rate"]' in str(info.failure.traceback)


def test_a_rank_is_not_named_for_an_exception_that_it_has_handled(
    field: Field, tmp_path: Path
) -> None:
    info = _failed(field, tmp_path, UNWINDS_FOR_LONG.format(body=HANDLED), SHAPES["one worker"])
    assert info.message.startswith(
        "rank 0 ended with exit code 1: RuntimeError: Connection closed by peer"
    )


def _failed(field: Field, folder: Path, script: str, shape: dict[str, int]) -> JobInfo:
    (folder / "train.py").write_text(script)
    job = Job(script=folder / "train.py", client=field.client, **shape)  # type: ignore[arg-type]
    job.submit()
    with pytest.raises(JobFailed):
        job.wait(timeout=60)
    return job.info()


def test_a_rank_is_named_that_hangs_while_it_destroys_its_process_group(
    field: Field, tmp_path: Path
) -> None:
    """NCCL may wait there without end for a collective that no other rank joins any more."""
    (tmp_path / "train.py").write_text(HANGS)
    job = Job(script=tmp_path / "train.py", processes_per_worker=2, client=field.client)
    job.submit()
    with pytest.raises(JobFailed):
        job.wait(timeout=60)
    assert job.info().message == KEY_ERROR


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_rank_that_left_its_loop_early_is_named_in_the_message(
    field: Field, tmp_path: Path, shape: dict[str, int]
) -> None:
    (tmp_path / "train.py").write_text(LESS_DATA)
    job = Job(script=tmp_path / "train.py", client=field.client, **shape)  # type: ignore[arg-type]
    job.submit()
    with pytest.raises(JobFailed) as failed:
        job.wait(timeout=60)
    told = (
        "rank 1 had ended with code 0 when rank 0 was in all_reduce (train.py:5): does it have "
        "less data?"
    )
    assert job.info().message == f"rank 0 ended with exit code 1: {told}"
    assert told in str(failed.value)
    assert told in job.explain()
    assert "DistributedSampler" in job.explain()
    assert "worker 0 ended: " not in job.explain()  # it would repeat the message
