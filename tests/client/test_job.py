"""Jobs through the SDK on a real local server: real processes, real logs."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import client_lib
from client_lib import (
    Client,
    ClientLibError,
    Conflict,
    InvalidRequest,
    Job,
    JobCancelled,
    JobFailed,
    NotFound,
    NotShared,
    State,
    WaitTimeout,
    get_job,
    list_jobs,
)
from client_lib.spec.request import CodeInPlace, CodeSnapshot, SubmitRequest
from client_lib.spec.wire import JobInfo
from tests.kit.bounds import Bounds
from tests.kit.odd_server import OddServer, http
from tests.kit.waiting import until

HELLO = "import os\nprint('hello from', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"


@pytest.fixture
def script(folder: Path, client: Client) -> Callable[..., str]:
    """Write a script into the working directory; the configured server is the real local one."""

    def write(code: str = HELLO, name: str = "train.py") -> str:
        (folder / name).write_text(code)
        return name

    return write


def test_a_launchers_line_is_read_as_on_the_command_line(
    script: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    name = script()
    with caplog.at_level(logging.INFO, "client_lib"):
        job = Job(script=f"nohup torchrun --nproc_per_node=2 {name} --lr 1", n_workers=2)
        job.submit()
    spec = job.spec
    assert (spec.n_workers, spec.processes_per_worker, spec.args) == (2, 2, ["--lr", "1"])
    assert spec.python_script is not None
    assert "torchrun line read as: client-lib submit --processes-per-worker 2" in caplog.text
    with pytest.raises(InvalidRequest, match="contradicts --nproc-per-node 4"):
        Job(script=f"torchrun --nproc-per-node 4 {name}", processes_per_worker=2).submit()


def ran(job: Job) -> Job:
    job.submit()
    job.wait(timeout=60)
    return job


@pytest.fixture(scope="module")
def name_of_hello(local_server: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job of two workers that has ended, for the tests that only read it."""
    path = tmp_path_factory.mktemp("hello") / "train.py"
    path.write_text(HELLO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLIENT_LIB_CONFIG", str(path.parent / "config.toml"))
        patch.setenv("CLIENT_LIB_STATE_DIR", str(local_server))
        return str(ran(Job(script=path, n_workers=2)).job_name)


@pytest.fixture
def hello(name_of_hello: str, client: Client) -> Job:
    return get_job(name_of_hello)


@pytest.fixture
def sleeping(script: Callable[..., str]) -> Iterator[Job]:
    """A running job that would take a minute."""
    job = Job(
        script=script("import time\nprint('begun', flush=True)\ntime.sleep(60)\n", "sleep.py"),
        grace_s=1,
    )
    job.submit()
    next(iter(job.log_lines(stream="stdout")))
    yield job
    for info in list_jobs(name=job.job_name):  # a test may have deleted it
        get_job(str(info.name)).cancel()


# --- the platform's verbs


def test_a_job_runs_its_script_on_two_workers(script: Callable[..., str]) -> None:
    job = Job(script=script(), n_workers=2)
    sentence = job.submit()
    assert sentence == f'Job "{job.job_name}" created.'
    assert str(job.job_name).startswith("train-")
    info = job.wait(timeout=60)
    assert info.state is job.state is State.SUCCEEDED
    assert sorted(job.log_lines(stream="stdout")) == ["hello from 0 of 2", "hello from 1 of 2"]
    assert job.status() == "Job status=Completed"


def test_job_name_is_none_before_the_submit_and_after_a_failed_one(
    script: Callable[..., str],
) -> None:
    job = Job(script="missing.py")
    assert job.job_name is None
    with pytest.raises(InvalidRequest, match=r"there is no .*missing\.py"):
        job.submit()
    assert job.job_name is None


def test_kill_cancels_and_says_the_platform_s_sentence(sleeping: Job) -> None:
    assert sleeping.kill() == f'Job "{sleeping.job_name}" deleted'
    with pytest.raises(JobCancelled):
        sleeping.wait(timeout=30)
    assert sleeping.status() == "Job status=Deleted"


def test_logs_prints_every_line_with_its_rank(
    hello: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hello.logs(stream="stdout") is None
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[0] hello from 0 of 2",
        "[1] hello from 1 of 2",
    ]


def test_logs_follows_until_the_job_ends(script: Callable[..., str]) -> None:
    job = Job(
        script=script("import time\nfor n in range(5): print(n, flush=True); time.sleep(0.05)\n")
    )
    job.submit()
    out = io.StringIO()
    job.logs(stream="stdout", file=out)
    assert [line.rsplit(" ")[-1] for line in out.getvalue().splitlines()] == list("01234")
    assert job.state is State.SUCCEEDED


def test_without_following_a_pending_job_prints_the_platform_s_sentence(
    odd_server: Callable[..., OddServer], capsys: pytest.CaptureFixture[str]
) -> None:
    info = {
        "name": "a",
        "id": "i",
        "owner": "o",
        "version": 1,
        "runtime": "local",
        "state": "PENDING",
    }
    info |= {"reason": "Queued", "spec": {"script": "a.py"}, "code": {"mode": "in_place"}}
    info |= {"created_at": "2026-11-21T10:00:00Z"}
    job = Client(odd_server(http("200 OK", json.dumps(info).encode())).url).get_job("a")
    job.logs(follow=False)
    assert capsys.readouterr().out == '"Job a in queue. Try later"\n'


def test_what_the_server_reads_otherwise_is_said_once_before_the_lines(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(script=script(), instance_type="a100.1gpu", base_image="pytorch/pytorch")
    job.submit()
    job.wait(30, follow=True)
    job.logs()
    shown = capsys.readouterr().err
    notices = job.info().notices
    assert any("a100.1gpu" in notice for notice in notices)
    assert [shown.count(notice) for notice in notices] == [1] * len(notices)


def test_a_reader_that_is_gone_ends_the_printing(script: Callable[..., str]) -> None:
    job = ran(Job(script=script("for n in range(50_000): print(n)\n")))
    code = f"from client_lib import get_job; get_job({job.job_name!r}).logs()"
    printing = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert printing.stdout
    printing.stdout.read(10)
    printing.stdout.close()
    assert b"BrokenPipeError" in printing.communicate(timeout=20)[1]


def test_timestamps_stand_in_front(hello: Job) -> None:
    options: list[dict[str, Any]] = [{"timestamps": True}, {"verbose": True}]
    for each in options:
        out = io.StringIO()
        hello.logs(file=out, stream="stdout", **each)
        assert all(line.startswith("20") for line in out.getvalue().splitlines())


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_on_a_followed_job_says_that_it_goes_on(sleeping: Job) -> None:
    code = f"from client_lib import get_job; get_job({sleeping.job_name!r}).logs()"
    reader = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert reader.stdout
    while "begun" not in reader.stdout.readline():
        pass
    reader.send_signal(signal.SIGINT)
    _, err = reader.communicate(timeout=20)
    assert f"job {sleeping.job_name} keeps running" in err
    assert f"client-lib cancel {sleeping.job_name}" in err
    assert "KeyboardInterrupt" in err
    assert sleeping.state is State.RUNNING


# --- wait


FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("about to fail", flush=True)
    raise ValueError("no good")
time.sleep(60)
"""


def test_a_failed_job_raises_its_report(script: Callable[..., str]) -> None:
    job = Job(script=script(FAILS), n_workers=2, grace_s=1)
    job.submit()
    with pytest.raises(JobFailed) as caught:
        job.wait(timeout=60)
    text = str(caught.value)
    assert text.startswith(
        f"job {job.job_name} FAILED (ExitCode): rank 1 on worker 1 ended with exit code 1"
    )
    assert "ValueError: no good" in text
    assert "    about to fail" in text
    assert text.splitlines()[-1] == "next: `job.logs(rank=1)` shows its output"
    assert caught.value.info.state is State.FAILED


def test_wait_gives_up_after_the_timeout_and_says_the_state(sleeping: Job) -> None:
    for follow in (False, True):
        begin = time.monotonic()
        with pytest.raises(
            WaitTimeout, match="not final yet" if follow else "not final yet, but RUNNING"
        ):
            sleeping.wait(timeout=0.3, follow=follow)
        assert 0.3 <= time.monotonic() - begin < 5
    assert issubclass(WaitTimeout, TimeoutError)


def test_wait_can_print_the_logs_meanwhile(
    script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(script=script(), n_workers=2)
    job.submit()
    assert job.wait(follow=True, timeout=60).state is State.SUCCEEDED
    assert "[1] hello from 1 of 2" in capsys.readouterr().out


def test_the_end_is_pushed_not_polled(script: Callable[..., str]) -> None:
    job = Job(script=script("import os\nwhile not os.path.exists('go'): pass\n"), log_file=None)
    job.submit()
    seen: list[float] = []
    waiter = threading.Thread(target=lambda: (job.wait(60), seen.append(time.monotonic())))
    waiter.start()
    until(lambda: job.state is State.RUNNING)
    Path("go").touch()
    until(lambda: job.state is State.SUCCEEDED)
    final = time.monotonic()
    waiter.join(10)
    assert seen[0] - final < 1


# --- typed


def test_a_job_is_found_by_name_from_anywhere(name_of_hello: str, client: Client) -> None:
    name = name_of_hello
    assert get_job(name).info() == client.get_job(name).info()
    code = f"from client_lib import get_job; print(get_job({name!r}).state)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "SUCCEEDED"


def test_jobs_are_listed_over_pages_newest_first(
    script: Callable[..., str], client: Client, bounds: Bounds
) -> None:
    bounds("client_lib.transport.api", PAGE=2)
    jobs = [Job(script=script(), labels={"team": "pages", "n": str(n)}) for n in range(5)]
    for job in jobs:
        job.submit()
    names = [job.job_name for job in reversed(jobs)]
    assert [info.name for info in list_jobs(label={"team": "pages"})] == names
    assert [info.name for info in client.list_jobs(label={"team": "pages"}, limit=3)] == names[:3]
    assert [info.name for info in list_jobs(label={"team": "pages", "n": "2"})] == [names[2]]
    assert [info.name for info in list_jobs(name=names[1])] == [names[1]]
    assert list(list_jobs(State.FAILED, label={"team": "pages"})) == []
    found = list_jobs(label={"team": "pages"})
    assert isinstance(found[0], Job)
    assert (found[0].name, found[-1].name, len(found)) == (names[0], names[-1], len(names))
    assert [each.name for each in found[1:3]] == names[1:3]
    assert repr(found).splitlines()[0].split() == [
        "NAME",
        "STATE",
        "TOOK",
        "AGE",
        "SIZE",
        "SCRIPT",
        "WHY",
    ]
    assert names[0] in repr(found)
    assert found[0].owner == found[0].info().owner  # type: ignore[attr-defined]  # the list once held a JobInfo
    with pytest.raises(AttributeError, match="nonsense"):
        _ = found[0].nonsense  # type: ignore[attr-defined]  # that is the test
    assert list(list_jobs(limit=0)) == []


def test_events_tell_every_state_in_order(hello: Job) -> None:
    states = [event.state for event in hello.events()]
    assert states[0] is State.PENDING
    assert states[-1] is State.SUCCEEDED
    assert State.RUNNING in states


def test_entries_know_worker_rank_stream_and_time(hello: Job) -> None:
    entry = next(iter(hello.log_entries(rank=1, stream="stdout")))
    assert (entry.worker, entry.rank, entry.stream, entry.text, entry.attempt) == (
        1,
        1,
        "stdout",
        "hello from 1 of 2",
        1,
    )
    assert entry.time.tzinfo


def test_an_unknown_stream_is_refused_by_name(hello: Job) -> None:
    with pytest.raises(InvalidRequest, match="stdour"):
        list(hello.log_lines(stream="stdour"))


def test_delete_is_refused_while_it_runs_unless_forced(sleeping: Job) -> None:
    with pytest.raises(Conflict):
        sleeping.delete()
    assert sleeping.job_name
    sleeping.delete(force=True)

    def gone() -> bool:
        try:
            sleeping.info()
        except NotFound:
            return True
        return False

    until(gone)


@pytest.mark.parametrize("code", ["in_place", "snapshot"])
def test_a_dry_run_gives_the_same_answer_twice_and_creates_nothing(
    script: Callable[..., str], folder: Path, code: str
) -> None:
    job = Job(
        script=script(),
        n_workers=2,
        code=code,  # type: ignore[arg-type]
        labels={"team": "dry"},
        env_variables={"MY_TOKEN": "hush"},
    )
    first, second = job.render(), job.render()
    assert first == second
    assert len(first.objects) == 2
    assert "hush" not in first.model_dump_json()
    assert job.name is None
    assert list(list_jobs(label={"team": "dry"})) == []
    assert os.listdir(folder) == ["train.py"]


def test_after_the_submit_render_shows_what_was_started(hello: Job) -> None:
    assert hello.render().runtime == "local"


def test_a_job_runs_again_as_a_new_one(script: Callable[..., str], client: Client) -> None:
    first = ran(Job(script=script("import sys\nprint(sys.argv[1:])\n"), args=["a b", "", "ü"]))
    assert first.job_name
    second = client.resubmit(first.job_name)
    assert second.job_name != first.job_name
    second.wait(60)
    assert list(second.log_lines(stream="stdout")) == ["['a b', '', 'ü']"]


# --- submit


def test_a_second_submit_of_one_object_is_refused(hello: Job) -> None:
    with pytest.raises(Conflict, match=f"already, as {hello.job_name}"):
        hello.submit()


def test_verbs_before_the_submit_say_so(script: Callable[..., str]) -> None:
    with pytest.raises(Conflict, match="no job of a server yet"):
        Job(script=script()).status()


def test_a_lost_answer_does_not_double_the_job(
    odd_server: Callable[..., OddServer], folder: Path
) -> None:
    (folder / "train.py").write_text("pass")
    server = odd_server(http("200 OK", b'{"version":"1","runtime":"other","user":"u"}'), b"")
    job = Job(script="train.py", client=Client(server.url, retry_s=0.3))
    for _ in range(2):
        with pytest.raises(client_lib.ServerUnreachable):
            job.submit()
    posts = [request for request in server.requests if request.line.startswith("POST")]
    assert len(posts) > 2
    assert len({request.headers["Idempotency-Key"] for request in posts}) == 1
    assert len({json.loads(request.body)["spec"]["name"] for request in posts}) == 1


def test_only_fields_that_were_set_are_sent_and_no_environment_to_another_machine(
    odd_server: Callable[..., OddServer], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hush")
    monkeypatch.setenv("PRIVATE", "x")
    (folder / "train.py").write_text("pass")
    server = odd_server(
        http("200 OK", b'{"version":"1","runtime":"kubernetes","user":"u"}'), http("507 Full")
    )
    with pytest.raises(client_lib.StorageFull):
        Job(
            script="train.py", n_workers=2, secrets=["HF_TOKEN", "OTHER"], client=Client(server.url)
        ).submit()
    sent = json.loads(server.requests[-1].body)
    assert set(sent["spec"]) == {"script", "name", "n_workers", "secrets"}
    assert sent["submitter"] == {"working_dir": str(folder)}
    assert sent["secret_values"] == {"HF_TOKEN": "hush"}


def test_the_job_runs_with_the_caller_s_interpreter_environment_and_directory(
    script: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLY_HERE", "a\nb $c 'd'")
    code = (
        "import json, os, sys\nprint(json.dumps([sys.executable, os.environ['ONLY_HERE'], "
        "os.getcwd(), sys.path[0]]))\n"
    )
    (folder / "sub").mkdir()
    job = ran(Job(script=script(code, "sub/where.py")))
    found = json.loads(next(iter(job.log_lines(stream="stdout"))))
    assert found == [sys.executable, "a\nb $c 'd'", str(folder), str(folder / "sub")]


def test_awkward_arguments_and_values_arrive_as_they_are(script: Callable[..., str]) -> None:
    arguments = ["", "a b", "it's", '"', "$HOME", "`x`", "*", "ü 漢", "--flag=1 2", "\n", "\\"]
    values: dict[str, Any] = {
        "A": "x=y",
        "B": "a\nb",
        "C": "$HOME `x` 'q' \"d\"",
        "D": "",
        "E": 1.5,
        "F": True,
    }
    code = (
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], {k: os.environ[k] for k in "
        "'ABCDEF'}]))\n"
    )
    job = ran(
        Job(
            script=script(code), args=arguments, env_variables=values, flags={"lr": 0.1, "on": None}
        )
    )
    got_arguments, got_values = json.loads(next(iter(job.log_lines(stream="stdout"))))
    assert got_arguments == [*arguments, "--lr=0.1", "--on"]
    assert got_values == {key: str(value) for key, value in values.items()}


def test_in_place_is_taken_where_the_folder_is_shared(
    script: Callable[..., str], folder: Path
) -> None:
    job = ran(Job(script=script("open('result.txt', 'w').write('x')\n")))
    assert isinstance(job.info().code, CodeInPlace)
    assert (folder / "result.txt").read_text() == "x"
    assert not [name for name in os.listdir(folder) if name.startswith(".client-lib")]


def test_a_snapshot_is_the_code_as_it_was_at_submit(
    script: Callable[..., str], folder: Path
) -> None:
    (folder / "pyproject.toml").touch()
    (folder / "lib").mkdir()
    (folder / "lib" / "values.py").write_text("VALUE = 'then'\n")
    name = script(
        "import os, sys\nsys.path.insert(0, 'lib')\nimport values\nprint(values.VALUE, "
        "os.getcwd())\n",
        "lib/run.py",
    )
    job = Job(script=name, code="snapshot")
    sent: list[tuple[int, int]] = []
    job.submit(on_upload=lambda done, size: sent.append((done, size)))
    (folder / "lib" / "values.py").write_text("VALUE = 'now'\n")
    job.wait(60)
    said, where = next(iter(job.log_lines(stream="stdout"))).split(" ", 1)
    code = job.info().code
    assert isinstance(code, CodeSnapshot)
    assert (code.files, code.script, code.working_dir, code.root) == (
        3,
        "lib/run.py",
        ".",
        str(folder),
    )
    assert sent[-1] == (code.size, code.size)
    assert said == "then"
    assert Path(where) != folder


def test_a_snapshot_that_the_server_has_is_not_sent_again(script: Callable[..., str]) -> None:
    sent: list[tuple[int, int]] = []
    for _ in range(2):
        job = Job(script=script("print('same bytes each time')\n"), code="snapshot")
        job.submit(on_upload=lambda done, size: sent.append((done, size)))
        job.wait(60)
    assert len(sent) == 1


def test_an_ignored_script_is_no_snapshot(script: Callable[..., str], folder: Path) -> None:
    (folder / ".gitignore").write_text("train.py\n")
    with pytest.raises(InvalidRequest, match=r"train\.py is ignored"):
        Job(script=script(), code="snapshot").submit()


class NotSharing(Client):
    """A server that does not see this machine's folders: what it is asked for is
    where the real one is not.
    """

    def submit_request(self, request: SubmitRequest, key: str) -> JobInfo:
        if isinstance(request.code, CodeInPlace):
            assert request.code.proof
            moved = request.code.proof.model_copy(
                update={"path": request.code.proof.path + "-elsewhere"}
            )
            request = request.model_copy(
                update={"code": request.code.model_copy(update={"proof": moved})}
            )
        return super().submit_request(request, key)


def test_where_the_folder_is_not_shared_auto_takes_a_snapshot(script: Callable[..., str]) -> None:
    job = ran(Job(script=script(), client=NotSharing()))
    assert isinstance(job.info().code, CodeSnapshot)
    assert next(iter(job.log_lines(stream="stdout"))) == "hello from 0 of 1"


def test_where_the_folder_is_not_shared_in_place_is_an_error(script: Callable[..., str]) -> None:
    with pytest.raises(NotShared):
        Job(script=script(), code="in_place", client=NotSharing()).submit()


# --- wrong values


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "script is missing"),
        ({"script": "a.py", "n_workers": 0}, "n_workers=0"),
        ({"script": "a.py", "type": "horovod"}, "type='horovod'"),
        ({"script": "a.py", "args": "--lr 1"}, "args="),
        ({"base_image": "train.py", "script": "a.py"}, "script='train.py'"),
        ({"script": "echo a && echo b"}, "bash -c"),
    ],
)
def test_a_wrong_value_is_named_when_the_job_is_made(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Job(**fields)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Job(script="a.py", n_workers=0, type="mpi", name="X")
    assert len(caught.value.message.splitlines()) == 3


def test_an_unknown_instance_type_names_what_there_is(script: Callable[..., str]) -> None:
    with pytest.raises(InvalidRequest, match=r"tpu\.8"):
        Job(script=script(), instance_type="tpu.8").submit()


# --- good manners


def test_making_a_job_touches_neither_disk_nor_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_LIB_ENDPOINT", "http://127.0.0.1:9")
    (folder / "config.toml").write_text("broken")
    job = Job("image", "no such 'file.py", "a100.8gpu", 2, "pytorch2", client=None)
    assert (job.spec.base_image, job.spec.instance_type, job.spec.n_workers) == (
        "image",
        "a100.8gpu",
        2,
    )
    assert os.listdir(folder) == ["config.toml"]


def test_the_caller_s_objects_and_process_stay_as_they_were(script: Callable[..., str]) -> None:
    flags, args = {"a": 1}, ["x"]
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    }
    before = (
        os.getcwd(),
        dict(os.environ),
        logging.getLogger().handlers[:],
        logging.getLogger().level,
    )
    job = ran(Job(script=script(), flags=flags, args=args, env_variables={"B": 2}))
    list(job.log_lines())
    assert (flags, args) == ({"a": 1}, ["x"])
    assert (
        os.getcwd(),
        dict(os.environ),
        logging.getLogger().handlers[:],
        logging.getLogger().level,
    ) == before
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_many_threads_submit_and_follow(script: Callable[..., str]) -> None:
    name = script("pass\n")
    jobs = [Job(script=name, labels={"team": "threads"}) for _ in range(8)]
    threads = [threading.Thread(target=ran, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.job_name for job in jobs}) == 8
    assert {info.state for info in list_jobs(label={"team": "threads"})} == {State.SUCCEEDED}


def test_a_job_shows_itself_in_a_terminal_and_in_a_notebook(script: Callable[..., str]) -> None:
    job = Job(script=script())
    assert repr(job) == "Job('train.py', not submitted)"
    deep = Job(script="/home/ann/projects/language-models/experiments/2026-11/train.py")
    assert (
        repr(deep)
        == "Job('/home/ann/projects/language...experiments/2026-11/train.py', not submitted)"
    )
    assert "not submitted" in job._repr_html_()
    ran(job)
    assert repr(job) == f"Job('{job.job_name}', SUCCEEDED when last asked)"
    assert "SUCCEEDED" in job._repr_html_()


def test_a_notebook_still_shows_a_job_whose_server_is_gone(
    odd_server: Callable[..., OddServer],
) -> None:
    info = {
        "name": "a",
        "id": "i",
        "owner": "o",
        "version": 1,
        "runtime": "local",
        "state": "RUNNING",
    }
    info |= {"reason": "Running", "spec": {"script": "a.py"}, "code": {"mode": "in_place"}}
    info |= {"created_at": "2026-11-21T10:00:00Z"}
    job = Client(odd_server(http("200 OK", json.dumps(info).encode()), b"").url).get_job("a")
    shown = job._repr_html_()
    assert "RUNNING" in shown
    assert "without an answer" in shown


@pytest.mark.parametrize(
    "call",
    [
        lambda: Job(script="nowhere/train.py").submit(),
        lambda: Job(script="train.py", n_workers="many"),  # type: ignore[arg-type]  # the wrong type is the test
        lambda: Job(script=traceback.format_exc, kwargs={"nonsense": 1}),
        lambda: Client("http://127.0.0.1:9", retry_s=0.2).get_job("x"),
    ],
    ids=["no script", "wrong field", "wrong argument", "no server"],
)
def test_an_error_is_one_traceback_that_ends_with_its_message(
    call: Callable[[], object], client: Client
) -> None:
    with pytest.raises(ClientLibError) as caught:
        call()
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback") == 1
    assert text.rstrip().endswith(str(caught.value))
    assert not str(caught.value).startswith("Error")
