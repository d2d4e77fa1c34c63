"""The pure parts and the command line's words: no root, no cluster, milliseconds."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import LAYERS, Cluster, cli, images, layers, network, oci, programs
from tests.cluster.commands import COMMANDS, Machine, argv
from tests.cluster.errors import ClusterError
from tests.cluster.places import Home
from tests.cluster.readiness import PROBES

ROOT = Path(__file__).parents[3]


def test_every_program_of_every_layer_has_a_place_a_command_and_a_probe() -> None:
    named = {name for names in LAYERS.values() for name in names}
    assert named == set(layers.ORDER) == set(COMMANDS) == set(PROBES)
    assert set(layers.MEANING) == set(LAYERS)


def test_layers_are_started_in_one_order_each_program_once() -> None:
    started = layers.components(["node", "kwok", "api"])
    assert started == [name for name in layers.ORDER if name in started]
    assert started[:2] == ["etcd", "kube-apiserver"]


def test_a_layer_is_whole_only_with_all_of_its_programs() -> None:
    assert layers.layers_of(LAYERS["kwok"]) == {"api", "kwok"}
    assert layers.layers_of(LAYERS["kwok"][1:]) == set()


def test_an_address_is_chosen_that_no_route_of_the_machine_has() -> None:
    assert network.free_number(["0.0.0.0/0", "192.168.1.0/24"]) == 100
    assert network.free_number(["10.100.7.0/24", "10.101.0.0/16"]) == 102


def test_a_machine_whose_routes_take_all_addresses_is_told_so() -> None:
    with pytest.raises(ClusterError, match="ip route"):
        network.free_number(["10.0.0.0/8"])


def test_without_controllers_the_api_server_asks_for_no_service_account(tmp_path: Path) -> None:
    home = Home(tmp_path)
    alone = Machine(home, home.cluster("x"), network.Network(100), LAYERS["api"])
    whole = Machine(home, home.cluster("x"), network.Network(100), LAYERS["node"])
    flag = "--disable-admission-plugins=ServiceAccount"
    assert flag in argv("kube-apiserver", alone)
    assert flag not in argv("kube-apiserver", whole)


def test_all_versions_are_read_from_go_mod() -> None:
    versions = {family.name: family.version for family in programs.FAMILIES}
    assert versions == {
        "etcd": "v3.6.5",
        "kubernetes": "v1.36.4",
        "training-operator": "v1.9.4",
        "jobset": "v0.12.0",
        "trainer": "v2.3.0",
        "kueue": "v0.18.2",
        "kwok": "v0.8.0",
        "coredns": "v1.14.7",
        "coscheduling": "v0.35.4-devel",
        "helm": "v4.2.4",
        "kubectl": "v0.36.4",
        "pause": "",
    }


def test_a_program_is_built_again_when_a_sum_of_its_modules_changes_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "go"
    shutil.copytree(programs.SOURCES, sources)
    # the sources of this checkout must stay as they are
    monkeypatch.setattr(programs, "SOURCES", sources)
    home = Home(tmp_path)
    before = {name: programs.path(home, name) for name in programs.FAMILY_OF}
    assert {name: programs.path(home, name) for name in programs.FAMILY_OF} == before
    with (sources / "kwok" / "go.sum").open("a") as file:
        file.write("example.com/new v1.0.0 h1:x=\n")
    assert {name for name in before if programs.path(home, name) != before[name]} == {"kwok"}


def test_an_image_is_built_again_when_its_recipe_changes(tmp_path: Path) -> None:
    recipe, home = images.RECIPES["python"], Home(tmp_path)
    assert images.archive(home, recipe) == images.archive(home, replace(recipe))
    assert images.archive(home, recipe) != images.archive(
        home, replace(recipe, debian=("python3", "git"))
    )


@pytest.mark.parametrize(
    ("package", "program"),
    [
        ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
        ("go.etcd.io/etcd/server/v3", "server"),
        ("github.com/kubeflow/training-operator/cmd/training-operator.v1", "training-operator.v1"),
        ("cluster.test/pause", "pause"),
    ],
)
def test_what_go_calls_a_program_is_known(package: str, program: str) -> None:
    assert programs.name_by_go(package) == program


def test_help_tells_of_every_command_and_each_has_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = {}
    for words in ([], *([command] for command in cli.COMMANDS)):
        with pytest.raises(SystemExit) as left:
            cli.main([*words, "--help"])
        assert left.value.code == 0
        told[" ".join(words)] = capsys.readouterr().out
    assert [
        each for each in cli.COMMANDS if not re.search(rf"^    {each}\s", told[""], re.MULTILINE)
    ] == []
    assert "from nothing to a job" in told[""]
    assert all(
        text.startswith(f"usage: python -m tests.cluster {command}".rstrip())
        for command, text in told.items()
    )


@pytest.mark.parametrize(
    ("target", "command"),
    [
        (["cluster", "LAYERS=api kwok"], "up api kwok"),
        (["cluster"], "up"),
        (["cluster-down"], "down"),
    ],
)
def test_make_has_the_two_commands_of_every_day(target: list[str], command: str) -> None:
    outside = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    make = ["make", "--dry-run", *target]
    told = subprocess.run(
        make, cwd=ROOT, env=outside, capture_output=True, text=True, check=True
    ).stdout
    assert told.splitlines()[-1].strip().endswith(f"-m tests.cluster {command}")


def test_an_image_archive_names_its_blobs_by_their_digests(tmp_path: Path) -> None:
    rootfs, image = tmp_path / "rootfs.tar", tmp_path / "image.tar"
    with tarfile.open(rootfs, "w") as tar:
        tar.addfile(tarfile.TarInfo("empty"), io.BytesIO())
    oci.write(image, "localhost/x:local", [rootfs], ["/run"])
    with tarfile.open(image) as archive:
        files = {member.name: _bytes(archive, member) for member in archive.getmembers()}
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
    (described,) = json.loads(files["index.json"])["manifests"]
    assert described["annotations"]["io.containerd.image.name"] == "localhost/x:local"


def test_status_of_a_cluster_that_is_not_up_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--home", str(tmp_path), "status"]) == cli.NOT_UP
    assert capsys.readouterr().out == "cluster 'default' is not up\n"


def test_a_command_on_a_cluster_that_is_not_up_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--home", str(tmp_path), "kubeconfig"]) == 1
    assert capsys.readouterr().err == "cluster: cluster 'default' is not up; `up` starts it\n"


@pytest.mark.parametrize(
    "words", [["up", "nodes"], ["--name", "No", "up"], ["fake-nodes", "3", "--capacity", "cpu"]]
)
def test_a_wrong_word_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 2
    assert f"'{words[-1] if words[0] != '--name' else 'No'}'" in capsys.readouterr().err


def test_one_line_says_what_a_machine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["--home", str(tmp_path), "up", "api"]) == 69
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "is missing" in told or "is needed" in told


def test_making_a_cluster_object_touches_nothing(tmp_path: Path) -> None:
    assert not Cluster("x", Home(tmp_path / "none")).is_up()
    assert list(tmp_path.iterdir()) == []


def _bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def test_families_that_need_the_same_library_name_the_same_version() -> None:
    versions: dict[str, set[str]] = {}
    for recipe in programs.SOURCES.glob("*/go.mod"):
        if recipe.parent.name == "helm":  # needs newer ones of eight modules
            continue
        required = recipe.read_text().partition("replace (")[0]
        for module, version in re.findall(
            r"^\s*(?:require )?(\S+\.\S+) (v\S+)", required, re.MULTILINE
        ):
            versions.setdefault(module, set()).add(version)
    different = {module for module, found in versions.items() if len(found) > 1}
    # the API server comes with a newer client of etcd than the newest etcd that it is tested with
    apart = {module for module in different if not module.startswith("go.etcd.io/etcd/")}
    # Kubeflow Trainer needs newer ones than the training operator is made with, and Kueue newer
    # ones than the rest
    newer = {
        "github.com/antlr4-go/antlr/v4",
        "github.com/sirupsen/logrus",
        "github.com/stoewer/go-strcase",
    }
    newer |= {"golang.org/x/mod", "golang.org/x/tools"}
    # of coscheduling; `replace` makes them the same
    newer |= {"k8s.io/csi-translation-lib", "k8s.io/kube-scheduler"}
    assert apart == {"go.uber.org/zap", "sigs.k8s.io/scheduler-plugins", "volcano.sh/apis", *newer}
    assert len(versions) > 200
