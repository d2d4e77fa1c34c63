"""Functions as jobs, end to end: real jobs of a real server, from the call to what comes back."""

import builtins
import functools
import io
import linecache
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib import Client, Job, JobFailed, NoResult, NotFound, RemoteError, State, get_job
from tests.functions.conftest import Script

TEXT = "\"$5 $HOME `x` a\\$b\" 'quotes' \n\t é 漢字 \U0001f600 \x00"


def result_of(function: Callable[..., object], *args: object, **options: object) -> object:
    job = Job(script=function, args=args, **options)  # type: ignore[arg-type]
    job.submit()
    return job.result(timeout=60)


def echo(value: object, scale: int = 1) -> object:
    return [value] * scale


def rank_and_size() -> tuple[str, str]:
    return os.environ["RANK"], os.environ["WORLD_SIZE"]


def fail_on_one() -> None:
    if os.environ["RANK"] == "1":
        raise KeyError("learning_rate")
    import time

    time.sleep(60)


def test_a_function_of_a_module_gets_its_arguments_unchanged_also_from_from_function(
    folder: Path,
) -> None:
    job = Job.from_function(echo, TEXT, scale=2)
    job.submit()
    assert job.result(timeout=60) == [TEXT, TEXT]
    assert (job.job_name or "").startswith("echo-")


def test_every_rank_has_its_own_result_in_rank_order(folder: Path) -> None:
    job = Job(script=rank_and_size, n_workers=2, processes_per_worker=2)
    job.submit()
    assert job.results(timeout=60) == [(str(rank), "4") for rank in range(4)]
    assert job.result(3) == ("3", "4")
    with pytest.raises(NotFound, match="no rank 4") as refused:
        job.result(4)
    assert refused.value.hint == "its ranks are 0 to 3"


def test_closures_lambdas_methods_and_partials(folder: Path) -> None:
    class Trainer:
        def __init__(self, start: int) -> None:
            self.start = start

        def fit(self, steps: int) -> int:
            return self.start + steps

    start = 40
    calls: list[Callable[[int], int]] = [
        lambda steps: start + steps,
        Trainer(40).fit,
        functools.partial(Trainer.fit, Trainer(40)),
    ]
    assert result_of(lambda: [call(2) for call in calls]) == [42, 42, 42]
    assert result_of(Trainer(40).fit, 2) == 42
    assert result_of(functools.partial(echo, scale=3), 1) == [1, 1, 1]


def test_an_interpreter_without_cloudpickle_uses_the_caller_s(folder: Path, tmp_path: Path) -> None:
    """Also in processes that the function spawns. Stock images have
    PyTorch, and not cloudpickle.
    """

    def double(value: int) -> int:
        return 2 * value

    def train(value: int) -> list[int]:
        import multiprocessing

        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return [*pool.map(abs, [-value]), double(value)]

    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    job = Job(script=train, args=(21,))
    job.submit(python=str(tmp_path / "bare" / "bin" / "python"))
    assert job.result(timeout=60) == [21, 42]


def test_large_arguments_and_results_travel_and_it_runs_in_the_caller_s_working_directory(
    folder: Path,
) -> None:
    (folder / "data.txt").write_text("42")
    block = os.urandom(20_000_000)
    assert result_of(lambda given: (given[::-1], Path("data.txt").read_text()), block) == (
        block[::-1],
        "42",
    )


def test_what_a_function_raises_comes_back_as_itself_with_the_remote_traceback(
    folder: Path,
) -> None:
    job = Job(script=fail_on_one, n_workers=2, grace_s=1)
    job.submit()
    with pytest.raises(KeyError, match="learning_rate") as raised:
        job.result(timeout=60)
    cause = raised.value.__cause__
    assert isinstance(cause, JobFailed)
    assert "rank 1 of job" in cause.message
    assert 'raise KeyError("learning_rate")' in cause.message
    assert "function_runner" not in cause.message
    assert job.state is State.FAILED
    with pytest.raises(JobFailed, match="rank 1 on worker 1"):
        job.wait()


CELL = """
def bad():
    learning_rate = {}
    return learning_rate["first"]
"""
CELL_NAME = "<ipython-input-7-0123456789ab>"


