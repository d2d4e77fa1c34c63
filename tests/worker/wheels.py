"""Tiny packages, made in a test: no index is asked."""

import zipfile
from pathlib import Path


def wheel(
    folder: Path, name: str, version: str = "1.0", needs: str | None = None, text: str = ""
) -> Path:
    """A wheel of one module of that name, with `__version__` and `text` in it.
    `needs`: another requirement.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"__version__ = {version!r}\n{text}\n")
        archive.writestr(f"{about}/METADATA", metadata)
        archive.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


def only_from(folder: Path) -> dict[str, str]:
    """pip's own variables for it."""
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
