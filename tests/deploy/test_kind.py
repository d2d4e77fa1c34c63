"""`make kind`, with programs in the place of docker, kind and kubectl that answer as
those do and write down how they were called.
"""

import json
import os
import pty
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.processes import free_port
from tests.kit.waiting import until

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
GIB = 2**30
INFO = {"NCPU": 2, "MemTotal": 4 * GIB, "CgroupVersion": "2", "DockerRootDir": "/nowhere"}
SERVER = "localhost/client-lib-server"
DEMO = "localhost/client-lib-demo"
OPERATOR = "localhost/client-lib-operator"
NODE = "client-lib-control-plane"


class Place:
    """A copy of what the script works on, because it writes a token beside the overlay; and the
    programs that it calls. What a program is asked, and its answer: the first pair whose words
    begin the call; a number is an exit code.
    """

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        for name in ("k8s", "examples"):
            shutil.copytree(ROOT / name, self.project / name)
        self.tools = folder / "bin"
        self.tools.mkdir()
        self.port = free_port()
        self.answers: dict[str, str | int] = {
            "docker --version": "Docker version 29.1.0, build 1234567",
            "docker info": json.dumps(INFO),
            "docker buildx version": "github.com/docker/buildx v0.30.0",
            "docker image inspect": "sha256:" + "0123456789abcdef" * 4,
            "kind version": "kind v0.33.0 go1.26.0 linux/amd64",
            "kind get clusters": "",
            "kubectl --context kind-client-lib kustomize": _manifests(),
            "docker": "",
            "kind": "",
            "kubectl": "",
        }

    def finds_a_cluster(self) -> None:
        self.answers |= {
            "kind get clusters": "client-lib",
            f"docker inspect --format {{{{.State.Running}}}} {NODE}": "true",
            f"docker port {NODE} 30080/tcp": f"127.0.0.1:{self.port}",
            "kubectl --context kind-client-lib get --raw /readyz": "ok",
        }

    def command(self, *steps: str) -> list[str]:
        script = str(self.project / "k8s" / "kind.py")
        return [sys.executable, script, *steps, *self.to_port]

    @property
    def to_port(self) -> list[str]:
        return [f"--port={self.port}"]

    def environment(self, **variables: str) -> dict[str, str]:
        longest_first = sorted(self.answers, key=len, reverse=True)
        for name in ("docker", "kind", "kubectl"):
            path = self.tools / name
            if any(asked.split()[0] == name for asked in self.answers):
                given = {asked: self.answers[asked] for asked in longest_first}
                path.write_text(_program(name, given, self.tools))
                path.chmod(path.stat().st_mode | stat.S_IXUSR)
        named = {"PATH": str(self.tools), "PYTHONPATH": str(ROOT)}
        return {**os.environ, **named, **variables}

    def run(self, *steps: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*steps),
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def without(self, *programs: str) -> None:
        for asked in list(self.answers):
            if asked.split()[0] in programs:
                del self.answers[asked]

    @property
    def calls(self) -> list[str]:
        path = self.tools / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [
            re.sub(rf"{self.project}/|--context kind-client-lib ", "", line)
            for line in lines
            if line
        ]

    @property
    def changes(self) -> list[str]:
        """Calls that are more than questions."""
        questions = (
            "docker --version",
            "docker info",
            "docker buildx version",
            "docker inspect",
            "docker image inspect",
            "docker port",
            "kind version",
            "kind get",
            "kubectl get",
            "kubectl kustomize",
        )
        return [call for call in self.calls if not call.startswith(questions)]


def _manifests() -> str:
    """The output of `kubectl kustomize`, the same for each folder."""
    images = {
        "spec": {
            "containers": [
                {"image": "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"},
                {"args": ["--pytorch-init-container-image=docker.io/library/debian:12@sha256:ab"]},
                {"image": f"{SERVER}:kind"},
            ]
        },
        "data": {"catalogue.yaml": f"images:\n  default: {DEMO}:kind\n"},
    }
    return yaml.safe_dump(images)


