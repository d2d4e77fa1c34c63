"""Writes a container image as an OCI archive, which `ctr images import`
reads. Standard library alone.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MEDIA = "application/vnd.oci.image"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write(
    target: Path,
    name: str,
    tars: Sequence[Path],
    entrypoint: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    user: str = "",
) -> None:
    """`tars` become the layers as they are, uncompressed, the lowest
    first. `name`: with its tag.
    """
    digests = [_digest_of(tar) for tar in tars]
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        layers = []
        for digest, tar in zip(digests, tars, strict=True):
            _add_file(archive, _blob(digest), tar)
            layers.append(
                {"mediaType": f"{MEDIA}.layer.v1.tar", "digest": digest, "size": tar.stat().st_size}
            )
        config = _add_document(
            archive, f"{MEDIA}.config.v1+json", _config(digests, entrypoint, env or {}, user)
        )
        manifest_type = f"{MEDIA}.manifest.v1+json"
        manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": config,
            "layers": layers,
        }
        described = _add_document(archive, manifest_type, manifest)
        annotations = {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        }
        index = {"schemaVersion": 2, "manifests": [{**described, "annotations": annotations}]}
        _add(archive, "index.json", json.dumps(index).encode())


def _config(
    digests: Sequence[str], entrypoint: Sequence[str], env: Mapping[str, str], user: str
) -> dict[str, Any]:
    machine, variables = platform.machine(), [f"{name}={value}" for name, value in env.items()]
    return {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Env": [PATH, *variables], "Entrypoint": list(entrypoint), "User": user},
        "rootfs": {"type": "layers", "diff_ids": list(digests)},
    }


def _add_document(
    archive: tarfile.TarFile, media_type: str, document: dict[str, Any]
) -> dict[str, Any]:
    """Its descriptor."""
    data = json.dumps(document).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    _add(archive, _blob(digest), data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = path.stat().st_size
    with path.open("rb") as file:
        archive.addfile(entry, file)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest_of(path: Path) -> str:
    sum_ = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sum_.update(block)
    return f"sha256:{sum_.hexdigest()}"
