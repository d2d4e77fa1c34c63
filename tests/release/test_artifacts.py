"""The files of a release that are no package: the bill of materials, and the digests."""

import subprocess
from pathlib import Path

from release import artifacts


def test_the_bill_of_materials_gets_the_version_of_the_project() -> None:
    materials = {
        "components": [{"name": "pyyaml"}],
        "metadata": {"timestamp": "now", "component": {"name": "client-lib", "type": "library"}},
    }
    assert artifacts.of_version(materials, "0.2.0") == {
        "components": [{"name": "pyyaml"}],
        "metadata": {
            "timestamp": "now",
            "component": {
                "name": "client-lib",
                "type": "library",
                "version": "0.2.0",
                "purl": "pkg:pypi/client-lib@0.2.0",
            },
        },
    }
    assert "version" not in materials["metadata"]["component"]  # type: ignore[index]


def test_sha256sum_checks_the_digests(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"wheel")
    (tmp_path / "a.tar.gz").write_bytes(b"sdist")
    artifacts.write_sums(tmp_path)
    artifacts.write_sums(tmp_path)  # the file does not list itself
    line = ["sha256sum", "--strict", "--check", artifacts.SUMS]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a.tar.gz: OK\nb.whl: OK\n"


def test_the_packages_are_named_as_builds_name_them(tmp_path: Path) -> None:
    assert [path.name for path in artifacts.packages(tmp_path, "0.2.0")] == [
        "client_lib-0.2.0-py3-none-any.whl",
        "client_lib-0.2.0.tar.gz",
    ]