def _program(name: str, answers: Mapping[str, str | int], folder: Path) -> str:
    """A program that gives these answers, and keeps its standard input."""
    return f"""#!{sys.executable}
import sys
asked = " ".join(["{name}", *sys.argv[1:]])
with open("{folder}/calls", "a") as calls:
    calls.write(asked + "\\n")
if sys.argv[-1] == "-":
    with open("{folder}/{name}.stdin", "a") as kept:
        kept.write(sys.stdin.read() + "\\n---\\n")
for begin, answer in {dict(answers)!r}.items():
    if asked.startswith(begin):
        if isinstance(answer, int):
            sys.exit(answer)
        if answer.startswith("stderr "):
            sys.exit(answer.removeprefix("stderr "))
        if answer.startswith("python "):
            exec(answer.removeprefix("python "))
        print(answer)
        break
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- what it refuses, before anything is done


def test_what_is_missing_is_said(place: Place) -> None:
    place.without("kind", "kubectl")
    ended = place.run("up", "demo")
    assert ended.returncode == 1
    assert "kind is missing: https://" in ended.stderr
    assert "kubectl is missing: https://" in ended.stderr
    assert "docker is missing" not in ended.stderr
    assert place.calls == []


def info(**facts: Any) -> str:
    return json.dumps(INFO | facts)


@pytest.mark.parametrize(
    ("asked", "answer", "said", "way_out"),
    [
        ("docker info", 1, "its daemon doesn't answer", "`docker info` says why"),
        ("docker info", info(ServerErrors=["gone"]), "doesn't answer", "`docker info`"),
        ("docker --version", "podman version 5.6.2", "`docker` is podman here", "Docker's own"),
        ("docker info", info(NCPU=1), "docker has 1 CPUs", "2 CPUs and 4 GiB are needed"),
        (
            "docker info",
            info(MemTotal=2 * GIB),
            "2.0 GiB of memory",
            "2 CPUs and 4 GiB are needed",
        ),
        (
            "docker info",
            info(CgroupVersion="1"),
            "control groups of version 1",
            "systemd.unified_cgroup_hierarchy=1",
        ),
        ("docker buildx version", 1, "has no buildx", "docker-buildx-plugin"),
        ("kind version", "kind v0.32.1 go1.26", "kind is too old", "0.33 is needed"),
    ],
)
def test_a_machine_that_will_not_do(
    place: Place, asked: str, answer: str | int, said: str, way_out: str
) -> None:
    place.answers[asked] = answer
    assert_refused(place, said, way_out)


def assert_refused(place: Place, said: str, way_out: str, *steps: str) -> None:
    """In one line, and before anything was done."""
    ended = place.run(*(steps or ("up", "demo")))
    assert ended.returncode == 1
    first, line = ended.stderr.splitlines()
    assert first == "make kind can't begin:"
    assert said in line
    assert way_out in line
    assert place.changes == []


def test_a_machine_of_four_gib_shows_a_little_less(place: Place) -> None:
    place.answers["docker info"] = info(MemTotal=int(3.8 * GIB))
    assert place.run("check").returncode == 0


def test_a_full_disk_is_named(place: Place, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts a small disk, which only root may")
    folder = tmp_path / "docker"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    try:
        place.answers["docker info"] = info(DockerRootDir=str(folder))
        assert_refused(
            place, f"{folder} has 0.0 GB of free disk; 10 GB are needed", "docker system prune"
        )
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "80x", "9" * 5000])
def test_a_port_that_is_none(place: Place, port: str) -> None:
    script = str(place.project / "k8s" / "kind.py")
    done = subprocess.run(
        [sys.executable, script, "check", f"--port={port}"],
        env=place.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "is no port: 1 to 65535" in done.stderr
    assert place.calls == []


def test_a_port_that_is_taken(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.port)):
        assert_refused(place, f"port {place.port} of 127.0.0.1", "make kind KIND_PORT=")


@pytest.mark.parametrize(
    ("asked", "answer", "said", "way_out"),
    [
        ("docker inspect", "false", "is stopped", f"`docker start {NODE}`"),
        ("docker port", 1, "that `make kind` has not made", "`make kind-down`"),
        ("docker port", "127.0.0.1:1", "is at port 1, not", "leave KIND_PORT out"),
        (
            "kubectl --context kind-client-lib get",
            'stderr error: context "kind-client-lib" does not exist',
            "kubectl does not know it",
            "`kind export kubeconfig --name client-lib`",
        ),
        ("kubectl --context kind-client-lib get", 1, "does not answer", "`make kind-down`"),
    ],
)
def test_a_cluster_that_will_not_do(
    place: Place, asked: str, answer: str | int, said: str, way_out: str
) -> None:
    place.finds_a_cluster()
    (question,) = [each for each in place.answers if each.startswith(f"{asked} ")]
    place.answers[question] = answer
    assert_refused(place, said, way_out)


def test_a_program_that_says_nothing_is_not_waited_for_for_ever() -> None:
    sys.path.insert(0, str(ROOT / "k8s"))
    try:
        import kind_needs
    finally:
        sys.path.remove(str(ROOT / "k8s"))
    limit = kind_needs.ANSWER_S
    kind_needs.ANSWER_S = 1
    try:
        answer = kind_needs.ask("sleep", "60")
    finally:
        kind_needs.ANSWER_S = limit
    assert (answer.ok, answer.stderr) == (False, "sleep did not answer for 1 s")


# --- what it does


TAG = "0123456789ab"


@pytest.mark.parametrize("there", [False, True])
def test_it_makes_the_cluster_once_and_then_images_operator_and_server(
    place: Place, there: bool
) -> None:
    if there:
        place.finds_a_cluster()
    ended = place.run("up")
    assert ended.returncode == 0, ended.stderr
    build = "docker build --tag {0}:kind --target {1} --provenance=false {2}"
    assert place.changes == [
        *([] if there else ["kind create cluster --config -"]),
        build.format(SERVER, "server", place.project),
        build.format(DEMO, "demo", place.project),
        f"docker tag {SERVER}:kind {SERVER}:{TAG}",
        f"docker tag {DEMO}:kind {DEMO}:{TAG}",
        f"docker tag ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489 {OPERATOR}:{TAG}",
        (f"kind load docker-image --name client-lib {SERVER}:{TAG} {DEMO}:{TAG} {OPERATOR}:{TAG}"),
        "kubectl apply --server-side -f -",
        (
            "kubectl -n kubeflow wait --for=jsonpath={.data.tls\\.crt} "
            "secret/training-operator-webhook-cert --timeout=50s"
        ),
        (
            "kubectl -n kubeflow annotate pods -l control-plane=kubeflow-training-operator "
            "--overwrite client-lib.io/certificate=made"
        ),
        "kubectl -n kubeflow rollout status deployment/training-operator --timeout=600s",
        "kubectl apply -f -",
        "kubectl -n client-lib rollout status deployment/client-lib-server --timeout=600s",
    ]


def test_pods_get_the_images_that_were_loaded_by_their_content(place: Place) -> None:
    """A tag that stays the same would leave the old server running after a change of its code."""
    place.run("up")
    operator, server = (place.tools / "kubectl.stdin").read_text().split("---\n")[:2]
    for applied in (operator, server):
        assert ":kind" not in applied
        assert "ghcr.io" not in applied
        assert f"image: {SERVER}:{TAG}" in applied
        assert f"default: {DEMO}:{TAG}" in applied
        assert f"image: {OPERATOR}:{TAG}" in applied
        assert f"--pytorch-init-container-image={DEMO}:{TAG}" in applied


def test_an_image_that_docker_lacks_is_pulled(place: Place) -> None:
    operator = "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
    place.answers[f"docker image inspect {operator}"] = 1
    place.run("up")
    assert f"docker pull {operator}" in place.changes


def test_the_port_is_that_of_the_option_and_later_that_of_the_cluster(place: Place) -> None:
    place.run("cluster")
    config = yaml.safe_load((place.tools / "kind.stdin").read_text().partition("---")[0])
    (mapping,) = config["nodes"][0]["extraPortMappings"]
    assert (mapping["hostPort"], mapping["containerPort"]) == (place.port, 30080)
    place.finds_a_cluster()
    ended = subprocess.run(
        [sys.executable, str(place.project / "k8s" / "kind.py"), "demo"],
        env=place.environment(CLIENT_LIB_RETRY_S="0"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"http://127.0.0.1:{place.port}" in ended.stderr


def test_a_cluster_elsewhere_needs_neither_docker_nor_kind(place: Place) -> None:
    place.without("docker", "kind")
    ended = _run_on_a_cluster_elsewhere(place)
    assert "http://127.0.0.1:9 does not answer" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_step_whose_program_is_missing_names_the_program(place: Place) -> None:
    place.without("docker", "kind", "kubectl")
    ended = _run_on_a_cluster_elsewhere(place)
    assert ended.returncode == 1
    assert "kubectl is missing: https://kubernetes.io" in ended.stderr
    assert "Traceback" not in ended.stderr


def _run_on_a_cluster_elsewhere(place: Place) -> subprocess.CompletedProcess[str]:
    script = str(place.project / "k8s" / "kind.py")
    return subprocess.run(
        [sys.executable, script, "server", "demo", "--endpoint", "http://127.0.0.1:9"],
        env=place.environment(CLIENT_LIB_RETRY_S="0"),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_sources_of_what_is_downloaded_come_from_the_environment(place: Place) -> None:
    place.run("up", PIP_INDEX_URL="https://mirror/simple", KIND_NODE_IMAGE="mirror/node:1")
    assert "kind create cluster --config - --image mirror/node:1" in place.changes
    (build,) = [call for call in place.changes if "--target demo" in call]
    assert "--build-arg=PIP_INDEX_URL " in build
    assert "TORCH_INDEX_URL" not in build


def test_every_source_that_it_passes_is_an_argument_of_the_dockerfile() -> None:
    declared = set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    text = (ROOT / "k8s" / "kind.py").read_text()
    (passed,) = re.findall(r"BUILD_ARGUMENTS = \((.*?)\)", text, re.DOTALL)
    assert set(re.findall(r"\w+", passed)) == declared - {"COMMIT"}


def test_a_token_that_was_never_written_is_made_anew(place: Place) -> None:
    overlay = place.project / "k8s" / "overlays" / "kind"
    (overlay / "users.toml").touch()
    (overlay / "token").touch()
    assert place.run("server").returncode == 0
    assert (overlay / "token").read_text().strip()


def test_the_token_is_made_once_and_for_this_user_alone(place: Place) -> None:
    overlay = place.project / "k8s" / "overlays" / "kind"
    place.run("server")
    token, users = (overlay / "token").read_text(), (overlay / "users.toml").read_text()
    place.run("server")
    assert ((overlay / "token").read_text(), (overlay / "users.toml").read_text()) == (token, users)
    assert stat.S_IMODE((overlay / "token").stat().st_mode) == 0o600
    assert token.strip() not in users
    assert 'name = "demo"' in users


def test_a_step_that_fails_ends_it_with_the_command_shown(place: Place) -> None:
    place.answers["kubectl --context kind-client-lib apply"] = 3
    ended = place.run("operator", "server")
    assert ended.returncode == 1
    assert "== kubectl --context kind-client-lib apply --server-side -f -" in ended.stderr
    assert ended.stderr.endswith("kubectl failed with exit code 3\n")
    assert len(place.changes) == 1


def test_ctrl_c_says_how_to_go_on(place: Place) -> None:
    place.answers["kind create"] = "python import time; print('made'); time.sleep(60)"
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        place.command("cluster"),
        env=place.environment(),
        stdin=other_end,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: place.changes)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, stderr = process.communicate(timeout=30)
    os.close(terminal)
    os.close(other_end)
    assert process.returncode == 130
    assert "`make kind` goes on from here" in stderr
    assert "kind.py" not in stderr


def test_make_looks_for_the_tools_before_it_installs_anything() -> None:
    made = subprocess.run(
        ["make", "-n", "kind", "MAKE=make", "KIND_PORT=30099"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    commands = [line for line in made.stdout.splitlines() if not line.startswith(("make", "#"))]
    assert commands[0].endswith("k8s/kind.py check --port=30099")
    assert commands[-1].endswith("k8s/kind.py up demo --port=30099")
