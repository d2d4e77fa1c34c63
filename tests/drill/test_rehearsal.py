"""Drills of real scripts on the real local server: two ranks, killed and resumed."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import client_lib
from client_lib.client import Client
from client_lib.drill import rehearsal, rehearse
from client_lib.drill.faults import Fault
from client_lib.drill.judgement import DrillVerdict
from client_lib.drill.report import DrillReport
from client_lib.errors import Conflict, InvalidRequest, NotSupported
from client_lib.spec.job import JobSpec
from client_lib.spec.states import State

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("drill"),
    pytest.mark.skipif(sys.platform != "linux", reason="a drill needs /proc"),
]


@pytest.fixture
def project(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which no drill may touch."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def drill(
    client: Client, project: Path, script: str, args: Sequence[str], faults: Sequence[Fault]
) -> DrillReport:
    shutil.copy(SCRIPTS / script, project / script)
    spec = JobSpec(script=script, args=list(args), n_workers=2, instance_type="cpu.1C.1G")
    before = sorted(path.name for path in project.iterdir())
    report = rehearse(client, spec, sys.executable, faults)
    assert sorted(path.name for path in project.iterdir()) == before
    assert not report.notes
    return report


def whats(report: DrillReport, fault: Fault) -> list[str]:
    result = next(each for each in report.results if each.fault is fault)
    return [finding.what for finding in result.findings]


def check_right(client: Client, project: Path, faults: Sequence[Fault]) -> None:
    report = drill(client, project, "ddp.py", ["--steps", "40", "--keep"], faults)
    tried = [each for each in report.results if each.verdict is not DrillVerdict.NOT_RUN]
    assert {each.fault for each in report.results} - {each.fault for each in tried} <= {Fault.DISK}
    assert {each.fault: (each.verdict, each.findings) for each in tried} == {
        each.fault: (DrillVerdict.SAME, ()) for each in tried
    }
    assert report.repeatable
    assert report.resumes
    # where it saves, the kill may come right behind the save
    lost = {each.fault: each.steps_lost for each in tried if each.fault is not Fault.SAVE}
    assert lost.pop(Fault.FROZEN, 0) == 0
    assert all(lost.values()), lost
    assert not report.folder
    assert not any("drill" in job.spec.labels for job in client_lib.list_jobs(client=client))


@pytest.mark.smoke
def test_a_script_that_resumes_is_as_undisturbed_after_a_fault(
    client: Client, project: Path
) -> None:
    check_right(client, project, [Fault.KILL, Fault.DAMAGED])


@pytest.mark.long
def test_a_script_that_resumes_is_as_undisturbed_after_each_fault(
    client: Client, project: Path
) -> None:
    check_right(client, project, list(Fault))


@pytest.mark.parametrize(
    ("seeded", "fault", "what"),
    [
        ("optimizer", Fault.KILL, "optimizer state"),
        ("in-place", Fault.SAVE, "save is not atomic"),
        pytest.param("random", Fault.KILL, "random state", marks=pytest.mark.long),
        pytest.param("never-loads", Fault.TERM, "nothing is resumed", marks=pytest.mark.long),
    ],
)
def test_a_seeded_fault_is_named(
    client: Client, project: Path, seeded: str, fault: Fault, what: str
) -> None:
    report = drill(client, project, "ddp.py", ["--steps", "40", "--fault", seeded], [fault])
    assert not report.resumes
    assert what in whats(report, fault), report
    shutil.rmtree(report.folder)  # kept for the user


def test_a_script_that_fails_undisturbed_is_not_drilled(client: Client, project: Path) -> None:
    (project / "bad.py").write_text("raise ValueError('no data')")
    spec = JobSpec(script="bad.py", instance_type="cpu.1C.1G")
    with pytest.raises(Conflict, match="no data"):
        rehearse(client, spec, sys.executable, [Fault.KILL])


def test_an_undisturbed_run_that_does_not_end_is_stopped(
    client: Client, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "slow.py").write_text("import time\ntime.sleep(600)")
    # the limit is a day
    monkeypatch.setattr(rehearsal, "_UNDISTURBED_LIMIT_S", 0.5)
    spec = JobSpec(script="slow.py", instance_type="cpu.1C.1G")
    with pytest.raises(Conflict, match="has not ended"):
        rehearse(client, spec, sys.executable, [Fault.KILL])
    jobs = [job for job in client_lib.list_jobs(client=client) if "drill" in job.spec.labels]
    assert [job.info().state for job in jobs] == [State.CANCELLED]


def test_an_output_elsewhere_and_an_elastic_job_are_refused(client: Client, project: Path) -> None:
    (project / "train.py").write_text("")
    with pytest.raises(InvalidRequest, match="--out"):
        rehearse(client, JobSpec(script="train.py", args=["--out", "/data"]), sys.executable)
    with pytest.raises(NotSupported, match="elastic"):
        rehearse(client, JobSpec(script="train.py", type="pytorch_elastic"), sys.executable)
