"""A real kubelet starts a pod of the template, in a `restricted` namespace:
what a process finds in it.
"""

import json
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.kube.cases import TOKEN, Builder
from tests.kube.test_real_api import PATHS, pod, templates

CATALOGUE = """
defaults: {instance_type: small}
images: {default: "localhost/python:local", pull_policy: Never}
instance_types:
  - {name: small, cpu: 0.2, memory_gib: 0.25}
"""
LOOK = """
import getpass, json, os, stat
def writes(folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "written"), "w") as file:
        file.write("x")
    return True
token = "/client-lib/secret/token"
caches = {k: v for k, v in os.environ.items() if k.endswith(("_HOME", "_DIR", "CONFIGDIR"))}
folders = ("/client-lib/run", "/client-lib/run/log", "/dev/shm", "/tmp")
print(json.dumps({
    "user": getpass.getuser(),
    "uid": os.getuid(),
    "home": os.path.expanduser("~"),
    "caches": {k: writes(folder) for k, folder in caches.items()},
    "folders": [writes(folder) for folder in folders],
    "token": open(token).read(),
    "token_of_others": bool(stat.S_IMODE(os.stat(token).st_mode) & 0o007),
    "shm_mib": (lambda s: s.f_blocks * s.f_frsize >> 20)(os.statvfs("/dev/shm")),
    "variables": dict(os.environ),
    "account": os.path.exists("/var/run/secrets/kubernetes.io"),
    "plan": json.load(open("/client-lib/plan/plan.json"))["job"],
    "launcher": open("/client-lib/launcher/worker.pyz").read(),
}))
"""

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def seen(cluster: Cluster) -> dict[str, Any]:
    """What a process of the pod saw."""
    spec = {"processes_per_worker": 2, "env_variables": {"SOME_KEY": "a$(HOME)b"}, "grace_s": 0}
    objects = Builder(CATALOGUE, spec=spec).build("look").objects()
    for made in [objects.launcher, *objects.own.values()]:
        cluster.api.create(PATHS[made["kind"]].format("jobs"), made)
    looking = pod(templates(objects.workload)[0])
    looking["spec"]["containers"][0]["command"] = ["python3", "-c", LOOK]
    path = PATHS["Pod"].format("jobs")
    cluster.api.create(path, looking)
    status: dict[str, Any] = {}
    for _ in until(120, pause_s=0.2):
        status = cluster.api.get(f"{path}/of-the-template")["status"]
        if status.get("phase") in ("Succeeded", "Failed"):
            break
    text = cluster.api.get(f"{path}/of-the-template/log")
    assert status.get("phase") == "Succeeded", (status, text)
    found: dict[str, Any] = text if isinstance(text, dict) else json.loads(text)
    return found


def test_a_user_that_the_image_does_not_know_has_a_name_a_home_and_caches(
    seen: dict[str, Any],
) -> None:
    assert (seen["user"], seen["uid"], seen["home"]) == ("user", 1000, "/client-lib/home")
    assert {"HF_HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"} <= seen["caches"].keys()


def test_what_must_be_written_to_can_be_and_the_token_is_the_agents(seen: dict[str, Any]) -> None:
    assert all(seen["folders"])
    assert seen["token"] == TOKEN
    assert not seen["token_of_others"]
    assert TOKEN not in seen["variables"].values()
    assert not seen["account"]


def test_shared_memory_has_the_size_that_was_promised(seen: dict[str, Any]) -> None:
    assert seen["shm_mib"] == 64  # a quarter of 256 MiB


def test_secret_variables_arrive_as_they_were_given(seen: dict[str, Any]) -> None:
    """Kubernetes expands `$(NAME)` in a value of `env`, and not in one of a Secret."""
    assert seen["variables"]["SOME_KEY"] == "a$(HOME)b"
    assert seen["variables"]["CLIENT_LIB_POD_NAME"] == "of-the-template"
    assert len(seen["variables"]["CLIENT_LIB_POD_UID"]) == 36


def test_the_plan_and_the_launcher_lie_where_the_command_looks(seen: dict[str, Any]) -> None:
    assert (seen["plan"], seen["launcher"]) == ("look", "zipapp")
