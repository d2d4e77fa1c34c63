"""Whole manifests as files, and what holds for every manifest."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from client_lib.errors import TooLarge
from client_lib.launcher_protocol.plan import from_json
from client_lib.spec.request import CodeInPlace, Submitter
from client_lib.spec.secrets import MASK
from server_stub.runtimes.kube import names, pytorchjob
from server_stub.runtimes.kube.render import CODE_MAX, masked, payload_files
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.runtimes.kube.workload import Object
from tests.kube.cases import (
    BUILDERS,
    GOLDEN,
    GOLDEN_TRAINJOB,
    GPUS,
    SMALL,
    TOKEN,
    Builder,
    Case,
    case,
    cluster_with,
    text,
    trainjob_text,
)

NAMES = sorted(BUILDERS)


@pytest.fixture(params=NAMES)
def each(request: pytest.FixtureRequest) -> Case:
    return case(request.param)


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_is_what_its_golden_file_says(name: str) -> None:
    """`python -m tests.kube.cases` writes new ones."""
    assert text(case(name).objects()) == (GOLDEN / f"{name}.yaml").read_text()
    assert (
        trainjob_text(case(name).objects(TRAINJOB))
        == (GOLDEN_TRAINJOB / f"{name}.yaml").read_text()
    )


def test_there_is_no_golden_file_without_a_case() -> None:
    for folder in (GOLDEN, GOLDEN_TRAINJOB):
        assert sorted(path.stem for path in folder.glob("*.yaml")) == NAMES


def test_the_same_attempt_is_rendered_the_same_twice_and_left_as_it_was(each: Case) -> None:
    before = each.attempt.spec.model_dump_json(), each.catalogue.model_dump_json()
    assert each.objects() == each.objects()
    assert (each.attempt.spec.model_dump_json(), each.catalogue.model_dump_json()) == before


def test_a_check_is_passed_by_what_is_rendered(each: Case) -> None:
    assert all(isinstance(notice, str) for notice in each.notices())


def test_no_two_parts_of_the_objects_share_a_value_that_someone_may_change(each: Case) -> None:
    """A runtime adds owners and versions to them."""
    seen: set[int] = set()
    for part in _containers(each.objects().workload):
        assert id(part) not in seen
        seen.add(id(part))


def _containers(value: Any) -> list[Any]:
    inner = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )
    return ([value] if isinstance(value, dict | list) else []) + [
        part for each in inner for part in _containers(each)
    ]


def test_the_launcher_is_shared_and_all_else_is_the_attempts_own(each: Case) -> None:
    objects = each.objects()
    assert objects.all()[0] is objects.launcher
    assert objects.all()[-1] is objects.workload
    attempt = names.AttemptKey(each.attempt.job_id, each.attempt.number)
    for own in [*objects.own.values(), objects.workload]:
        assert names.attempt_of(own["metadata"]["labels"]) == attempt
    assert names.attempt_of(objects.launcher["metadata"]["labels"]) is None


def test_every_pod_carries_what_it_is_found_by(each: Case) -> None:
    for template in templates(each):
        assert names.attempt_of(template["metadata"]["labels"]) == names.AttemptKey(
            each.attempt.job_id, each.attempt.number
        )
        assert template["spec"]["containers"][0]["name"] == "pytorch"
        assert "restartPolicy" not in template["spec"]


def test_the_operators_world_is_ours(each: Case) -> None:
    """It computes WORLD_SIZE as replicas x nprocPerNode, and its value wins in the container."""
    spec = each.objects().workload["spec"]
    replicas = sum(replica["replicas"] for replica in spec["pytorchReplicaSpecs"].values())
    for template in templates(each):
        variables = {v["name"]: v.get("value") for v in template["spec"]["containers"][0]["env"]}
        assert int(variables["WORLD_SIZE"]) == replicas * int(spec["nprocPerNode"])
        assert variables["LOCAL_RANK"] == "0"
        assert ("RANK" in variables) is ("elasticPolicy" in spec)


def test_elastic_workers_are_told_what_the_operator_tells_them_of_no_master() -> None:
    (template,) = templates(case("elastic"))
    variables = {
        variable["name"]: variable for variable in template["spec"]["containers"][0]["env"]
    }
    assert pytorchjob.REPLICA_INDEX in variables["RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert variables["MASTER_ADDR"]["value"] == "elastic-worker-0"
    run = case("elastic").objects().workload["spec"]["runPolicy"]
    assert "backoffLimit" not in run  # it would count the containers that are started again


def test_requests_are_limits_and_shared_memory_is_at_most_half(each: Case) -> None:
    if each.catalogue.instance_types[0].pod_template:
        return  # it may say something else
    for template in templates(each):
        resources = template["spec"]["containers"][0]["resources"]
        assert without_disk(resources["requests"]) == without_disk(resources["limits"])
        shm = next(v["emptyDir"] for v in template["spec"]["volumes"] if v["name"] == "shm")
        assert shm["medium"] == "Memory"
        assert 2 * gib(shm["sizeLimit"]) <= gib(resources["limits"]["memory"])


def without_disk(amounts: dict[str, str]) -> dict[str, str]:
    return {name: amount for name, amount in amounts.items() if name != "ephemeral-storage"}


def test_every_folder_of_a_pod_has_a_limit_and_all_of_them_fit_into_that_of_the_pod(
    each: Case,
) -> None:
    for template in templates(each):
        sizes = {
            v["name"]: v["emptyDir"]["sizeLimit"]
            for v in template["spec"]["volumes"]
            if "sizeLimit" in v.get("emptyDir", ())
        }
        resources = template["spec"]["containers"][0]["resources"]
        limit = gib(resources["limits"]["ephemeral-storage"])
        assert {"run", "log", "home", "shm"} <= set(sizes)
        assert limit >= gib(sizes["run"]) + gib(sizes["log"])
        assert 1 <= gib(resources["requests"]["ephemeral-storage"]) <= limit
        if "tmp" in sizes:
            assert (
                limit
                >= gib(sizes["run"])
                + gib(sizes["log"])
                + float(sizes["tmp"].removesuffix("G")) * 1e9 / 2**30
            )


def test_a_size_of_the_catalogue_is_requested_and_is_the_limit() -> None:
    small = replace(
        BUILDERS["one-worker"],
        catalogue=SMALL.replace("memory_gib: 8}", "memory_gib: 8, disk_gib: 49.5}"),
    )
    (template,) = templates(small.build("small"))
    resources = template["spec"]["containers"][0]["resources"]
    assert {resources[kind]["ephemeral-storage"] for kind in ("requests", "limits")} == {"51712Mi"}
    sizes = {
        v["name"]: v["emptyDir"]["sizeLimit"]
        for v in template["spec"]["volumes"]
        if "emptyDir" in v
    }
    assert (sizes["run"], sizes["home"], sizes["log"]) == ("50688Mi", "50688Mi", "1Gi")


def gib(quantity: str) -> float:
    return float(quantity[:-2]) / (1 if quantity.endswith("Gi") else 1024)


def test_every_mount_has_its_volume_and_every_volume_its_object(each: Case) -> None:
    objects = each.objects()
    there = {(made["kind"], made["metadata"]["name"]) for made in objects.all()}
    for template in templates(each):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        mounted = [mount["name"] for mount in template["spec"]["containers"][0]["volumeMounts"]]
        assert list(dict.fromkeys(mounted)) == [
            volume["name"] for volume in template["spec"]["volumes"]
        ]
        claims = [
            each["persistentVolumeClaim"]["claimName"]
            for each in volumes.values()
            if "persistentVolumeClaim" in each
        ]
        # a pod with one claim in two volumes may never start
        assert len(set(claims)) == len(claims)
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in there


def test_the_order_of_a_worker_is_read_by_the_launcher(each: Case) -> None:
    plan = from_json(each.objects().own["plan"]["data"]["plan.json"])
    assert (plan.job, plan.attempt, plan.worker) == (each.attempt.job_name, each.attempt.number, -1)


def test_the_sdks_own_environment_and_interpreter_stay_at_home() -> None:
    shown = text(case("one-worker").objects())
    assert "of-the-shell" not in shown
    assert "/venv" not in shown


def test_secret_values_are_in_secrets_alone_and_masked_where_they_are_shown() -> None:
    objects = case("gang").objects()
    for value in ("value-of-HF_TOKEN", "an-api-key", TOKEN):
        holders = {made["kind"] for made in objects.all() if value in json.dumps(made)}
        assert holders == {"Secret"}
        assert value not in json.dumps(masked(objects))
    assert [shown["stringData"] for shown in masked(objects) if shown["kind"] == "Secret"] == [
        {"token": MASK, "ca.crt": MASK},
        {"MY_API_KEY": MASK, "HF_TOKEN": MASK},
    ]


def test_the_token_is_no_variable_of_the_container() -> None:
    container = templates(case("gang"))[0]["spec"]["containers"][0]
    mounted = names.mounted_name("gang-3e17-r2", case("gang").attempt.job_id)
    assert container["envFrom"] == [{"secretRef": {"name": f"{mounted}-env"}}]
    assert all("secretKeyRef" not in json.dumps(variable) for variable in container["env"])


@pytest.mark.parametrize("name", ["gang", "function-out-of-reach"])
def test_a_pod_of_an_earlier_job_of_the_same_name_finds_nothing_to_mount(name: str) -> None:
    """An operator may make it once more when the later job exists."""
    later = case(name)
    earlier = replace(later, attempt=replace(later.attempt, job_id="0" * 32))
    made = [
        {
            (each["kind"], each["metadata"]["name"])
            for part, each in of.objects().own.items()
            if part != "policy"
        }
        for of in (earlier, later)
    ]
    assert made[0].isdisjoint(made[1])
    for _, mounted in made[1]:
        assert mounted not in json.dumps(templates(earlier))
        assert mounted in json.dumps(templates(later))


def test_what_is_shown_leaves_the_objects_alone_and_says_which_archive_it_is() -> None:
    objects = case("function-out-of-reach").objects()
    before = json.dumps(objects.all())
    shown = masked(objects)
    assert json.dumps(objects.all()) == before
    # as its name ends
    assert shown[0]["binaryData"]["worker.pyz"].startswith("6 bytes, sha256 98c4efa37268")


def test_a_retry_renders_the_same_but_for_its_name_and_number() -> None:
    first, second = (replace_number(number).objects().workload for number in (1, 2))
    assert first["metadata"]["name"] == "train"
    assert second["metadata"]["name"].startswith("train-")
    assert names.attempt_of(first["metadata"]["labels"]) != names.attempt_of(
        second["metadata"]["labels"]
    )


def replace_number(number: int) -> Case:
    return replace(BUILDERS["one-worker"], number=number).build("train")


def test_code_rides_in_a_config_map_only_where_pods_do_not_reach_the_server() -> None:
    near, far = case("one-worker"), case("function-out-of-reach")
    assert not payload_files(near.attempt, near.cluster)
    assert "code" not in near.objects().own
    assert payload_files(far.attempt, far.cluster)
    assert sorted(far.objects().own["code"]["binaryData"]) == ["function", "snapshot.tar.gz"]
    in_place = Builder(cluster=far.cluster, code=CodeInPlace()).build("x")
    assert not payload_files(in_place.attempt, in_place.cluster)


def test_code_that_no_config_map_holds_is_refused_with_the_way_out() -> None:
    far = cluster_with(worker_server_url=None)
    Builder(cluster=far, payload={"snapshot.tar.gz": bytes(CODE_MAX)}).build("x").objects()
    with pytest.raises(TooLarge, match="at most 700 KiB") as caught:
        Builder(cluster=far, payload={"snapshot.tar.gz": bytes(CODE_MAX + 1)}).build("x").objects()
    assert "worker_server_url" in (caught.value.hint or "")


def test_the_largest_code_and_the_largest_spec_fit_in_a_config_map() -> None:
    far = cluster_with(worker_server_url=None)
    spec = {"args": ["x" * 1000] * 690}
    objects = (
        Builder(cluster=far, payload={"snapshot.tar.gz": bytes(CODE_MAX)}, spec=spec)
        .build("x")
        .objects()
    )
    for made in (objects.own["code"], objects.own["plan"]):
        assert len(json.dumps(made)) < 2**20


def test_a_user_of_the_image_is_left_alone_where_the_setting_relaxes_the_level() -> None:
    pod = templates(case("rdma-privileged"))[0]["spec"]
    assert "runAsUser" not in pod["securityContext"]
    assert pod["containers"][0]["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}


@pytest.mark.parametrize("kept", ["env_variables", "secrets"])
def test_a_home_of_the_users_own_wins_and_keeps_its_caches(kept: str) -> None:
    value: Any = {"HOME": "/data/me"} if kept == "env_variables" else ["HOME"]
    container = templates(Builder(spec={kept: value}).build("x"))[0]["spec"]["containers"][0]
    variables = [variable["name"] for variable in container["env"]]
    assert "HOME" not in variables
    assert "HF_HOME" not in variables
    assert "USER" in variables


def test_a_home_on_a_volume_is_a_matter_of_the_catalogue() -> None:
    catalogue = GPUS.replace("  name: user", "  name: user\n  home: /home/jovyan")
    container = templates(Builder(catalogue).build("x"))[0]["spec"]["containers"][0]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["HOME"] == "/home/jovyan"
    assert "HF_HOME" not in variables


@pytest.mark.parametrize(
    ("url", "peer"),
    [
        ("http://10.1.2.3:8000", {"ipBlock": {"cidr": "10.1.2.3/32"}}),
        ("https://[fd00::1]", {"ipBlock": {"cidr": "fd00::1/128"}}),
        (
            "http://server.ns.svc.cluster.local",
            {"matchLabels": {"app.kubernetes.io/name": "client-lib-server"}},
        ),
    ],
)
def test_a_job_without_internet_reaches_the_server_wherever_it_is(
    url: str, peer: dict[str, Any]
) -> None:
    objects = (
        Builder(cluster=cluster_with(worker_server_url=url), spec={"internet": False})
        .build("x")
        .objects()
    )
    assert json.dumps(peer) in json.dumps(objects.own["policy"]["spec"]["egress"])


def test_the_catalogue_may_cut_every_job_off_that_does_not_ask() -> None:
    catalogue = GPUS.replace("network: ", "network:\n  internet: false ").replace(
        "internet: false  ", "internet: false"
    )
    directions = [
        Builder(catalogue, spec=spec).build("x").objects().own["policy"]["spec"]["policyTypes"]
        for spec in ({}, {"internet": True})
    ]
    assert directions == [["Ingress", "Egress"], ["Ingress"]]


def test_the_objects_are_plain_json(each: Case) -> None:
    shown = yaml.safe_load_all(text(each.objects()))
    assert list(shown) == json.loads(json.dumps(each.objects().all()))


VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(
    variables=st.dictionaries(st.from_regex(r"[A-Z_]{1,8}X", fullmatch=True), VALUES, max_size=4),
    args=st.lists(VALUES, max_size=3),
    workers=st.integers(1, 9999),
    processes=st.integers(1, 64),
    grace=st.floats(0, 3600),
)
def test_whatever_a_job_says_reaches_its_plan_unchanged(
    variables: dict[str, str], args: list[str], workers: int, processes: int, grace: float
) -> None:
    spec = {
        "args": args,
        "n_workers": workers,
        "processes_per_worker": processes,
        "env_variables": variables,
        "grace_s": grace,
    }
    objects = Builder(spec=spec, submitter=Submitter()).build("x").objects()
    plan = from_json(objects.own["plan"]["data"]["plan.json"])
    assert plan.command == ["src/train.py", *args]
    secret = objects.own.get("environment", {}).get("stringData", {})
    assert plan.environment | secret == variables
    assert objects.workload["spec"]["nprocPerNode"] == str(processes)
    replicas = objects.workload["spec"]["pytorchReplicaSpecs"]
    assert sum(replica["replicas"] for replica in replicas.values()) == workers
    template = replicas["Master"]["template"]["spec"]
    assert template["terminationGracePeriodSeconds"] >= grace


def templates(of: Case) -> list[Object]:
    return [
        replica["template"]
        for replica in of.objects().workload["spec"]["pytorchReplicaSpecs"].values()
    ]


def test_a_team_has_its_own_account_and_its_secrets_for_registries() -> None:
    catalogue = SMALL.replace("images: {", "images: {pull_secrets: [shared], ")
    catalogue = catalogue.replace("defaults: {", "defaults: {service_account: all, ")
    found = Builder(catalogue).build("train")
    team: dict[str, Any] = {
        "service_account": "vision",
        "pull_secrets": ("shared", "vision-registry"),
    }
    of_team = replace(found, attempt=replace(found.attempt, **team))
    for each, account, secrets in (
        (found, "all", ["shared"]),
        (of_team, "vision", ["shared", "vision-registry"]),
    ):
        (template,) = templates(each)
        assert template["spec"]["serviceAccountName"] == account
        assert [secret["name"] for secret in template["spec"]["imagePullSecrets"]] == secrets
