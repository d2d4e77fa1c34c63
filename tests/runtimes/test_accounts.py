"""A server of root that runs the jobs of each user under an account of the user: what one job can
do to another, to the server, and to the machine.

The users are called ann and ben, and their accounts are two that every Linux has.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.processes import start_time
from client_lib.spec import paths
from server_stub.http import users_file
from server_stub.runtimes.local import accounts
from server_stub.settings import PREFIX
from tests.faults.conftest import FINAL, PATIENCE_S
from tests.http.conftest import user_fixture
from tests.kit.bounds import Bounds
from tests.kit.processes import alive
from tests.kit.server_process import ServerProcess
from tests.kit.waiting import until

ANN, BEN = "daemon", "games"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not accounts.are_possible(), reason="processes of other accounts need Linux and root"
    ),
]

# sh: let all accounts use an interpreter that lies in a private home directory, in mounts of this
# process alone
_SHOW_PYTHON = """
set -e
prefix=$1 closed=$2 kept=$3; shift 3
mkdir "$kept"; mount --bind "$prefix" "$kept"
mount -t tmpfs -o mode=755 none "$closed"; mkdir -p "$prefix"; mount --bind "$kept" "$prefix"
exec "$@"
"""


class Server(ServerProcess):
    """A server with two users; `folder` may be entered by all."""

    def __init__(self, folder: Path, *flags: str, state: str = "state", **variables: str) -> None:
        self.folder = folder
        self.users = folder / "users.toml"
        separate: dict[str, Any] = {
            f"{PREFIX}INSECURE_SHARED_UID": "0",
            f"{PREFIX}MIN_FREE_BYTES": "0",
        }
        data = ("--data-dir", str(folder / "data"), "--users-file", str(self.users))
        before = _before(folder)
        super().__init__(folder / state, *data, *flags, before=before, **separate | variables)

    def as_user(self, name: str) -> User:
        return User(self, (self.folder / f"token-{name}").read_text())


class User:
    """A user's view of the server."""

    def __init__(self, server: Server, token: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}"}

    def __call__(self, method: str, path: str, **options: Any) -> requests.Response:
        url = self._server.facts()["url"] + path
        return requests.request(method, url, headers=self._headers, timeout=PATIENCE_S, **options)

    def submit(self, name: str, script: str, **more: Any) -> dict[str, Any]:
        """The job of a script that is uploaded as a snapshot. `_`-fields stand beside the spec."""
        archive = _archive(script)
        digest = hashlib.sha256(archive).hexdigest()
        assert self("PUT", paths.snapshot(digest), data=archive).ok
        code = {"mode": "snapshot", "sha256": digest, "root": "/nowhere", "script": "job.py"}
        answer = self.send(name, "job.py", code, **more)
        assert answer.status_code == 201, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def send(self, name: str, script: str, code: dict[str, Any], **more: Any) -> requests.Response:
        beside = {key[1:]: more.pop(key) for key in list(more) if key.startswith("_")}
        submitter = {
            "python": sys.executable,
            "environment": {"PATH": os.environ["PATH"], "HOME": "/root"},
            "working_dir": beside.pop("working_dir", "/nowhere"),
        }
        spec = {"script": script, "name": name, "log_file": None, "grace_s": 1} | more
        return self(
            "POST", paths.JOBS, json={"spec": spec, "code": code, "submitter": submitter} | beside
        )

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self("GET", paths.job(name)).json()
        return found

    def ended(self, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while (job := self.job(name))["state"] not in FINAL:
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        return job

    def log(self, name: str) -> str:
        return self("GET", paths.job(name, "logs")).text

    def said(self, name: str, mark: str = "{") -> dict[str, Any]:
        """The JSON that the job has printed in one line, as soon as it is there."""
        lines = until(
            lambda: [line for line in self.log(name).splitlines() if mark in line],
            f"{mark!r} in its log",
        )
        found: dict[str, Any] = json.loads(lines[0][lines[0].index("{") :])
        return found


def _archive(script: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        member = tarfile.TarInfo("job.py")
        member.size = len(script.encode())
        archive.addfile(member, io.BytesIO(script.encode()))
    return content.getvalue()


def _before(folder: Path) -> tuple[str, ...]:
    """The command that starts a server whose interpreter all accounts can run."""
    python = Path(os.path.realpath(sys.executable))
    closed = [path for path in reversed(python.parents) if not path.stat().st_mode & 0o001]
    if not closed:
        return ()
    mounts = tempfile.mktemp(prefix="python-", dir=folder)
    return (
        "unshare",
        "-m",
        "sh",
        "-c",
        _SHOW_PYTHON,
        "sh",
        sys.base_prefix,
        str(closed[0]),
        mounts,
    )


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that all accounts may enter; pytest's own are private."""
    path = Path(tempfile.mkdtemp(prefix="accounts-", dir="/tmp"))
    path.chmod(0o711)
    if subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", str(path)], check=False
    ).returncode:
        pytest.skip("this container may not mount")
    for name, account in (("ann", ANN), ("ben", BEN)):
        (path / f"token-{name}").write_text(users_file.add(path / "users.toml", name, admin=False))
        (path / f"token-{name}").chmod(0o600)
        with open(path / "users.toml", "a") as users:
            users.write(f'account = "{account}"\n')
    secret = path / "secret"
    secret.touch(0o600)
    secret.write_text("only root reads this")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    running = Server(folder)
    running.facts()
    yield running
    running.kill()


ann, ben = map(user_fixture, ("ann", "ben"))


WHO = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
open("made", "w").write("by me")
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid()],
    "groups": sorted(os.getgroups()),
    "environment": [os.environ.get(name) for name in ("HOME", "USER", "LOGNAME")],
    "rights": [status[name].strip() for name in ("CapPrm", "CapEff", "CapAmb", "NoNewPrivs")],
    "writes_checkpoints": os.access(os.environ["CLIENT_LIB_CHECKPOINT_DIR"], os.W_OK),
}))
"""


@pytest.mark.smoke
def test_a_job_has_the_rights_of_its_users_account_and_no_others(ann: User) -> None:
    ann.submit("who", WHO)
    job = ann.ended("who")
    assert job["state"] == "SUCCEEDED", job["message"]
    account = pwd.getpwnam(ANN)
    assert ann.said("who") == {
        "ids": [[account.pw_uid] * 3, [account.pw_gid] * 3],
        "groups": sorted(os.getgrouplist(ANN, account.pw_gid)),
        "environment": [account.pw_dir, ANN, ANN],
        "rights": ["0" * 16, "0" * 16, "0" * 16, "1"],
        "writes_checkpoints": True,
    }
    assert ann("GET", paths.job("who") + "/outputs/made").content == b"by me"


SECRET = """
import json, os, time
open("output.txt", "w").write("an output")
open(os.environ["CLIENT_LIB_CHECKPOINT_DIR"] + "/checkpoint", "w").write("of ann")
folder = os.environ["CLIENT_LIB_WORKER_DIR"]
print(json.dumps({"pid": os.getpid(), "launcher": os.getppid(), "folder": folder}), flush=True)
time.sleep(600)
"""
SPY = """
import glob, json, os, signal
launcher, pid, worker, data = {launcher}, {pid}, {folder!r}, {data!r}
job = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(worker))))
names = ["plan.json", "work/job.py", "log/" + "0" * 20 + ".log", "control.sock", "launcher.out"]
wanted = [worker + "/" + name for name in names] + [worker, worker + "/work", worker + "/log"]
files = ["/outputs", "/checkpoints", "/checkpoints/checkpoint"]
files += ["/attempts/1/code.tar.gz", "/attempts/1/attempt.json"]
wanted += [job] + [job + name for name in files]
wanted += [data, data + "/jobs", data + "/client_lib.db", data + "/snapshots"]
for process in (pid, launcher):
    wanted += ["/proc/%d/%s" % (process, name) for name in ("environ", "mem", "cwd", "fd")]