@pytest.mark.parametrize("runner", ["1", "0"], ids=["rank runner", "python alone"])
def test_a_traceback_of_a_cell_s_function_has_its_lines_and_no_frame_of_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    """In the exception, in the log, and in the failure that the job's status shows."""
    monkeypatch.setitem(
        linecache.cache, CELL_NAME, (len(CELL), None, CELL.splitlines(keepends=True), CELL_NAME)
    )
    names: dict[str, Callable[[], object]] = {}
    exec(compile(CELL, CELL_NAME, "exec"), names)
    job = Job(script=names["bad"], env_variables={"CLIENT_LIB_RANK_RUNNER": runner})
    job.submit()
    with pytest.raises(KeyError) as raised:
        job.result(timeout=60)
    cause = raised.value.__cause__
    assert isinstance(cause, JobFailed)
    failure = job.info().failure
    assert failure
    log = io.StringIO()
    job.logs(rank=0, file=log)
    for text in (cause.message, log.getvalue(), failure.traceback or ""):
        assert f'File "{CELL_NAME}", line 4, in bad\n    return learning_rate["first"]\n' in text
        assert "function_runner" not in text


def test_an_exception_that_can_t_be_rebuilt_is_a_remote_error_with_the_same_text(
    folder: Path,
) -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def fail() -> None:
        raise Odd(1, 2)

    with pytest.raises(RemoteError, match="Odd: 1 and 2") as raised:
        result_of(fail)
    assert "Odd: 1 and 2</b>" in (raised.value._repr_html_() or "")  # the card of a notebook


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no groups of exceptions")
def test_the_traceback_of_a_group_is_told_once(folder: Path) -> None:
    def fail() -> None:
        print("about to fail")
        raise vars(builtins)["ExceptionGroup"]("several", [ValueError("one"), KeyError("two")])

    with pytest.raises(Exception, match="several") as raised:
        result_of(fail)
    told = str(raised.value.__cause__)
    assert told.count("ValueError: one") == 1
    assert "Its last lines before that:\n    about to fail" in told


def test_a_class_of_main_is_the_same_class_when_it_comes_back(script: Script) -> None:
    printed = script("""
        from client_lib import Job

        class Mine(Exception):
            pass

        class Box:
            def __init__(self, value):
                self.value = value

        def train(box):
            if box.value < 0:
                raise Mine(box.value)
            return Box(box.value + 1)

        if __name__ == "__main__":
            job = Job(script=train, args=(Box(1),))
            job.submit()
            back = job.result(timeout=60)
            print(type(back) is Box, back.value)
            job = Job(script=train, args=(Box(-1),))
            job.submit()
            try:
                job.result(timeout=60)
            except Mine as mine:
                print("Mine", mine)
    """)
    assert printed.splitlines() == ["True 2", "Mine -1"]


def test_what_was_defined_in_main_can_be_pickled_in_the_worker(script: Script) -> None:
    """As torch.save(model) does, and a DataLoader with spawned workers."""
    printed = script("""
        import multiprocessing, pickle
        from client_lib import Job

        OFFSET = 10

        class Model:
            weight = 3

        class Data:
            def __getitem__(self, index):
                return index + OFFSET

        def helper(index):
            return Data()[index]

        def train(data):
            with open("model.pkl", "wb") as file:
                pickle.dump(Model(), file)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return pool.map(helper, [1, 2]), pool.map(data.__getitem__, [3])

        if __name__ == "__main__":
            job = Job(script=train, args=(Data(),))
            job.submit()
            print(job.result(timeout=60))
            print(type(pickle.load(open("model.pkl", "rb"))) is Model)
    """)
    assert printed.splitlines() == ["([11, 12], [13])", "True"]


def test_decorated_functions_with_defaults_globals_and_helpers(script: Script) -> None:
    printed = script("""
        import functools
        from client_lib import Job

        SCALE = 10

        def twice(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return [function(*args, **kwargs) for _ in range(2)]
            return wrapper

        def helper(value):
            return value * SCALE

        @twice
        def train(value, *, offset=1):
            return helper(value) + offset

        if __name__ == "__main__":
            job = Job(script=train, args=(4,))
            job.submit()
            print(job.result(timeout=60))
    """)
    assert printed == "[41, 41]"


