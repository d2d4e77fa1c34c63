"""What a job can rely on, wherever it runs."""

import json
from datetime import datetime, timezone

import pytest

from client_lib.cli.commands.status import job_lines
from client_lib.spec.states import Reason, State
from tests.contract.places import Place, becomes, ended, prints

pytestmark = pytest.mark.process

SHOW_ENVIRONMENT = """
import json, os, time
names = '''
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT
    PYTHONUNBUFFERED CLIENT_LIB_JOB_NAME CLIENT_LIB_ATTEMPT MLSPACE_JOB_NAME
    TORCHELASTIC_RESTART_COUNT ACCELERATE_USE_CPU MINE HOME OMPI_COMM_WORLD_RANK
    CLIENT_LIB_CHECKPOINT_DIR TORCHELASTIC_ERROR_FILE PET_NNODES OMP_NUM_THREADS
'''.split()
print(json.dumps({name: os.environ.get(name) for name in names}))
"""
MEET = """
import os, socket, time
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(("", address[1]))
    for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
        print("met", server.accept()[0].recv(10).decode(), flush=True)
else:
    deadline = time.time() + 30
    while True:
        try:
            connection = socket.create_connection(address, timeout=5)
            break
        except OSError:
            if time.time() > deadline:
                raise
            time.sleep(0.1)
    connection.sendall(b"rank %d" % rank)
"""
STAY = """
import signal, sys, time
def leave(*_):
    print("asked to stop", flush=True)
    time.sleep(0.5)  # a second SIGTERM would be seen
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""


def texts(job: object, **filters: object) -> list[str]:
    return [entry.text for entry in job.log_entries(follow=False, **filters)]  # type: ignore[attr-defined]


@pytest.mark.smoke
def test_every_process_sees_the_same_environment(place: Place) -> None:
    job = place.run(
        SHOW_ENVIRONMENT, n_workers=2, processes_per_worker=2, env_variables={"MINE": "a b"}
    )
    assert job.info().state is State.SUCCEEDED, job.info().message
    seen = sorted(
        (json.loads(line) for line in texts(job, stream=["stdout"])),
        key=lambda each: int(each["RANK"]),
    )
    assert [each["RANK"] for each in seen] == ["0", "1", "2", "3"]
    assert [each["LOCAL_RANK"] for each in seen] == ["0", "1", "0", "1"]
    assert (
        [each["NODE_RANK"] for each in seen]
        == [each["GROUP_RANK"] for each in seen]
        == ["0", "0", "1", "1"]
    )
    for each in seen:
        assert (each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"], each["CLIENT_LIB_ATTEMPT"]) == (
            "4",
            "2",
            "1",
        )
        assert each["CLIENT_LIB_JOB_NAME"] == each["MLSPACE_JOB_NAME"] == job.name
        assert (each["PYTHONUNBUFFERED"], each["TORCHELASTIC_RESTART_COUNT"], each["MINE"]) == (
            "1",
            "0",
            "a b",
        )
        assert each["ACCELERATE_USE_CPU"] == "true"
        assert each["OMPI_COMM_WORLD_RANK"] is None
        assert each["PET_NNODES"] is None
        assert each["HOME"]
        assert each["CLIENT_LIB_CHECKPOINT_DIR"]
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in seen}) == 1
    assert len({each["TORCHELASTIC_ERROR_FILE"] for each in seen}) == 4
    threads = [worker.threads for worker in job.info().workers]
    assert [str(number) for number in threads] == [each["OMP_NUM_THREADS"] for each in seen[::2]]


def test_ranks_of_two_workers_meet_at_the_master(place: Place) -> None:
    job = place.run(MEET, n_workers=2, processes_per_worker=2)
    assert job.info().state is State.SUCCEEDED, job.info().message
    assert sorted(texts(job, rank=[0])) == ["met rank 1", "met rank 2", "met rank 3"]


def test_an_exit_code_names_the_rank_and_ends_the_others(place: Place) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(600)\n"
    info = place.run(script, n_workers=2).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.EXIT_CODE)
    assert info.failure is not None
    assert (info.failure.worker, info.failure.rank, info.failure.exit_code) == (1, 1, 7)


def test_an_exception_is_in_the_failure_report_with_its_traceback(place: Place) -> None:
    info = place.run("print('before')\nraise ValueError('bad batch')\n").info()
    assert info.state is State.FAILED
    assert info.failure is not None
    assert info.failure.exception is not None
    assert "ValueError: bad batch" in info.failure.exception
    assert "raise ValueError('bad batch')" in (info.failure.traceback or "")
    assert "before" in info.failure.last_lines


def test_a_signal_is_said_by_its_number(place: Place) -> None:
    info = place.run("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n").info()
    assert (info.state, info.reason) == (State.FAILED, Reason.SIGNAL)
    assert info.failure is not None
    assert info.failure.signal == 11


def test_a_cancelled_job_gets_a_sigterm_and_keeps_its_last_words(place: Place) -> None:
    job = place.job(STAY, n_workers=2)
    job.submit()
    prints(job, "up", times=2)
    job.cancel()
    assert ended(job).info().state is State.CANCELLED
    assert texts(job, stream=["stdout"]).count("asked to stop") == 2


def test_an_interrupted_job_gets_a_sigint_in_each_worker(place: Place) -> None:
    """Pods are deleted meanwhile: their SIGTERM must not cut off what the script saves."""
    script = (
        "import time\ntry:\n    print('up', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    time.sleep(3)\n    print('saved', flush=True)\n    raise\n"
    )
    job = place.job(script, n_workers=2, grace_s=20)
    job.submit()
    prints(job, "up", times=2)
    assert job.job_name
    place.client.cancel_job(job.job_name, interrupt=True)
    assert ended(job).info().state is State.CANCELLED
    assert texts(job, stream=["stdout"]).count("saved") == 2


def test_a_job_that_is_cancelled_at_once_never_runs_on(place: Place) -> None:
    job = place.job(STAY)
    job.submit()
    job.cancel()
    assert ended(job).info().state is State.CANCELLED


def test_a_failing_attempt_is_followed_by_another(place: Place) -> None:
    """The failure of rank 1 may stop rank 0 of the first attempt before it has printed."""
    script = "import os, sys, time\nprint('attempt', os.environ['CLIENT_LIB_ATTEMPT'])\n"
    script += (
        "if os.environ['CLIENT_LIB_ATTEMPT'] == '1': sys.exit(3) if os.environ['RANK'] == '1' "
        "else time.sleep(600)\n"
    )
    job = place.run(script, n_workers=2, max_retry=1)
    info = job.info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 2), info.message
    assert texts(job, rank=[1], stream=["stdout"]) == ["attempt 1", "attempt 2"]
    assert texts(job, rank=[0], stream=["stdout"])[-1:] == ["attempt 2"]


def test_an_exit_code_is_retried_as_often_as_the_job_makes_progress(place: Place) -> None:
    """`max_retry` alone would end it after the second attempt."""
    script = "import os, sys\nnumber = int(os.environ['CLIENT_LIB_ATTEMPT'])\n"
    script += (
        "for step in range(100 * number - 100, 100 * number): print(f'step {step} loss=0.5')\n"
    )
    script += "sys.exit(75 if number < 4 else 1)"
    job = place.run(script, max_retry=1, retry_on=["exit:75"], retry_reset_steps=100)
    info = job.info()
    assert (info.state, info.attempt, info.furthest_step) == (State.FAILED, 4, 399), info.message
    assert info.message.endswith("; not retried: exit:1 is not in retry_on")
    # pods wait, too
    told = [event.message for event in job.events() if "; the next starts in " in event.message]
    assert (
        "failed: rank 0 ended with exit code 75 (1 of 1 retries); the next starts in 1 s" in told[0]
    )
    assert "(1 of 1 retries, counted from 0 again as it got from step 99 to 199)" in told[1]
    assert " in attempt 4; not retried: exit:1 is not in retry_on\n" in job.explain()
    shown = job_lines(info.model_dump(mode="json"), datetime.now(timezone.utc))
    assert "attempt   4 (not retried: exit:1 is not in retry_on)" in shown


def test_every_line_of_every_stream_arrives_once_and_in_order(place: Place) -> None:
    script = (
        "import sys\nfor i in range(5000):\n    print('line', i)\nprint('aside', file=sys.stderr)\n"
    )
    script += "open('train.log', 'w').write('loss 0.5\\n')\nimport time; time.sleep(1.5)\n"
    job = place.run(script, n_workers=2)
    assert job.info().state is State.SUCCEEDED, job.info().message
    for rank in (0, 1):
        assert texts(job, rank=[rank], stream=["stdout"]) == [f"line {i}" for i in range(5000)]
        assert texts(job, rank=[rank], stream=["stderr"]) == ["aside"]
    assert texts(job, stream=["train.log"]) == ["loss 0.5", "loss 0.5"]


def test_a_follower_sees_the_lines_while_the_job_runs(place: Place) -> None:
    job = place.job(STAY)
    job.submit()
    lines = job.log_lines(follow=True)
    assert next(line for line in lines if line.endswith("up"))
    assert job.info().state in (State.PENDING, State.RUNNING)
    job.cancel()
    ended(job)


def test_a_job_is_running_while_its_ranks_run(place: Place) -> None:
    job = place.job(STAY, n_workers=2)
    job.submit()
    becomes(job, State.RUNNING)
    assert {worker.state for worker in job.info().workers} == {"running"}
    job.cancel()
    ended(job)


def test_secrets_reach_the_ranks_and_no_view(place: Place) -> None:
    script = "import os\nprint(len(os.environ['MY_TOKEN']))\n"
    job = place.run(script, env_variables={"MY_TOKEN": "s3cr3t-value"})
    assert job.info().state is State.SUCCEEDED, job.info().message
    assert texts(job, stream=["stdout"]) == ["12"]
    shown = [job.info(), job.render(), job.explanation(), *job.events()]
    assert not [each for each in shown if "s3cr3t-value" in each.model_dump_json()]
    assert "s3cr3t-value" not in job.explain() + place.server.output


def test_render_shows_the_same_twice_and_makes_nothing(place: Place) -> None:
    job = place.job(STAY, name="shown")
    assert job.render() == job.render()
    assert place.leftovers() == []
