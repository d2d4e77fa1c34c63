"""The programs that are built from pinned Go modules: one folder `go/<family>` with go.mod and
go.sum each.

A family is its own module. Where two of them need the same library they name the same version, so
that Go compiles it once for both (a test compares them). A program is built when it is first wanted
and kept under a digest of its go.mod, go.sum and flags: once built, no Go is needed.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.places import Home

SOURCES = Path(__file__).parent / "go"
GO_NEEDED = (1, 26)
STAMP = "k8s.io/component-base/version"
NO_DEBUG = "-gcflags=all=-dwarf=false"
"""The linker drops what the compiler would tell debuggers, a fifth of its work; so it
is no part of the digest.
"""


@dataclass(frozen=True)
class Family:
    """Programs of one Go module. `assets`: files of that module which the
    cluster needs at run time.
    """

    name: str
    module: str
    packages: dict[str, str]
    version: str
    assets: tuple[str, ...] = ()

    @property
    def ldflags(self) -> str:
        """Kubernetes reads its own version from the linker; without it
        nodes say `v0.0.0-master`.
        """
        if self.name != "kubernetes":
            return "-s -w"
        major, minor, _ = self.version.lstrip("v").split(".")
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        return " ".join(["-s -w", *(f"-X {STAMP}.{key}={value}" for key, value in values.items())])

    @property
    def digest(self) -> str:
        recipe = hashlib.sha256()
        for path in sorted((SOURCES / self.name).iterdir()):
            recipe.update(path.read_bytes())
        recipe.update(repr((self.packages, self.ldflags, self.assets)).encode())
        return recipe.hexdigest()[:12]


def _family(
    name: str, module: str, packages: dict[str, str], assets: tuple[str, ...] = ()
) -> Family:
    found = re.search(rf"{re.escape(module)} (v\S+)", (SOURCES / name / "go.mod").read_text())
    return Family(name, module, packages, found.group(1) if found else "", assets)


KUEUE_KINDS = (
    "admissionchecks",
    "clusterqueues",
    "cohorts",
    "localqueues",
    "multikueueclusters",
    "multikueueconfigs",
    "provisioningrequestconfigs",
    "resourceflavors",
    "topologies",
    "workloadpriorityclasses",
    "workloads",
)
FAMILIES = (
    _family("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    _family(
        "kubernetes",
        "k8s.io/kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-proxy",
                "kube-scheduler",
                "kubelet",
            )
        },
    ),
    _family(
        "training-operator",
        "github.com/kubeflow/training-operator",
        {"training-operator": "github.com/kubeflow/training-operator/cmd/training-operator.v1"},
        ("manifests/base/crds/kubeflow.org_pytorchjobs.yaml", "manifests/base/rbac/role.yaml"),
    ),
    _family(
        "jobset",
        "sigs.k8s.io/jobset",
        {"jobset": "sigs.k8s.io/jobset"},
        (
            "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
            "config/components/rbac/role.yaml",
        ),
    ),
    _family(
        "trainer",
        "github.com/kubeflow/trainer/v2",
        {
            "trainer-controller-manager": (
                "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
            )
        },
        (
            "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
            "manifests/base/rbac/role.yaml",
        ),
    ),
    _family(
        "kueue",
        "sigs.k8s.io/kueue",
        {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        tuple(f"config/components/crd/bases/kueue.x-k8s.io_{name}.yaml" for name in KUEUE_KINDS),
    ),
    _family(
        "kwok",
        "sigs.k8s.io/kwok",
        {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        (
            "kustomize/stage/node/fast/node-initialize.yaml",
            "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
            "kustomize/stage/pod/fast/pod-ready.yaml",
            "kustomize/stage/pod/fast/pod-delete.yaml",
        ),
    ),
    _family("coredns", "github.com/coredns/coredns", {"coredns": "cluster.test/coredns"}),
    _family(
        "coscheduling",
        "sigs.k8s.io/scheduler-plugins",
        {"coscheduling": "cluster.test/coscheduling"},
        ("config/crd/bases/scheduling.x-k8s.io_podgroups.yaml",),
    ),
    _family("helm", "helm.sh/helm/v4", {"helm": "helm.sh/helm/v4/cmd/helm"}),
    _family("kubectl", "k8s.io/kubectl", {"kubectl": "cluster.test/kubectl"}),
    _family("pause", "cluster.test/pause", {"pause": "cluster.test/pause"}),
)
FAMILY_OF = {program: family for family in FAMILIES for program in family.packages}


def is_built_by_us(program: str) -> bool:
    return program in FAMILY_OF


def path(home: Home, program: str) -> Path:
    """Where the program lies once it is built."""
    return _folder(home, FAMILY_OF[program]) / program


def asset(home: Home, family: str, name: str) -> str:
    """The text of one of the family's assets, by its file name. Only after a
    program of the family was built.
    """
    chosen = next(each for each in FAMILIES if each.name == family)
    return (_folder(home, chosen) / "assets" / name).read_text()


def assets(home: Home, family: str) -> list[str]:
    """The texts of all of them."""
    chosen = next(each for each in FAMILIES if each.name == family)
    return [asset(home, family, Path(name).name) for name in chosen.assets]


def is_there(home: Home, program: str) -> bool:
    return path(home, program).exists()


def lacks_go() -> str | None:
    """One line about a Go that is missing or too old for the pinned modules; None: it will do."""
    go = shutil.which("go")
    needed = ".".join(map(str, GO_NEEDED))
    if go is None:
        return f"the command go is missing; the programs are built with Go {needed} or newer"
    told = subprocess.run(
        [go, "env", "GOVERSION"], cwd=SOURCES / "pause", capture_output=True, text=True
    )
    version = re.match(r"go(\d+)\.(\d+)", told.stdout)
    if version is None or tuple(map(int, version.groups())) < GO_NEEDED:
        said = " ".join(
            (told.stdout.strip() or told.stderr.strip() or "of an unknown version").split()
        )
        return f"Go {needed} or newer is needed; {go} is or says: {said}"
    return None


def build(home: Home, family: Family, wanted: Sequence[str]) -> None:
    """Builds these programs of one family with the machine's Go, at once: they share most of their
    packages.

    Minutes the first time, nothing where they are there; the caller holds the lock. GOFLAGS is
    passed on: `GOFLAGS=-p=1` keeps a core free for others.
    """
    wanted = [name for name in wanted if not is_there(home, name)]
    if not wanted:
        return
    folder = _folder(home, family)
    folder.mkdir(parents=True, exist_ok=True)
    _copy_assets(family, folder / "assets")
    with tempfile.TemporaryDirectory(dir=folder) as workspace:
        packages = [family.packages[name] for name in wanted]
        _go(
            family,
            "install",
            "-trimpath",
            NO_DEBUG,
            "-ldflags",
            family.ldflags,
            *packages,
            GOBIN=workspace,
        )
        for name in wanted:
            (Path(workspace) / name_by_go(family.packages[name])).rename(folder / name)


def name_by_go(package: str) -> str:
    """What `go install` calls it: the last part of its path that is no major version."""
    *_, first, last = package.split("/")
    return first if re.fullmatch(r"v\d+", last) else last


def current(home: Home) -> set[Path]:
    """The folders that today's recipes make."""
    return {_folder(home, family) for family in FAMILIES}


def _folder(home: Home, family: Family) -> Path:
    return home.bin / f"{family.name}-{family.digest}"


def _copy_assets(family: Family, target: Path) -> None:
    if not family.assets or target.exists():
        return
    _go(family, "mod", "download", family.module)
    module = Path(_go(family, "list", "-m", "-f", "{{.Dir}}", family.module).strip())
    with tempfile.TemporaryDirectory(dir=target.parent) as workspace:
        for asset_name in family.assets:
            shutil.copy(module / asset_name, workspace)
        shutil.copytree(workspace, target)


def _go(family: Family, *arguments: str, **environment: str) -> str:
    given = {"HOME": str(Path.home()), **os.environ}  # Go's caches lie there, and HOME may be unset
    flags = f"-buildvcs=false {given.get('GOFLAGS', '')}".strip()
    done = subprocess.run(
        ["go", *arguments],
        cwd=SOURCES / family.name,
        env={**given, "CGO_ENABLED": "0", "GOFLAGS": flags, "GOWORK": "off", **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ClusterError(
            f"go {arguments[0]} in {SOURCES / family.name} failed:\n{done.stderr.strip()[-2000:]}"
        )
    return done.stdout
