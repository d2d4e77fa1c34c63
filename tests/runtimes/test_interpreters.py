"""A job runs with the interpreter and the environment of whoever submitted
it, not with the server's.
"""

import json
import os
import sys
import venv
from pathlib import Path

import pytest

from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from client_lib.spec.states import Reason
from tests.runtimes.conftest import Site, running

pytestmark = [pytest.mark.process, pytest.mark.anyio]


def environment(folder: Path) -> str:
    """The python of a new, empty virtual environment."""
    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder / "bin" / "python")


async def test_one_server_runs_jobs_of_two_virtual_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "who.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps([sys.prefix, os.environ.get('SHELL_OF'), os.environ.get('OF_SERVER')]))\n"
    )
    monkeypatch.setenv("OF_SERVER", "1")
    async with running(tmp_path) as site:
        jobs = []
        for name in ("a", "b"):
            shell = Submitter(
                python=environment(tmp_path / name),
                environment={"SHELL_OF": name, "PATH": os.environ["PATH"]},
                working_dir=str(tmp_path),
            )
            jobs.append(site.submit(name, "who.py", _submitter=shell))
        for job in jobs:
            assert (await site.ended(job)).reason is Reason.COMPLETED
        shown = [json.loads(site.lines(job)[-1]) for job in jobs]
    assert shown == [[str(tmp_path / "a"), "a", None], [str(tmp_path / "b"), "b", None]]


async def test_two_torch_ranks_meet_over_the_loopback_device(tmp_path: Path) -> None:
    (tmp_path / "meet.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "t = torch.ones(1) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(t)\n"
        "print('sum', t.item())\n"
        "dist.destroy_process_group()\n"
    )
    async with running(tmp_path) as site:
        job = site.submit("meet", "meet.py", n_workers=2)
        assert (await site.ended(job)).reason is Reason.COMPLETED
        assert [site.lines(job, w)[-1] for w in (0, 1)] == ["sum 3.0", "sum 3.0"]


@pytest.mark.smoke
async def test_check_tells_what_is_read_otherwise_here(tmp_path: Path) -> None:
    site = Site(tmp_path)
    spec = JobSpec(
        script="/t.py", region="SR006", volumes=[f"data:{tmp_path}:ro"], instance_type="cpu.1C.1G"
    )
    assert len(site.runtime.check(spec, "me", Submitter(python=sys.executable))) == 3
