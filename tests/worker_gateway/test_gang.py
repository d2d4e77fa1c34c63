"""Jobs whose workers are agents elsewhere: environment, logs, failures, orders. Real
processes, a real socket.
"""

import ast
import json
import os
import signal
import time

import pytest

from client_lib.launcher_protocol.record import METRICS, parse
from tests.kit.waiting import until
from tests.worker_gateway.conftest import Start
from tests.worker_gateway.pods_here import MASTER_PORT, lives

pytestmark = pytest.mark.process

SHOW = """
import json, os, sys, time
names = '''
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT
    PYTHONUNBUFFERED CLIENT_LIB_JOB_NAME CLIENT_LIB_ATTEMPT MLSPACE_JOB_NAME
    TORCHELASTIC_RESTART_COUNT ACCELERATE_USE_CPU MINE FROM_THE_IMAGE
'''.split()
shown = {name: os.environ.get(name) for name in names}
unwanted = [name for name in os.environ if name.startswith("PET_")]
shown["leaked"] = unwanted + [name for name in os.environ if name == "CLIENT_LIB_POD_UID"]
print(json.dumps(shown))
print("words on stderr", file=sys.stderr)
if os.environ["RANK"] == "0":
    with open("train.log", "a") as log:
        log.write("epoch 1 done\\n")
"""


@pytest.mark.smoke
def test_two_workers_of_two_ranks_run_as_anywhere(site: Start) -> None:
    server = site()
    job = server.accepted(
        "gang",
        SHOW,
        n_workers=2,
        processes_per_worker=2,
        env_variables={"MINE": "1"},
        log_file="train.log",
    )
    ended = server.ended("gang")
    assert (ended["state"], ended["reason"]) == ("SUCCEEDED", "Completed"), ended
    assert [worker["exit_code"] for worker in ended["workers"]] == [0, 0]
    seen = [
        parse(line) for worker in (0, 1) for line in server.stored_log(job, worker).splitlines()
    ]
    shown = [
        json.loads(record.text)
        for record in seen
        if record.text.startswith("{") and record.stream != METRICS
    ]
    common = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": MASTER_PORT,
        "PYTHONUNBUFFERED": "1",
        "CLIENT_LIB_JOB_NAME": "gang",
        "CLIENT_LIB_ATTEMPT": "1",
        "MLSPACE_JOB_NAME": "gang",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "ACCELERATE_USE_CPU": "true",
        "MINE": "1",
        "FROM_THE_IMAGE": "yes",
        "leaked": [],
    }
    assert sorted(shown, key=lambda one: int(one["RANK"])) == [
        common
        | {"RANK": str(rank), "LOCAL_RANK": str(rank % 2)}
        | dict.fromkeys(("NODE_RANK", "GROUP_RANK"), node)
        for rank, node in ((0, "0"), (1, "0"), (2, "1"), (3, "1"))
    ]
    assert [record.text for record in seen if record.stream == "train.log"] == ["epoch 1 done"]
    assert sum("words on stderr" in line for line in server.text("gang")) == 4


def test_the_launcher_is_forked_from_the_agent(site: Start) -> None:
    """A second interpreter would take as long to start as the first."""
    server = site()
    job = server.accepted(
        "forked", "import os\nprint(open('/proc/%d/cmdline' % os.getppid()).read().split(chr(0)))\n"
    )
    server.ended("forked")
    records = map(parse, server.stored_log(job, 0).splitlines())
    (text,) = [record.text for record in records if record.stream != METRICS]
    assert ast.literal_eval(text)[-3] == "pod"


NO_FORK = """
import errno, os
def fork():
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = fork
"""


def test_an_agent_that_can_not_fork_its_launcher_ends_with_the_reason(site: Start) -> None:
    server = site(pods={"before": NO_FORK})
    job = server.accepted("full", "print('never')")
    ended = server.ended("full")
    assert (ended["reason"], ended["message"]) == (
        "StartFailed",
        "the worker could not be prepared: [Errno 11] Resource temporarily unavailable",
    )
    until(lambda: not lives(server.pod(job)))


def test_what_a_pod_prints_is_its_log(site: Start) -> None:
    server = site()
    job = server.accepted("print", "for n in range(5000): print('line', n)")
    assert server.ended("print")["state"] == "SUCCEEDED"
    until(lambda: (server.pod(job) / "stdout").read_bytes() == server.stored_log(job))
    records = [parse(line) for line in server.stored_log(job).splitlines()]
    assert [record.seq for record in records] == list(range(len(records)))
    assert len([record for record in records if record.stream != METRICS]) == 5000


