"""An operator's file is read whole, or refused with a sentence that says where it is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from server_stub.runtimes.kube.catalogue.file import load, read
from tests.kube.cases import GPUS

ONE = "instance_types: [{name: a.1gpu, cpu: 1, memory_gib: 2%s}]\n"


def test_the_example_of_the_documentation_is_read() -> None:
    names = [shown.name for shown in read(GPUS).shown()]
    assert names == ["cpu.8C.32G", "a100.1gpu", "a100.8gpu", "h100.8gpu"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is no table with `instance_types`"),
        ("- a", "it is no table with `instance_types`"),
        ("a: [", "it is not valid YAML"),
        ("a: 2026-02-30", "it is not valid YAML: day is out of range for month"),
        ("instance_types: []", "at least 1 item"),
        ("instance_types: [{name: a}]", "'a' needs cpu and memory_gib"),
        (ONE % "" + "image: {}", "unknown field 'image'; did you mean 'images'"),
        (ONE % ", cpus: 2", "unknown field 'instance_types.0.cpus'; did you mean 'cpu'"),
        (ONE % ", cpu: 3", "'cpu' stands there twice"),
        (ONE % ", disk_gib: .inf", "disk_gib=inf: input should be a finite number"),
        (
            "instance_types: [{name: a, cpu: .inf, memory_gib: 2}]",
            "cpu=inf: input should be a finite number",
        ),
        (ONE % ", node: big", "node='big' is none of its nodes (it has none)"),
        (
            ONE % ", node_selector: {gpu: true}",
            r"node_selector.gpu=True: input should be a valid string",
        ),
        (ONE % ", node_selector: {'a b': x}", "'a b' is not a key for labels"),
        (ONE % ", extra_resources: {rdma/hca: lots}", "'lots' is not a quantity"),
        (
            ONE % ", capabilities: [IPC_LOCK]",
            "pod_security=restricted does not admit the capability IPC_LOCK",
        ),
        (ONE % ", pod_template: {specs: {}}", "a pod template has metadata and spec"),
        (ONE % ", pod_template: {spec: 1}", "spec is no table"),
        (
            ONE % ", pod_template: {spec: {restartPolicy: Always}}",
            "restartPolicy is the operator's",
        ),
        (ONE % ", pod_template: {spec: {containers: {}}}", "containers is no list"),
        (
            ONE % ", pod_template: {spec: {containers: [{name: proxy}]}}",
            "not named 'worker', the container of the ranks; a helper beside it belongs in",
        ),
        (
            ONE % ", pod_template: {spec: {containers: [{name: worker, command: [x]}]}}",
            "the container 'worker' has command, which is the job's or this server's own",
        ),
        (ONE % ", tolerations: [{operator: Equal}]", "needs a key, or operator: Exists"),
        (ONE % ", tolerations: [{operator: Exists, value: x}]", "Exists takes no value"),
        (
            ONE % ", tolerations: [{operator: Exists, toleration_seconds: 5}]",
            "is for effect: NoExecute",
        ),
        (ONE % "}, {name: a.1gpu, cpu: 1, memory_gib: 2", "instance_types lists 'a.1gpu' twice"),
        (
            ONE % "" + "defaults: {instance_type: b}",
            "defaults.instance_type='b' is none of its instance_types (a.1gpu)",
        ),
        (ONE % "" + "user: {run_as_user: 0}", "run_as_user=0 is root"),
        (
            ONE % "" + "volumes: [{name: h, claim: Home}]",
            "'Home' is not a name for a Kubernetes object",
        ),
        (
            ONE % "" + "volumes: [{name: h, claim: h, always: data}]",
            "'data' is not the absolute path of a folder",
        ),
        (
            ONE % "" + "checkpoints: {volume: h, path: /c}",
            "checkpoints.volume='h' is none of its volumes (it has none)",
        ),
        (
            ONE % ""
            + "volumes: [{name: h, claim: h, users: [ann]}]\ncheckpoints: {volume: h, path: /c}",
            "checkpoints.volume='h' is for some users alone, and all jobs have checkpoints",
        ),
        (
            ONE % "" + "volumes: [{name: h, claim: h, always: /h, users: [ann]}]\nuser: {home: /h}",
            (
                "user.home='/h' is on no volume that is always mounted, for all users, and can be "
                "written to"
            ),
        ),
        (ONE % "" + "volumes: [{name: h, claim: h, mount: job}]", "mount='job'"),
        (
            ONE % ""
            + "volumes: [{name: h, claim: h, read_only: true}]\ncheckpoints: {volume: h, path: /c}",
            "checkpoints.volume='h' is read_only",
        ),
        (
            ONE % ""
            + "volumes: [{name: a, claim: a, always: /d}, {name: b, claim: b, always: /d}]",
            "two volumes are always mounted at /d",
        ),
        (
            ONE % "" + "volumes: [{name: h, claim: h, always: /dev/shm}]",
            "can't be mounted at /dev/shm",
        ),
        (
            ONE % "" + "user: {home: /home/me}",
            "user.home='/home/me' is on no volume that is always mounted",
        ),
        (
            ONE % "" + "nodes: [{name: n, cpu: 2, memory_gib: 2, reserve: {cpu: 2}}]",
            "'n' reserves all that it has",
        ),
        (
            ONE % ", node: n" + "nodes: [{name: n, cpu: 0.5, memory_gib: 2}]",
            "'a.1gpu' is larger than its node 'n'",
        ),
        (ONE % "" + "network: {dns: [{ip_block: 1.2.3}]}", "'1.2.3' does not appear to be"),
        (
            ONE % "" + "network: {allow: [{to: [{}]}]}",
            "needs either ip_block, or pods and namespaces",
        ),
        (ONE % "" + "priority_classes: {urgent: x}", "priority_classes.urgent"),
        (ONE % ", together: my zone", "'my zone' is not a key for labels"),
        (
            ONE % ", together: zone, spread: zone",
            "'a.1gpu' has zone as together and as spread, which exclude each other",
        ),
    ],
)
def test_what_is_wrong_in_it_is_said(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(text)
    assert sentence in caught.value.message


def test_every_error_is_told_with_its_line() -> None:
    text = """