found = {{}}
for path in wanted:
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).close()
        found[path] = "read"
    except (PermissionError, OSError) as error:
        found[path] = type(error).__name__
for process in (pid, launcher):
    try:
        os.kill(process, signal.SIGTERM)
        found[process] = "killed"
    except PermissionError:
        found[process] = "PermissionError"
print(json.dumps(found))
"""


def test_a_job_reads_nothing_of_another_users_job_and_stops_none_of_its_processes(
    ann: User, ben: User, server: Server
) -> None:
    ann.submit(
        "secret",
        SECRET,
        secrets=["HF_TOKEN"],
        _secret_values={"HF_TOKEN": "hf_123"},
        outputs=["*.txt"],
    )
    there = ann.said("secret")
    environment = Path(f"/proc/{there['pid']}/environ").read_bytes().split(b"\0")
    assert b"HF_TOKEN=hf_123" in environment  # root reads it
    ben.submit("spy", SPY.format(data=str(server.folder / "data"), **there))
    assert ben.ended("spy")["state"] == "SUCCEEDED", ben.log("spy")
    found = ben.said("spy")
    assert set(found.values()) == {"PermissionError"}, found
    assert ann.job("secret")["state"] == "RUNNING"
    ann("POST", paths.job("secret") + "/cancel")
    assert ann.ended("secret")["state"] == "CANCELLED"


DEAF = """
import json, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleeps, start_new_session=True)
print(json.dumps({"pid": os.getpid(), "child": child.pid}), flush=True)
time.sleep(600)
"""


def test_a_cancel_ends_all_processes_of_a_job(ann: User) -> None:
    ann.submit("deaf", DEAF)
    there = ann.said("deaf")
    ann("POST", paths.job("deaf") + "/cancel")
    assert ann.ended("deaf")["state"] == "CANCELLED"
    assert not any(alive(pid) for pid in there.values())


def test_the_processes_of_a_killed_launcher_are_ended(ann: User) -> None:
    ann.submit("orphans", DEAF)
    there = ann.said("orphans")
    os.kill(
        int(Path(f"/proc/{there['pid']}/stat").read_text().rpartition(")")[2].split()[1]),
        signal.SIGKILL,
    )
    job = ann.ended("orphans")
    assert (job["state"], job["reason"]) == ("FAILED", "LauncherLost")
    assert not any(alive(pid) for pid in there.values())


PLANT = """
import json, os, signal, sys
secret, pid, started = {secret!r}, {pid}, {started!r}
worker = os.environ["CLIENT_LIB_WORKER_DIR"]
outputs = os.path.join(worker, "../../../../outputs")
victim = {{"pid": pid, "pgid": pid, "start_time": started}}
def put(path, text=None):
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(secret, path) if text is None else open(path, "w").write(text)
os.makedirs(outputs + "/1.0/data", exist_ok=True)
put(outputs + "/1.0/data/" + "a" * 64)
os.makedirs(outputs + "/1.1", exist_ok=True)
put(outputs + "/1.1/index.jsonl")
put(worker + "/launcher.out")
put(worker + "/processes.json", json.dumps({{"0": victim}}))
put(worker + "/plan.json")
put(worker + "/report.json")
os.unlink(worker + "/reserve")
os.symlink(os.path.dirname(secret), worker + "/reserve")
print("planted", flush=True)
os.rename(worker + "/log", worker + "/old")
os.mkdir(worker + "/log")
put(worker + "/log/" + "0" * 20 + ".log")
os.kill(os.getppid(), signal.SIGKILL)
"""


def test_the_server_uses_no_link_or_record_that_a_job_has_forged(ann: User, server: Server) -> None:
    """Links to a file of root in place of outputs, logs, reports and plans, and records
    that name a process of root.
    """
    secret = server.folder / "secret"
    victim = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        ann.submit(
            "plant",
            PLANT.format(secret=str(secret), pid=victim.pid, started=start_time(victim.pid)),
        )
        job = ann.ended("plant")
        assert job["state"] == "FAILED"
        path = paths.job("plant")
        asked = [
            path,
            f"{path}/events",
            f"{path}/logs",
            f"{path}/logs?rank=0",
            f"{path}/outputs",
            f"{path}/results/0",
        ]
        answers = [ann("GET", each) for each in asked]
        answers.append(ann("GET", f"{path}/outputs/x", params={"sha256": "a" * 64}))
        assert answers[-1].status_code == 404
        assert not [
            answer.url
            for answer in answers
            if "only root" in answer.text or answer.status_code >= 500
        ]
        assert victim.poll() is None
        assert ann("DELETE", path).ok
        assert secret.read_text() == "only root reads this"
        assert not (server.folder / "data" / "jobs" / job["id"]).exists()
    finally:
        victim.kill()
        victim.wait()


LINKS = """
import os
os.symlink({secret!r}, os.environ["CLIENT_LIB_CHECKPOINT_DIR"] + "/link")
open(os.environ["CLIENT_LIB_CHECKPOINT_DIR"] + "/epoch", "w").write("7")
"""
CONTINUE = """
import json, os
folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
print(json.dumps({"epoch": open(folder + "/epoch").read(), "link": os.readlink(folder + "/link")}))
"""


def test_checkpoints_are_copied_with_the_rights_of_the_account(ann: User, server: Server) -> None:
    secret = str(server.folder / "secret")
    first = ann.submit("first", LINKS.format(secret=secret))
    assert ann.ended("first")["state"] == "SUCCEEDED"
    ann.submit("second", CONTINUE, _checkpoints_of=first["id"])
    assert ann.ended("second")["state"] == "SUCCEEDED", ann.log("second")
    assert ann.said("second") == {"epoch": "7", "link": secret}


TELLS_A_FILE_OF_ROOT = """
import json, os, time
folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
for step in (1, 2):
    open(f"{{folder}}/step-{{step}}.safetensors", "wb").write((2).to_bytes(8, "little") + b"{{}}")
