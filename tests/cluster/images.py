"""Images by recipe: what is in each, and how it is built without Docker and without a registry.

An image is built once and kept as an archive under a digest of its recipe; a cluster imports it
when it is first wanted there. In a pod: `image: localhost/<name>:local`, `imagePullPolicy: Never`
or IfNotPresent.
"""

import hashlib
import json
import platform
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import debian, oci, programs
from tests.cluster.errors import ClusterError
from tests.cluster.node import Node
from tests.cluster.places import Home, Places

NAMESPACE = ("ctr", "--namespace", "k8s.io")
SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")
EXCLUDED = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")


@dataclass(frozen=True)
class Recipe:
    """`debian`: packages over Debian's smallest system; none: the image holds
    the program `pause` alone.
    """

    name: str
    meaning: str
    debian: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        return f"localhost/{self.name}:local"

    def digest(self) -> str:
        parts = (
            [self.debian, _suite(), EXCLUDED]
            if self.debian
            else [programs.FAMILY_OF["pause"].digest]
        )
        recipe = repr((self.name, platform.machine(), parts)) + Path(oci.__file__).read_text()
        return hashlib.sha256(recipe.encode()).hexdigest()[:12]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("pause", "what every pod's sandbox runs"),
        Recipe("python", "Debian with Python", ("python3",)),
        Recipe(
            "torch",
            "Debian with Python, scikit-learn, and Debian's PyTorch (CPU: gloo, "
            "DistributedDataParallel)",
            ("python3-torch", "python3-sklearn"),
        ),
    )
}


def archive(home: Home, recipe: Recipe) -> Path:
    """Where the built image lies."""
    return home.images / f"{recipe.name}-{recipe.digest()}.tar"


def build(home: Home, recipe: Recipe) -> None:
    """Builds the archive, unless it is there. Seconds; minutes for `torch`. The
    caller holds the build lock.
    """
    target = archive(home, recipe)
    if target.exists():
        return
    home.images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.images) as workspace:
        rootfs, made = Path(workspace) / "rootfs.tar", Path(workspace) / "image.tar"
        if recipe.debian:
            _bootstrap(home, recipe.debian, rootfs)
        else:
            _pack_pause(home, rootfs)
        oci.write(made, recipe.reference, [rootfs], () if recipe.debian else ("/pause",))
        made.rename(target)


def load(node: Node, places: Places, recipe: Recipe, home: Home) -> None:
    """Imports it into the cluster's store, unless this very build is there already."""
    known = _loaded(places)
    if known.get(recipe.reference) == recipe.digest():
        return
    load_archive(node, archive(home, recipe))
    _write_loaded(places, {**known, recipe.reference: recipe.digest()})


def load_archive(node: Node, path: Path) -> list[str]:
    """Imports any OCI or Docker archive; the names of its images."""
    try:
        with path.open("rb") as file:
            told = node.run(*NAMESPACE, "images", "import", "-", stdin=file)
    except OSError as error:
        raise ClusterError(f"{path} cannot be read: {error.strerror}") from error
    return [line.split()[1] for line in told.splitlines() if line.startswith("unpacking")]


def _loaded(places: Places) -> dict[str, str]:
    path = places.store / "loaded.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _write_loaded(places: Places, loaded: dict[str, str]) -> None:
    path = places.store / "loaded.json"
    path.with_suffix(".new").write_text(json.dumps(loaded))
    path.with_suffix(".new").rename(path)


def _pack_pause(home: Home, rootfs: Path) -> None:
    with tarfile.open(rootfs, "w") as tar:
        tar.add(programs.path(home, "pause"), "pause")


def _bootstrap(home: Home, packages: tuple[str, ...], rootfs: Path) -> None:
    """mmdebstrap in a mount namespace where our unpacked packages lie over /usr;
    it need not be installed.
    """
    sources = next((path for path in SOURCES if Path(path).exists()), None)
    options = ["--variant=minbase", f"--include={','.join(packages)}", "--format=tar"]
    excluded = [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
    command = [
        "mmdebstrap",
        *options,
        *excluded,
        _suite(),
        str(rootfs),
        *([sources] if sources else []),
    ]
    over = f'mount -t overlay -o "lowerdir={debian.root(home)}/usr:/usr" overlay /usr && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-ec", over, "sh", *command]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(
            f"mmdebstrap {' '.join(packages)} failed:\n{done.stderr.strip()[-2000:]}"
        )


def _suite() -> str:
    """The release of this machine, so that its package sources fit."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except FileNotFoundError:
        return "stable"
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    return (
        values.get("VERSION_CODENAME", "stable").strip('"')
        if values.get("ID") == "debian"
        else "stable"
    )