images: {defalt: x}
instance_types:
  - {name: a, cpu: 1, memory_gib: 2}
  - <<: {memory_gib: 2}
    name: b
    cpu: -1
    node_selector:
      gpu: true
"""
    with pytest.raises(InvalidRequest) as caught:
        read(text)
    assert sorted(line.partition("=")[0] for line in caught.value.message.splitlines()) == [
        "line 2: unknown field 'images.defalt'; did you mean 'default'?",
        "line 7: instance_types.1.cpu",
        "line 9: instance_types.1.node_selector.gpu",
    ]


def test_every_contradiction_is_told() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(
            ONE % ", node: big" + "defaults: {instance_type: b}\ncheckpoints: {volume: h, path: /c}"
        )
    assert len(caught.value.message.splitlines()) == 3


def test_relaxed_pod_security_admits_what_restricted_does_not() -> None:
    text = ONE % ", capabilities: [IPC_LOCK]" + "user: {run_as_user: 0}"
    assert read(text + "\npod_security: privileged").instance_types[0].capabilities == ["IPC_LOCK"]
    with pytest.raises(
        InvalidRequest, match="pod_security=baseline does not admit the capability IPC_LOCK"
    ):
        read(text + "\npod_security: baseline")


def test_a_file_is_named_in_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.yaml"
    with pytest.raises(InvalidRequest, match=f"the catalogue {file} can't be read: .*No such file"):
        load(file)
    file.write_text("instance_types: []")
    with pytest.raises(
        InvalidRequest, match=f"the catalogue {file}: line 1: instance_types="
    ) as caught:
        load(file)
    assert caught.value.code == "invalid_request"
    assert caught.value.hint == "docs/catalogue.md describes all entries"
    file.write_text(ONE % "" + "by_pattern: true\n")
    assert load(file).by_pattern


def test_a_server_without_a_catalogue_is_told_where_an_example_is() -> None:
    with pytest.raises(InvalidRequest, match="needs a catalogue") as caught:
        load(None)
    assert caught.value.hint == "docs/catalogue.md has an example"


def test_a_server_does_not_start_with_a_catalogue_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.yaml"
    file.write_text(ONE % ", cpus: 2")
    variables = {
        "CLIENT_LIB_SERVER_RUNTIME": "kubernetes",
        "CLIENT_LIB_SERVER_CATALOGUE": str(file),
    }
    command = [sys.executable, "-m", "server_stub", "--state-dir", str(tmp_path / "state")]
    ended = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    said = (
        f"the catalogue {file}: line 1: unknown field 'instance_types.0.cpus'; did you mean 'cpu'?"
    )
    assert ended.stderr.splitlines() == [
        f"Error: {said}",
        "docs/catalogue.md describes all entries",
    ]