time.sleep(4)  # until the launcher has told its list
forged = [{secret!r}, "torch", 1, 20, 1.0, "", "complete", True, []]
with open(os.environ["CLIENT_LIB_METRICS"], "w") as pipe:
    pipe.write(json.dumps([None, "checkpoint", forged]) + "\\n")
"""


def test_checkpoints_are_removed_and_sent_with_the_rights_of_the_account(
    ann: User, server: Server
) -> None:
    secret = str(server.folder / "secret")
    ann.submit("forges", TELLS_A_FILE_OF_ROOT.format(secret=secret))
    assert ann.ended("forges")["state"] == "SUCCEEDED", ann.log("forges")
    found = ann("GET", paths.job("forges", "checkpoints")).json()["checkpoints"]
    first, second = sorted(each["path"] for each in found if each["path"] != secret)
    archive = paths.job("forges", "checkpoints/archive")
    refused = ann("GET", archive, params={"path": secret})
    assert refused.status_code >= 400
    assert "only root" not in refused.text
    sent = ann("GET", archive, params={"path": first})
    assert sent.status_code == 200, sent.text
    prune = {"keep": 1, "paths": [first, secret]}
    removed = ann("POST", paths.job("forges", "checkpoints/prune"), json=prune).json()
    assert [each["path"] for each in removed["checkpoints"]] == [first]
    assert not os.path.exists(first)
    assert os.path.exists(second)
    assert os.path.exists(secret)


READS = """
import json, os
folder = os.environ["CLIENT_LIB_AFTER_0_OUTPUTS"]
found = {"read": open(folder + "/line").read(), "path": folder}
print(json.dumps(found))
"""
TRIES = """
import json, os
print(json.dumps({"entered": os.access(%r, os.R_OK) or os.access(os.path.dirname(%r), os.X_OK)}))
"""


def test_outputs_of_a_job_are_copies_that_only_the_account_reads(ann: User, ben: User) -> None:
    ann.submit("writer", "open('line', 'w').write('one')")
    ann.submit("reader", READS, after=["writer"])
    assert ann.ended("reader")["state"] == "SUCCEEDED", ann.ended("reader")["message"]
    said = ann.said("reader")
    assert said["read"] == "one"
    ben.submit("other", TRIES % ((said["path"],) * 2))
    assert ben.ended("other")["state"] == "SUCCEEDED"
    assert ben.said("other") == {"entered": False}


def test_a_folder_for_checkpoints_is_made_with_the_rights_of_the_account(
    ann: User, server: Server
) -> None:
    ann.submit("elsewhere", WHO, checkpoint_dir=str(server.folder / "state" / "mine"))
    job = ann.ended("elsewhere")
    assert (job["state"], job["reason"]) == ("FAILED", "StartFailed")
    assert "mine can't be made: Permission denied" in job["message"]
    assert not (server.folder / "state" / "mine").exists()


def test_code_in_place_that_the_account_cant_read_is_refused_at_the_submit(
    ann: User, ben: User, folder: Path
) -> None:
    account = pwd.getpwnam(BEN)
    place = folder / "place"
    place.mkdir(mode=0o700)
    (place / "train.py").write_text(WHO)
    nonce = secrets.token_hex(16)
    (place / ".proof").write_text(nonce)
    for path in (place, *place.iterdir()):
        os.chown(path, account.pw_uid, account.pw_gid)
    code = {"mode": "in_place", "proof": {"path": str(place / ".proof"), "nonce": nonce}}
    refused = ann.send("in-place", str(place / "train.py"), code, _working_dir=str(place)).json()
    assert refused["code"] == "not_shared"
    assert refused["message"] == (
        f"jobs of ann run under the account {ANN} of the server's machine, which can't read {place}"
    )
    accepted = ben.send("in-place", str(place / "train.py"), code, _working_dir=str(place))
    assert accepted.status_code == 201, accepted.text
    assert ben.ended("in-place")["state"] == "SUCCEEDED", ben.log("in-place")


def test_folders_that_a_job_names_are_looked_up_with_the_rights_of_the_account(
    ann: User, folder: Path
) -> None:
    hidden, shown = folder / "hidden", folder / "shown"
    for place, mode in ((hidden, 0o700), (shown, 0o755)):
        (place / "env" / "bin").mkdir(parents=True)
        (place / "env" / "bin" / "python").symlink_to(sys.executable)
        place.chmod(mode)
    refused = ann.send(
        "a", "/bin/true", {"mode": "in_place"}, volumes=[f"data:{hidden}/env"]
    ).json()
    assert f"this machine has no folder {hidden}/env" in refused["message"]
    refused = ann.send("b", "/bin/true", {"mode": "in_place"}, conda_env=f"{hidden}/env").json()
    assert "no such environment on this machine" in refused["message"]
    named: dict[str, Any] = {"volumes": [f"data:{shown}/env"], "conda_env": f"{shown}/env"}
    answer = ann.send("c", "/bin/true", {"mode": "in_place"}, **named)
    assert answer.json()["code"] == "not_shared"  # a later check


def test_nothing_else_in_the_data_directory_is_open_to_accounts(server: Server, ann: User) -> None:
    ann.submit("any", WHO)
    ann.ended("any")
    data = server.folder / "data"
    assert {path.name for path in data.iterdir() if path.stat().st_mode & 0o077} == {
        "jobs",
        "environments",
    }
    below = [path for name in ("jobs", "environments") for path in (data / name).rglob("*")]
    of_root = {path: path.lstat() for path in (data, *below) if path.lstat().st_uid == 0}
    assert not [path for path, status in of_root.items() if status.st_mode & 0o066]
    assert {status.st_mode & 0o777 for status in of_root.values()} <= {0o711, 0o700, 0o600}


def test_the_doctor_says_how_users_are_separated(ann: User) -> None:
    found = {check["name"]: check for check in ann("GET", paths.DOCTOR).json()["checks"]}
    assert found["accounts"]["ok"]
    assert found["accounts"]["message"] == "the jobs of 2 users run under accounts of their own"


WAIT = """
import json, os, time
print(json.dumps({"pid": os.getpid()}), flush=True)
while not os.path.exists("/tmp/" + os.environ["GO"]):
    time.sleep(0.05)
