"""Users of one server see no files of each other on a volume, unless the
catalogue says `mount: whole`.
"""

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import assume, example, given, strategies as st

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube.catalogue.file import read
from server_stub.runtimes.kube.render import storage
from tests.kube.cases import SMALL, VOLUMES, Builder

OWNERS = st.text(max_size=120) | st.from_regex(
    r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,99}", fullmatch=True
)
ALWAYS = SMALL + "volumes: [{name: home, claim: home, always: /home/me%s}]\n"


def mounts(catalogue: str, owner: str = "ann", **fields: Any) -> dict[str, str | None]:
    """The folder of its volume at each path where a claim is mounted."""
    parent = fields.pop("parent", None)
    objects = Builder(catalogue, owner=owner, parent=parent, spec=fields).build("train").objects()
    pod = objects.workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    claims = {volume["name"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume}
    found = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] in claims]
    return {each["mountPath"]: each.get("subPath") for each in found}


@given(one=OWNERS, other=OWNERS)
@example(one="ann", other="Ann")
@example(one="ann", other="ann.")
@example(one="%41nn", other="Ann")
@example(one="A" * 60, other="A" * 59 + "B")
@example(one="", other="%%")
def test_no_two_users_share_a_folder(one: str, other: str) -> None:
    """The folders differ also on a volume that ignores case."""
    assume(one != other)
    first, second = storage.owner_folder(one).lower(), storage.owner_folder(other).lower()
    assert first != second
    assert first not in [str(each) for each in PurePosixPath(second).parents]


@given(owner=OWNERS)
@example(owner="..")
@example(owner="../../etc")
@example(owner="A" * 100)
def test_a_folder_of_a_user_is_one_that_kubernetes_takes(owner: str) -> None:
    above, name = storage.owner_folder(owner).split("/")
    assert above == "owners"
    assert name not in ("", ".", "..")
    assert name.isascii()
    assert name.isprintable()
    assert len(name) <= 255


@given(owner=OWNERS, name=st.from_regex(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", fullmatch=True))
def test_no_folder_of_a_job_is_one_of_a_user(owner: str, name: str) -> None:
    assert storage.job_folder(name, "3f2a" * 8) not in (storage.owner_folder(owner), "owners")


def test_usual_names_are_readable() -> None:
    assert [storage.owner_folder(name) for name in ("ann", "ann@corp.example", "Ann")] == [
        "owners/ann",
        "owners/ann@corp.example",
        "owners/%41nn",
    ]


def test_a_job_sees_a_folder_of_its_user_or_the_whole_volume_as_the_catalogue_says() -> None:
    volumes = ["scratch:/scratch", "datasets:/datasets", "team:/team", "models:/all"]
    assert mounts(SMALL + VOLUMES, volumes=volumes, checkpoint_dir="/all/mine") == {
        "/scratch": "jobs/owners/ann",
        "/datasets": None,
        "/team": None,
        "/all": "owners/ann",
    }
    assert mounts(ALWAYS % "") == {"/home/me": "owners/ann"}
    assert mounts(ALWAYS % ", mount: whole") == {"/home/me": None}
    assert mounts(ALWAYS % ", read_only: true, mount: owner") == {"/home/me": "owners/ann"}


def test_a_job_sees_its_own_checkpoints_and_those_that_it_begins_with() -> None:
    """The checkpoints lie in the folders of earlier versions of the server, which
    mounted the whole volume.
    """
    own = {"/models/train-3f2a3f2a": "train-3f2a3f2a"}
    assert mounts(SMALL + VOLUMES) == own
    assert mounts(SMALL + VOLUMES, parent="before") == own | {
        "/models/before-5c6d7e8f": "before-5c6d7e8f"
    }
    whole = VOLUMES.replace("claim: models", "claim: models, mount: whole")
    assert mounts(SMALL + whole, parent="before") == {"/models": None}


def test_checkpoints_on_a_volume_that_is_mounted_above_are_in_the_users_folder() -> None:
    catalogue = ALWAYS % "" + "checkpoints: {volume: home, path: /home/me/checkpoints}"
    assert mounts(catalogue, parent="before") == {"/home/me": "owners/ann"}


def test_a_volume_is_mounted_by_its_users_alone() -> None:
    bobs = Builder(SMALL + VOLUMES, owner="bob", spec={"volumes": ["team:/team"]}).build("x")
    assert bobs.notices() == []
    carls = replace(bobs, attempt=replace(bobs.attempt, owner="carl"))
    for refuse in (carls.notices, carls.objects):
        with pytest.raises(
            InvalidRequest,
            match="volume 'team' can't be mounted by jobs of carl: it is for ann, bob",
        ):
            refuse()
    assert mounts(ALWAYS % ", users: [ann]", owner="ann") == {"/home/me": "owners/ann"}
    assert mounts(ALWAYS % ", users: [ann]", owner="carl") == {}


@pytest.mark.parametrize(
    ("more", "shared"),
    [
        ("", False),
        (", mount: whole", True),
        (", read_only: true", True),
        (", mount: whole}, {name: own, claim: own, always: /home/me/proj", False),
    ],
)
def test_scripts_run_in_place_only_where_all_jobs_see_the_same_files(
    more: str, shared: bool
) -> None:
    claims = storage.claims(JobSpec(script="x.py"), "ann", read(ALWAYS % more))
    assert storage.is_shared("/home/me/proj/src", claims) is shared
    assert not storage.is_shared("/home/other", claims)
