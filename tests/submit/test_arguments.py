"""Arguments of earlier years: each is accepted with one warning that says what to write
today, or refused by name.
"""

import inspect
import string
import warnings
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib import InvalidRequest, Job, NotSupported
from client_lib.submit.arguments import STAYS, TODAY, OldArguments
from client_lib.submit.changes import changed

GIVEN: dict[str, Any] = {
    "n_gpus": 4,
    "detached": True,
    "warm_cache": False,
    "memory_limit": "16Gi",
    "cpu_limit": 4,
    "spark_executor_memory": 2.5,
    "cuda11": True,
    "forbid_s3": True,
    "forbid_internet": True,
    "in_communal_cluster": True,
}


def test_these_are_all() -> None:
    assert set(GIVEN) == set(OldArguments.__annotations__) == set(TODAY)


@pytest.mark.parametrize("name", sorted(GIVEN))
def test_each_is_one_deprecation_warning_that_names_it(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=name) as caught:
        Job(script="train.py", **{name: GIVEN[name]})
    assert len(caught) == 1
    assert str(caught[0].message).startswith(name)
    assert str(caught[0].message).endswith(f"({STAYS})"), "how long it is kept"
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", sorted(GIVEN))
def test_none_counts_as_not_given(name: str) -> None:
    not_given: dict[str, Any] = {name: None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Job(script="train.py", **not_given)


def test_an_argument_that_job_never_had_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_gpu'"):
        Job(script="train.py", n_gpu=4)  # type: ignore[call-arg]


def test_the_source_of_job_names_none_of_them_but_tools_that_look_at_its_signature_see_all() -> (
    None
):
    assert not TODAY.keys() & set(Job.__init__.__code__.co_varnames)
    assert set(inspect.signature(Job.__init__).parameters) >= set(TODAY)


@pytest.mark.parametrize(
    ("detached", "attached"), [(False, True), (0, True), (True, False), ("yes", False)]
)
def test_a_job_that_is_not_detached_is_followed_by_its_submit(
    detached: Any, attached: bool
) -> None:
    with pytest.warns(DeprecationWarning, match="detached"):
        job: Job = Job(script="train.py", detached=detached)
    assert job._attached is attached


def spec_of(**old: Any) -> Any:
    with pytest.warns(DeprecationWarning, match="deprecated"):
        return Job(script="train.py", **old).spec


def test_n_gpus_is_an_instance_type_that_says_nothing_of_the_card() -> None:
    assert spec_of(n_gpus=4).instance_type == "gpu.4gpu"
    assert spec_of(n_gpus=4, instance_type="a100.8gpu").instance_type == "a100.8gpu"


@pytest.mark.parametrize("wrong", [-1, True, "4"])
def test_n_gpus_is_a_number(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="n_gpus"):
        Job(script="train.py", n_gpus=wrong)


def test_forbid_internet_is_internet_the_other_way_round() -> None:
    assert spec_of(forbid_internet=True).internet is False
    assert spec_of(forbid_internet=False).internet is True
    assert spec_of(forbid_internet=True, internet=True).internet is True


def test_a_warm_cache_can_t_be_had() -> None:
    with pytest.raises(NotSupported, match="warm_cache=True"):
        Job(script="train.py", warm_cache=True)


def test_job_type_has_the_platform_s_names_and_the_refused_ones_say_why() -> None:
    assert Job(script="sleep 1", type=Job.Type.binary).spec.type == "binary"
    assert f"{Job.Type.pytorch2}" == "pytorch2"
    with pytest.raises(InvalidRequest, match="type='horovod': does not run here"):
        Job(script="train.py", type=Job.Type.horovod)


# --- words of a command line


@given(
    st.lists(
        st.text(string.ascii_letters + "-=.", min_size=1)
        | st.integers()
        | st.integers(min_value=10**400, max_value=10**1000)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.fractions()
        | st.builds(PurePosixPath, st.text(string.ascii_letters + "/", min_size=1)),
        max_size=8,
    )
)
def test_numbers_and_paths_are_words_by_their_text(args: list[object]) -> None:
    spec = Job(script="train.py", args=args)._spec
    assert spec.args == [str(value) for value in args]
    assert changed(spec, {"args": args}).args == spec.args


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, float("nan"), float("inf"), ["--lr"], {"lr": 1}, b"x", object()),
        *(10**5000, -(10**5000), Fraction(10**5000, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_whose_word_would_be_a_guess_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"args.1=.* is no word of a command line") as refused:
        Job(script="train.py", args=["--lr", value])
    assert "numbers or paths" in (refused.value.hint or "")