print("done")
"""


def test_a_restarted_server_finds_a_running_job_again(server: Server, folder: Path) -> None:
    go = f"accounts-{secrets.token_hex(8)}"
    second = None
    ann = server.as_user("ann")
    ann.submit("wait", WAIT, env_variables={"GO": go})
    there = ann.said("wait")
    server.end(signal.SIGKILL)
    try:
        second = Server(folder)
        ann = second.as_user("ann")
        assert ann.job("wait")["state"] == "RUNNING"
        assert alive(there["pid"])
        Path("/tmp", go).touch()
        job = ann.ended("wait")
        assert (job["state"], job["attempt"]) == ("SUCCEEDED", 1)
        assert "done" in ann.log("wait")
    finally:
        Path("/tmp", go).unlink(missing_ok=True)
        if second:
            second.kill()


OLD = """
import os
open(os.environ["CLIENT_LIB_CHECKPOINT_DIR"] + "/epoch", "w").write("7")
os.symlink("epoch", os.environ["CLIENT_LIB_CHECKPOINT_DIR"] + "/link")
"""


def test_jobs_of_a_server_that_did_not_separate_its_users_go_on(folder: Path) -> None:
    go = f"accounts-{secrets.token_hex(8)}"
    data = ("--data-dir", str(folder / "older"))
    first = Server(folder, *data, state="state2", **{f"{PREFIX}INSECURE_SHARED_UID": "1"})
    second = None
    try:
        ann = first.as_user("ann")
        old = ann.submit("old", OLD)
        assert ann.ended("old")["state"] == "SUCCEEDED"
        ann.submit("wait", WAIT, env_variables={"GO": go})
        there = ann.said("wait")
        assert os.stat(f"/proc/{there['pid']}").st_uid == 0
        first.end(signal.SIGKILL)
        second = Server(folder, *data, state="state2")
        ann = second.as_user("ann")
        Path("/tmp", go).touch()
        assert ann.ended("wait")["state"] == "SUCCEEDED"
        assert "done" in ann.log("wait")
        ann.submit("new", CONTINUE, _checkpoints_of=old["id"])
        assert ann.ended("new")["state"] == "SUCCEEDED", ann.log("new")
        assert ann.said("new") == {"epoch": "7", "link": "epoch"}
    finally:
        Path("/tmp", go).unlink(missing_ok=True)
        for server in filter(None, (first, second)):
            server.kill()


def test_it_does_not_start_for_users_without_an_account(folder: Path, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users_file.add(users, "nobody-knows-me", admin=False)
    # no other server works there
    data = ("--data-dir", str(tmp_path / "data"), "--state-dir", str(tmp_path))
    said = Server(folder, "--users-file", str(users), *data).refused()
    assert "this machine has no account for nobody-knows-me" in said
    assert "useradd" in said
    assert "--insecure-shared-uid" in said


def test_it_does_not_start_where_the_accounts_cant_enter(folder: Path, tmp_path: Path) -> None:
    tmp_path.parent.chmod(0o700)
    data = tmp_path / "data"
    said = Server(folder, "--data-dir", str(data), "--state-dir", str(tmp_path / "state")).refused()
    assert f"can't enter {data}/jobs" in said
    assert "--data-dir" in said


class _OfSlowFiles(accounts.Account):
    """An account whose processes wait for a file system that does not answer."""

    def run(
        self, command: list[str], limit_s: float | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return super().run(["sh", "-c", "printf 0; exec sleep 600"], limit_s, stdin)


def test_a_file_system_that_does_not_answer_is_unreadable(bounds: Bounds) -> None:
    bounds(accounts, READ_S=0.5)
    account = accounts.of_users({"ann": ANN})["ann"]
    assert _OfSlowFiles(*account).can_read(["/tmp", "/", "/etc"]) == [True, False, False]


def test_one_process_looks_at_all_folders_that_a_job_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = accounts.of_users({"ann": ANN})["ann"]
    tmp_path.chmod(0o700)
    started, popen = list[Any](), subprocess.Popen
    # counts the processes, which show in no answer
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda *args, **options: started.append(args) or popen(*args, **options),
    )
    asked = ["/", "/no/such", str(tmp_path), "/etc/passwd", " /", "a\n/", "\\", *["/etc"] * 500]
    assert account.can_read(asked) == [True, False, False, True, False, False, False, *[True] * 500]
    assert len(started) == 1
    assert account.can_read([]) == []
    assert len(started) == 1


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"ann": "no-such-account"}, "no account for ann (account no-such-account)"),
        ({"ann": "root"}, "the jobs of ann would run as root"),
        ({"ann": ANN, "ben": ANN}, f"ann and ben have the same account, {ANN}"),
    ],
)
def test_each_user_needs_an_account_of_their_own(names: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)) as refused:
        accounts.of_users(names)
    assert refused.value.hint
