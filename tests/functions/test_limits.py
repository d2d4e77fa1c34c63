"""What can't be called, what can't travel, what can't come back: each is
said in its own sentence.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib import InvalidRequest, Job, JobFailed, NoResult, TooLarge
from client_lib.functions import payload
from client_lib.functions.call import call_of
from client_lib.functions.payload import written
from client_lib.worker.function_runner import difference
from tests.functions.conftest import Script


def submitted(function: object, **options: object) -> Job:
    job = Job(script=function, **options)  # type: ignore[arg-type]
    job.submit()
    return job


def test_a_result_that_can_t_be_pickled_does_not_fail_the_job(folder: Path) -> None:
    job = submitted(lambda: threading.Lock())
    with pytest.raises(NoResult, match=r"rank 0 returned, a lock, can't be pickled"):
        job.result(timeout=60)


def test_sys_exit_returns_nothing(folder: Path) -> None:
    with pytest.raises(NoResult, match=r"rank 0 called sys.exit\(0\)"):
        submitted(lambda: sys.exit(0)).result(timeout=60)


def test_a_rank_that_leaves_without_a_word_has_no_result(folder: Path) -> None:
    with pytest.raises(NoResult, match="SUCCEEDED, left no result"):
        submitted(lambda: os._exit(0)).result(timeout=60)
    with pytest.raises(JobFailed, match="exit code 3"):
        submitted(lambda: os._exit(3)).result(timeout=60)


def test_a_module_that_the_worker_lacks_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "lonely.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(str(folder))
    import lonely  # type: ignore[import-not-found]

    (folder / "lonely.py").unlink()
    with pytest.raises(
        JobFailed, match=r"worker 0 has no module 'lonely': add requirements=\['lonely'\]"
    ):
        submitted(lonely.f).result(timeout=60)


def test_a_module_that_the_function_itself_imports_is_named_too(folder: Path) -> None:
    def train() -> None:
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401

    with pytest.raises(ModuleNotFoundError, match="no_such_module") as raised:
        submitted(train).result(timeout=60)
    assert "add requirements=['no_such_module']" in str(raised.value.__cause__)


def test_another_python_is_found_before_the_function_is_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not every machine has two Pythons
    monkeypatch.setattr(payload, "here", lambda version: {"python": [3, 7], "cloudpickle": version})
    job = submitted(lambda: Path("called").touch())
    with pytest.raises(
        JobFailed, match=r"worker 0 can't read the function: it was submitted from Python 3\.7, and"
    ):
        job.result(timeout=60)
    assert not (folder / "called").exists()


def test_what_is_too_large_names_the_largest(folder: Path) -> None:
    table = bytes(3_000_000)
    call = call_of(lambda small: (small, table), ("x",), None)
    with (
        pytest.raises(TooLarge, match=r"3\.0 MB  variable 'table'"),
        written(call, None, limit_bytes=1_000_000),
    ):
        pass


def test_a_global_that_is_too_large_is_named(script: Script) -> None:
    printed = script("""
        from client_lib import TooLarge
        from client_lib.functions.call import call_of
        from client_lib.functions.payload import written

        TABLE = bytes(3_000_000)

        def train():
            return len(TABLE)

        if __name__ == "__main__":
            try:
                with written(call_of(train, None, None), None, limit_bytes=1_000_000):
                    print("written")
            except TooLarge as error:
                print(error.message)
    """)
    assert "3.0 MB  global 'TABLE'" in printed


def test_a_cloudpickle_that_can_t_read_the_function_is_found_before_it_is_called(
    folder: Path,
) -> None:
    (folder / "old").mkdir()
    (folder / "old" / "cloudpickle.py").write_text("__version__ = '1.6.0'\n")
    job = submitted(
        lambda: Path("called").touch(), env_variables={"PYTHONPATH": str(folder / "old")}
    )
    with pytest.raises(
        JobFailed, match=r"worker 0 can't read the function: .* this is cloudpickle 1\.6\.0"
    ) as refused:
        job.result(timeout=60)
    assert "the first number must be the same" in str(refused.value)
    assert not (folder / "called").exists()


# a TypeError and a RuntimeError
@pytest.mark.parametrize("make", [threading.Lock, multiprocessing.Lock])
def test_what_can_t_travel_is_named(folder: Path, make: Callable[[], object]) -> None:
    lock = make()
    with pytest.raises(
        InvalidRequest, match="variable 'lock' around the function of <lambda> can't be pickled"
    ):
        submitted(lambda: lock)


def test_arguments_that_do_not_fit_are_refused_before_anything_travels() -> None:
    def train(lr: float, rank: int) -> None: ...

    with pytest.raises(InvalidRequest, match=r"train\(\) is not given 'lr'"):
        Job(script=train)
    with pytest.raises(InvalidRequest, match="too many positional arguments"):
        Job(script=train, args=(1, 2, 3))
    with pytest.raises(InvalidRequest, match="kwargs"):
        Job(script="train.py", kwargs={"lr": 1})


def test_versions_that_can_t_read_each_other_are_said_in_one_sentence() -> None:
    header = {"python": [3, 11], "cloudpickle": "3.1.2"}
    assert difference(header, {**header, "cloudpickle": "3.0.0"}) is None
    assert "Python 3.11, and this is Python 3.12" in (
        difference(header, {**header, "python": [3, 12]}) or ""
    )
    older = difference(header, {**header, "cloudpickle": "2.2.1"}) or ""
    assert "cloudpickle 3.1.2, and this is cloudpickle 2.2.1" in older