def test_modules_outside_of_the_snapshot_travel_by_value(script: Script, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "tools").mkdir(parents=True)
    (shared / "tools" / "__init__.py").write_text("from tools.inner import step\n")
    (shared / "tools" / "inner.py").write_text(
        "import other\ndef step(value):\n    return other.OFFSET + value\n"
    )
    (shared / "other.py").write_text("OFFSET = 40\n")
    printed = script(f"""
        import sys
        sys.path.insert(0, {str(shared)!r})
        import tools
        from client_lib import Job

        def train(value):
            return tools.step(value), {str(shared)!r} in sys.path

        if __name__ == "__main__":
            for function in (train, tools.step):
                job = Job(script=function, args=(2,), code="snapshot")
                job.submit()
                print(job.result(timeout=60))
    """)
    assert printed.splitlines() == ["(42, False)", "42"]


def test_modules_beside_the_script_are_found_from_any_directory(
    script: Script, folder: Path, tmp_path: Path
) -> None:
    (folder / "project").mkdir()
    (folder / "project" / "__init__.py").write_text("")
    (folder / "project" / "steps.py").write_text("def step():\n    return 'from the project'\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    text = """
        from project import steps
        from client_lib import Job

        def train():
            return steps.step()

        if __name__ == "__main__":
            for code in ("auto", "snapshot"):
                for function in (train, steps.step):
                    job = Job(script=function, code=code)
                    job.submit()
                    print(job.result(timeout=60))
    """
    assert script(text, cwd=elsewhere).splitlines() == ["from the project"] * 4


def test_a_function_of_a_package_s_main_module_takes_its_siblings_along(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "steps.py").write_text("def step():\n    return 'a sibling'\n")
    (folder / "package" / "train.py").write_text(
        "from client_lib import Job\n"
        "from .steps import step\n"
        "def train():\n"
        "    from . import steps\n"
        "    return step(), steps.step()\n"
        "if __name__ == '__main__':\n"
        "    for code in ('auto', 'snapshot'):\n"
        "        job = Job(script=train, code=code)\n"
        "        job.submit()\n"
        "        print(job.result(timeout=60))\n"
    )
    command = [sys.executable, "-m", "package.train"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["('a sibling', 'a sibling')"] * 2, done.stderr


@pytest.mark.process
def test_another_process_gets_a_result_by_name_after_the_server_was_restarted(
    folder: Path, client: Client
) -> None:
    job = Job(script=echo, args=("kept",))
    job.submit()
    job.wait(timeout=60)
    code = f"from client_lib import get_job; print(get_job({job.job_name!r}).result())"
    stop = [sys.executable, "-m", "client_lib", "server", "stop"]
    subprocess.run(stop, check=True, capture_output=True, timeout=60)
    for _ in range(2):
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        assert found.stdout.strip() == "['kept']", found.stderr


def test_a_script_has_no_result(folder: Path) -> None:
    (folder / "train.py").write_text("print('hello')")
    job = Job(script="train.py")
    job.submit()
    with pytest.raises(NoResult, match="only a function returns something"):
        job.result(timeout=60)


def test_results_are_those_of_the_last_attempt(folder: Path) -> None:
    def train() -> tuple[str, str]:
        rank, attempt = os.environ["RANK"], os.environ["CLIENT_LIB_ATTEMPT"]
        if (rank, attempt) == ("1", "1"):
            raise OSError("the first attempt fails")
        return rank, attempt

    job = Job(script=train, n_workers=2, max_retry=1, grace_s=1)
    job.submit()
    assert job.results(timeout=100) == [("0", "2"), ("1", "2")]


def test_a_resubmit_calls_the_function_again(folder: Path, client: Client) -> None:
    job = Job(script=echo, args=("again",))
    job.submit()
    job.wait(timeout=60)
    assert client.resubmit(job.job_name or "").result(timeout=60) == ["again"]
    assert get_job(job.job_name or "").info().spec.script == "echo()"
