"""Each field of the spec on a cluster: honoured, refused by name, or named in a notice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import InvalidRequest, NeverFits, NotSupported, TooLarge, Unavailable
from client_lib.launcher_protocol.plan import WorkerPlan, from_json
from client_lib.spec.request import CodeInPlace, Submitter
from server_stub.runtimes.fields import FIELDS
from server_stub.runtimes.kube.catalogue import Needs
from server_stub.runtimes.kube.render import storage
from tests.kube.cases import CLUSTER, GPUS, SMALL, VOLUMES, Builder, Case, cluster_with


def of(catalogue: str = GPUS, **spec: Any) -> Case:
    return Builder(catalogue, spec=spec).build("job")


def needed(**spec: Any) -> Needs:
    made = of(**spec)
    return made.catalogue.needs(made.attempt.spec)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("warm", True),
        ("region", "SR006"),
        ("allocation_name", "mine"),
        ("elastic_min_workers", 1),
        ("elastic_max_workers", 4),
        ("elastic_max_restarts", 2),
        ("logs_dir", "/home/jovyan/logs"),
    ],
)
def test_what_means_nothing_is_named_once(field: str, value: Any) -> None:
    (notice,) = of(**{field: value}).notices()
    assert notice.startswith(f"{field}={value!r} has no effect here: ")


@pytest.mark.parametrize("field", sorted(name for name, row in FIELDS.items() if row.kubernetes))
def test_what_is_not_asked_for_is_not_named(field: str) -> None:
    spec: dict[str, Any] = {
        field: "default" if field in ("elastic_min_workers", "elastic_max_workers") else None
    }
    assert of(**spec).notices() == []


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"type": "pytorch_elastic", "script": "echo hi"}, "'pytorch_elastic' starts a .py file"),
        ({"gpus": [0]}, r"gpus=\[0\] chooses among the GPUs of one machine"),
        (
            {"queue_name": "team"},
            "queue_name='team': no Kueue of this cluster takes PyTorchJobs of namespace",
        ),
        ({"env_variables": {"MASTER_ADDR": "x"}}, "MASTER_ADDR can't be given on a cluster"),
        ({"secrets": ["MASTER_PORT"]}, "MASTER_PORT can't be given on a cluster"),
    ],
)
def test_what_a_cluster_can_not_do_is_refused_by_name(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(NotSupported, match=sentence) as caught:
        of(**spec).notices()
    assert caught.value.hint


def test_whether_a_queue_may_be_named_is_asked_again_while_it_is_not_known() -> None:
    def notices(kueue: bool | None) -> list[str]:
        return (
            replace(Builder(spec={"queue_name": "team"}), cluster=replace(CLUSTER, kueue=kueue))
            .build("x")
            .notices()
        )

    notices(True)
    with pytest.raises(Unavailable, match="queue_name='team': the server is asking"):
        notices(None)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"instance_type": "a100.3gpu"},
            "unknown; this server has: cpu.8C.32G, a100.1gpu, a100.8gpu, h100.8gpu",
        ),
        ({"tmp_storage": "tiny"}, "tmp_storage='tiny' is unknown; this server has: default, small"),
        ({"volumes": ["nfs:/data"]}, "volume 'nfs' is unknown; this server has: home, datasets"),
        ({"volumes": ["datasets"]}, "not of the form name:/path"),
        (
            {"volumes": ["datasets:/home/jovyan"]},
            "volumes 'datasets' and 'home' are both at /home/jovyan",
        ),
        ({"volumes": ["datasets:/client-lib/run"]}, "can't be mounted at /client-lib/run"),
        ({"volumes": ["datasets:/"]}, "can't be mounted at /"),
        ({"volumes": ["datasets:/data/../etc"]}, "can't be mounted at"),
        ({"volumes": ["datasets:/lib64"]}, "can't be mounted at"),
        ({"volumes": ["datasets:/sbin/tools"]}, "can't be mounted at"),
        ({"volumes": ["datasets:/var/run/secrets/mine"]}, "can't be mounted at"),
        ({"volumes": ["datasets:/tmp"], "tmp_storage": "small"}, "can't be mounted at /tmp"),
    ],
)
def test_a_value_that_this_cluster_does_not_have_is_refused(
    spec: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        of(**spec).notices()


def test_outputs_are_kept_where_pods_reach_the_server() -> None:
    assert order(of(outputs=["*.bin"])).outputs == ["*.bin"]
    assert order(of()).outputs == ["**"]
    assert order(Builder(GPUS, code=CodeInPlace()).build("x")).outputs == []
    far = Builder(GPUS, cluster=cluster_with(worker_server_url=None))
    assert order(far.build("x")).outputs == []
    with pytest.raises(NotSupported, match="can't be kept: pods don't reach this server"):
        replace(far, spec={"outputs": ["*.bin"]}).build("x").notices()


def test_elastic_workers_need_a_server_that_decides_who_goes_on() -> None:
    elastic = Builder(
        GPUS, spec={"type": "pytorch_elastic", "n_workers": 2, "elastic_min_workers": 1}
    )
    assert elastic.build("x").notices() == []
    with pytest.raises(NotSupported, match="needs a server that pods reach"):
        replace(elastic, cluster=cluster_with(worker_server_url=None)).build("x").notices()


def test_the_checkpoints_of_the_job_before_are_found_on_the_volume_that_they_are_on() -> None:
    before = Path("/data/jobs") / ("5c6d7e8f" * 4) / "checkpoints"

    def plan_of(made: Case) -> tuple[str | None, str | None]:
        again = replace(made, attempt=replace(made.attempt, checkpoints_from=before))
        return order(again).checkpoints_from, storage.not_handed_on(again.attempt, again.catalogue)

    by_owner = Builder(SMALL + VOLUMES)
    assert plan_of(replace(by_owner, parent="before").build("x")) == ("/models/*-5c6d7e8f", None)
    assert "submitted to an earlier version of the server; submit it again" in (
        plan_of(by_owner.build("x"))[1] or ""
    )

    assert plan_of(of()) == (f"{order(of()).checkpoint_dir.rpartition('/')[0]}/*-5c6d7e8f", None)
    assert plan_of(of(checkpoint_dir="/home/jovyan/mine")) == (None, None)
    assert order(of()).checkpoints_from is None
    nowhere, why = plan_of(Builder().build("x"))
    assert (nowhere, (why or "")[:31]) == (None, "no checkpoints are handed on: t")


def test_checkpoints_of_another_job_need_a_volume_that_keeps_them() -> None:
    assert Builder(SMALL + VOLUMES, spec={"checkpoint_from": "before"}).build("x").notices() == []
    with pytest.raises(NotSupported, match="checkpoints end with their pods"):
        Builder(spec={"checkpoint_from": "before"}).build("x").notices()


def test_requirements_travel_in_the_plan() -> None:
    assert order(of(requirements=["einops>=0.8"])).requirements == ["einops>=0.8"]


def order(of: Case) -> WorkerPlan:
    return from_json(of.objects().own["plan"]["data"]["plan.json"])


def test_an_image_and_an_instance_type_must_come_from_somewhere() -> None:
    bare = "instance_types: [{name: cpu.2C.8G, cpu: 2, memory_gib: 8}]"
    with pytest.raises(InvalidRequest, match=r"instance_type is missing.* it has: cpu\.2C\.8G"):
        of(bare).notices()
    with pytest.raises(InvalidRequest, match="base_image is missing"):
        of(bare, instance_type="cpu.2C.8G").notices()


def test_a_relative_path_needs_a_folder_to_start_from() -> None:
    with pytest.raises(InvalidRequest, match="is relative"):
        Builder(code=CodeInPlace(), submitter=Submitter()).build("x").notices()


def test_more_workers_than_a_job_may_have_never_fit() -> None:
    with pytest.raises(NeverFits, match=r"a job may have 16 workers of a100\.8gpu") as caught:
        of(instance_type="a100.8gpu", n_workers=17).notices()
    assert caught.value.hint == "the largest that fits: n_workers=16"


def test_a_spec_that_no_config_map_holds_is_refused() -> None:
    with pytest.raises(TooLarge, match="the job spec has 8"):
        of(args=["x" * 1000] * 800).notices()


def test_a_node_keeps_its_reserve_and_as_many_workers_fit_as_its_size_says() -> None:
    whole, eighth = needed(instance_type="a100.8gpu"), needed(instance_type="a100.1gpu")
    assert (whole.cpu_m, whole.memory_mib) == (124_000, 992 * 1024)
    assert 8 * eighth.cpu_m <= whole.cpu_m
    assert 8 * eighth.memory_mib <= whole.memory_mib


def test_processes_default_to_the_gpus_and_nogpu_takes_none() -> None:
    assert needed(instance_type="a100.8gpu").processes == 8
    assert needed(instance_type="cpu.8C.32G").processes == 1
    assert needed(instance_type="a100.8gpu", processes_per_worker=3).processes == 3
    on_cpu = needed(instance_type="a100.8gpu", type="nogpu")
    assert (on_cpu.gpus, on_cpu.processes) == (0, 1)
    assert "the job runs on the CPU" in of(instance_type="a100.8gpu", type="nogpu").notices()[0]


@pytest.mark.parametrize(
    ("spec", "gib", "cut"),
    [
        ({"instance_type": "cpu.8C.32G"}, 8, False),  # a quarter without GPUs
        ({"instance_type": "cpu.8C.32G", "shm_size_class": "small"}, 16, False),
        ({"instance_type": "cpu.8C.32G", "shm_size_class": "large"}, 16, True),  # at most half
        ({"instance_type": "a100.1gpu"}, 32, False),
        ({"instance_type": "a100.8gpu", "shm_size_class": "small"}, 128, False),
        ({"instance_type": "a100.8gpu", "shm_size_class": "large"}, 496, True),
    ],
)
def test_shared_memory_counts_in_the_memory(spec: dict[str, Any], gib: int, cut: bool) -> None:
    assert needed(**spec).shm_mib == gib * 1024
    assert any("shm_size_class" in notice for notice in of(**spec).notices()) is cut


def test_names_are_read_by_pattern_only_where_the_catalogue_says_so() -> None:
    made = of()
    by_pattern = made.catalogue.model_copy(update={"by_pattern": True})
    with pytest.raises(InvalidRequest):
        made.catalogue.find("a100.4gpu")
    half = by_pattern.find("a100.4gpu")
    assert (half.gpus, half.cpu, half.memory_gib, half.node) == (4, 64, 512, "dgx")
    told = by_pattern.find("cpu.2C.4G")
    assert (told.cpu, told.memory_gib) == (2, 4)
    with pytest.raises(InvalidRequest):
        by_pattern.find("v100.1gpu")


def test_a_priority_class_without_a_match_is_named_only_when_it_was_asked_for() -> None:
    assert of(SMALL).notices() == [
        "checkpoints end with their pod: this server's catalogue names no volume for them"
    ]
    assert (
        "priority_class='high' has no effect here" in of(SMALL, priority_class="high").notices()[0]
    )
    assert of(priority_class="high").notices() == []


@pytest.mark.parametrize(
    ("directory", "notices"),
    [("/home/jovyan/ckpt", 0), ("/home/jovyan2/ckpt", 1), ("/datasets/c", 1), (None, 0)],
)
def test_a_checkpoint_that_ends_with_its_pod_is_said(directory: str | None, notices: int) -> None:
    assert len(of(checkpoint_dir=directory, volumes=["datasets:/datasets"]).notices()) == notices


def test_checkpoints_are_one_folder_of_a_job_over_its_attempts() -> None:
    folders = {
        from_json(
            Builder(GPUS, number=n).build("job").objects().own["plan"]["data"]["plan.json"]
        ).checkpoint_dir
        for n in (1, 2)
    }
    assert folders == {"/home/jovyan/job-3f2a3f2a"}


@pytest.mark.parametrize(("path", "mounts"), [("/home/jovyan/kept", 1), ("/kept", 2)])
def test_the_volume_of_the_checkpoints_is_mounted_where_it_is_not_yet(
    path: str, mounts: int
) -> None:
    catalogue = GPUS.replace(
        "{volume: home, path: /home/jovyan}", f"{{volume: home, path: {path}}}"
    )
    pod = (
        of(catalogue)
        .objects()
        .workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    )
    assert (
        sum(mount["name"].startswith("volume-") for mount in pod["containers"][0]["volumeMounts"])
        == mounts
    )


def test_a_command_that_starts_once_per_gpu_is_named() -> None:
    command = {"script": "nvidia-smi", "type": "binary", "instance_type": "a100.8gpu"}
    assert "the command is started 8 times on each worker" in of(**command).notices()[0]
    assert of(**command, processes_per_worker=1).notices() == []


@pytest.mark.parametrize(
    "image", ["cr.ai.cloud.ru/aicloud-base-images/cuda12.1:1", "other.example/x:1"]
)
def test_an_image_is_pulled_from_where_the_catalogue_says(image: str) -> None:
    made = of(base_image=image)
    container = made.objects().workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"][
        "spec"
    ]["containers"][0]
    moved = image.startswith("cr.ai")
    assert container["image"] == ("registry.example.com/base/cuda12.1:1" if moved else image)
    assert any("is pulled as" in notice for notice in made.notices()) is moved


def test_without_internet_the_server_must_be_known() -> None:
    outside = cluster_with(worker_server_url="https://train.example.com")
    with pytest.raises(
        NotSupported, match=r"NetworkPolicy knows no name such as train\.example\.com"
    ):
        Builder(cluster=outside, spec={"internet": False}).build("x").notices()
    told = SMALL + "network: {server: [{ip_block: 10.0.0.9/32}]}"
    Builder(told, cluster=outside, spec={"internet": False}).build("x").notices()


@pytest.mark.parametrize(("env", "python"), [(None, "python3"), ("base", "/opt/conda/bin/python")])
def test_the_python_is_the_images_own(env: str | None, python: str) -> None:
    objects = of(conda_env=env).objects()
    assert from_json(objects.own["plan"]["data"]["plan.json"]).python == python


def test_a_conda_environment_may_be_given_by_its_path() -> None:
    objects = of(conda_env="/data/envs/mine").objects()
    assert (
        from_json(objects.own["plan"]["data"]["plan.json"]).python == "/data/envs/mine/bin/python"
    )