@pytest.mark.smoke
def test_a_failing_rank_ends_the_gang_and_is_named(site: Start) -> None:
    server = site()
    script = (
        "import os, time\nif os.environ['RANK'] == '1': raise ValueError('bad "
        "luck')\ntime.sleep(600)"
    )
    job = server.accepted("fail", script, n_workers=2)
    ended = server.ended("fail")
    assert (ended["state"], ended["reason"]) == ("FAILED", "ExitCode")
    assert ended["failure"]["rank"] == 1
    assert ended["failure"]["exception"] == "ValueError: bad luck"
    digests = [server.pod(job, worker) / "termination-log" for worker in (0, 1)]
    until(lambda: all(path.exists() and path.stat().st_size for path in digests))
    told = json.loads(digests[1].read_bytes())
    assert digests[1].stat().st_size <= 4000
    assert (told["exit_code"], told["reason"], told["ranks"][0]["exception"]) == (
        1,
        "ExitCode",
        "ValueError: bad luck",
    )
    assert json.loads(digests[0].read_bytes())["reason"] == "Cancelled"


def test_the_rank_that_raised_is_named_though_its_peer_was_gone_first(site: Start) -> None:
    server = site()
    script = (
        "import atexit, os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    atexit.register(time.sleep, 0.6)\n"
        "    open('raises', 'w').close()\n"
        "    raise KeyError('lr')\n"
        "while not os.path.exists('raises'): time.sleep(0.01)\n"
        "time.sleep(0.2)\n"
        "raise RuntimeError('[gloo] Connection closed by peer')\n"
    )
    server.accepted("guilty", script, n_workers=2)
    ended = server.ended("guilty")
    assert ended["message"] == "rank 1 ended with exit code 1: KeyError: 'lr'"
    assert (ended["failure"]["worker"], ended["failure"]["rank"]) == (1, 1)


def test_no_rank_starts_before_every_worker_is_there(site: Start, tmp_path: object) -> None:
    server = site(pods={"held": [1]})
    job = server.accepted("half", "open('ran', 'w').close()", n_workers=2)
    until(lambda: (server.attempt(job) / "workers/0/worker.json").exists())
    until(
        lambda: (
            json.loads((server.attempt(job) / "workers/0/worker.json").read_text())["state"]
            == "ready"
        )
    )
    time.sleep(0.5)
    assert not (server.folder / "ran").exists()
    assert server.job("half")["state"] == "PENDING"
    server.call("POST", "/api/v1/jobs/half/cancel")
    digest = server.pod(job) / "termination-log"
    until(lambda: digest.exists() and digest.stat().st_size)
    assert json.loads(digest.read_bytes())["reason"] == "Cancelled"
    assert not (server.folder / "ran").exists()


def test_a_cancelled_job_gets_sigterm_and_its_last_words_are_kept(site: Start) -> None:
    server = site()
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('checkpoint written'), sys.exit(0)))\n"
        "print('up')\ntime.sleep(600)"
    )
    server.accepted("polite", script)
    until(lambda: any("up" in line for line in server.text("polite")))
    server.call("POST", "/api/v1/jobs/polite/cancel")
    assert server.ended("polite")["state"] == "CANCELLED"
    assert any("checkpoint written" in line for line in server.text("polite"))


def test_an_interrupted_job_gets_sigint_though_its_pods_are_deleted(site: Start) -> None:
    server = site()
    script = (
        "import time\ntry:\n    print('up')\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    time.sleep(2)\n    print('saved')\n    raise"
    )
    server.accepted("interrupted", script)
    until(lambda: any("up" in line for line in server.text("interrupted")))
    server.call("POST", "/api/v1/jobs/interrupted/cancel?interrupt=true")
    assert server.ended("interrupted")["state"] == "CANCELLED"
    assert any("saved" in line for line in server.text("interrupted"))


def test_a_report_that_a_rank_has_written_is_none(site: Start) -> None:
    server = site()
    script = (
        "import os, signal\nwith open(os.environ['CLIENT_LIB_WORKER_DIR'] + '/report.json', 'w') "
        "as file:\n    file.write('{\"reason\": 1}')\nos.kill(os.getppid(), signal.SIGKILL)"
    )
    server.accepted("writes", script)
    ended = server.ended("writes")
    assert (ended["state"], ended["reason"]) == ("FAILED", "LauncherLost")
    assert "the launcher of worker 0 was killed by signal 9 without a report" in ended["message"]


def test_a_launcher_that_is_killed_takes_its_ranks_and_is_reported(site: Start) -> None:
    server = site()
    script = "import os, time\nprint('pid', os.getpid())\ntime.sleep(600)"
    job = server.accepted("lost", script)
    until(lambda: any("pid" in line for line in server.text("lost")))
    rank = int(next(line for line in server.text("lost") if "pid" in line).split()[-1])
    holder = json.loads((server.pod(job) / "run" / "lock").read_text())
    os.kill(holder["pid"], signal.SIGKILL)
    ended = server.ended("lost")
    assert (ended["state"], ended["reason"]) == ("FAILED", "LauncherLost")
    assert "the launcher of worker 0 was killed by signal 9" in ended["message"]
    until(lambda: not os.path.exists(f"/proc/{rank}"))
