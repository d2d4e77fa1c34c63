"""Names that every part of Kubernetes takes, and that lead back to the job."""

import re
import uuid
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from client_lib.spec.command_line import NAME_MAX
from client_lib.spec.job import WORKERS_MAX
from server_stub.runtimes.kube import names, pytorchjob
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
JOB_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", fullmatch=True)


@given(JOB_NAMES, st.integers(1, 101))
def test_all_names_of_an_attempt_are_labels(job: str, attempt: int) -> None:
    name = names.object_name(job, attempt)
    assert len(name) <= NAME_MAX
    mounted = names.mounted_name(name, uuid.uuid4().hex)
    assert LABEL.fullmatch(mounted)
    made = [name + names.POLICY]
    # as the operator names them
    pods = [f"{name}-master-0", f"{name}-worker-0", f"{name}-worker-{WORKERS_MAX - 1}"]
    for each in [name, *pods, *made]:
        assert LABEL.fullmatch(each), each


@given(JOB_NAMES, st.integers(1, 101), st.integers(1, 101))
def test_two_attempts_have_two_names(job: str, one: int, other: int) -> None:
    assert (names.object_name(job, one) == names.object_name(job, other)) is (one == other)


@given(JOB_NAMES, st.integers(1, 101), st.text(min_size=1), st.text(min_size=1))
def test_two_owners_of_one_name_have_names_apart(
    job: str, attempt: int, one: str, other: str
) -> None:
    plain, marked, another = (
        names.object_name(job, attempt, owner) for owner in (None, one, other)
    )
    assert len(marked) <= NAME_MAX
    assert LABEL.fullmatch(marked)
    assert plain not in (marked, another)
    assert (marked == another) is (one == other)


def test_the_first_attempt_is_called_as_the_job() -> None:
    assert names.object_name("train-7", 1) == "train-7"
    assert re.fullmatch(r"train-7-[0-9a-f]{4}-r2", names.object_name("train-7", 2))


def test_a_long_name_keeps_42_characters_in_later_attempts() -> None:
    name = names.object_name("a" * 50, 2)
    assert re.fullmatch(r"a{42}-[0-9a-f]{4}-r2", name)
    assert names.object_name("a" * 49 + "b", 2) != name


def test_a_launcher_is_named_by_its_bytes() -> None:
    assert (
        names.launcher_name(b"one", "0af")
        == names.launcher_name(b"one", "0af")
        != names.launcher_name(b"two", "0af")
    )


def test_a_launcher_has_few_owners_among_a_thousand_jobs() -> None:
    owners = Counter(names.launcher_name(b"one", uuid.uuid4().hex) for _ in range(1000))
    assert max(owners.values()) < 20
    assert len(owners) <= 256


@pytest.mark.parametrize(
    ("labels", "worker"),
    [
        ({pytorchjob.REPLICA_TYPE: "master", pytorchjob.REPLICA_INDEX: "0"}, 0),
        ({pytorchjob.REPLICA_TYPE: "worker", pytorchjob.REPLICA_INDEX: "0"}, 1),
        ({pytorchjob.REPLICA_TYPE: "worker", pytorchjob.REPLICA_INDEX: "11"}, 12),
        (
            {
                pytorchjob.REPLICA_TYPE: "worker",
                pytorchjob.REPLICA_INDEX: "0",
                pytorchjob.ELASTIC: "true",
            },
            0,
        ),
        (
            {
                pytorchjob.REPLICA_TYPE: "worker",
                pytorchjob.REPLICA_INDEX: "3",
                pytorchjob.ELASTIC: "true",
            },
            3,
        ),
        ({}, None),
        ({pytorchjob.REPLICA_TYPE: "ps", pytorchjob.REPLICA_INDEX: "0"}, None),
        ({pytorchjob.REPLICA_TYPE: "worker", pytorchjob.REPLICA_INDEX: "x"}, None),
    ],
)
def test_a_pod_tells_which_worker_it_is(labels: dict[str, str], worker: int | None) -> None:
    assert PYTORCHJOB.worker_of(labels) == worker


@given(st.text(max_size=80), st.text(max_size=80))
def test_every_text_becomes_a_value_of_a_label_of_its_own(text: str, other: str) -> None:
    value = names.label_value(text)
    assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value)
    assert (value == names.label_value(other)) == (text == other)


def test_a_pod_tells_its_owner_its_team_and_what_the_operator_lets_jobs_say() -> None:
    job = {"project": "née", "step": 3, "client-lib.io/owner": "eve", "secret": "x"}
    found = names.costs("ann@lab.example", None, job, ["project", "step", "missing", names.OWNER])
    assert found == {
        "project": f"n_e-{names._hex('née')[:8]}",
        "step": "3",
        names.OWNER: f"ann_lab.example-{names._hex('ann@lab.example')[:8]}",
    }
    assert names.costs("ann", "vision", {}, []) == {names.OWNER: "ann", names.TEAM: "vision"}


def test_labels_lead_back_to_the_attempt_and_those_of_others_do_not() -> None:
    ours = names.labels("0af", 3, "train")
    assert names.attempt_of(ours) == names.AttemptKey("0af", 3)
    for other in (
        {},
        {**ours, names.MANAGED_BY: "Helm"},
        {**ours, names.ATTEMPT: "x"},
        {**ours, names.JOB_ID: ""},
    ):
        assert names.attempt_of(other) is None
