"""The files that the pages load: their size, and the library that is not ours."""

import gzip
import hashlib

from server_stub.http.page.views import FOLDER

STATIC = FOLDER / "static"
VENDOR = STATIC / "vendor"
MOST = 80 * 1024


def test_all_assets_together_are_small() -> None:
    files = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".svg"}]
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) <= MOST


def test_the_vendored_library_is_as_it_was_published_and_has_its_licence() -> None:
    lines = (
        line.split()
        for line in (VENDOR / "SHA256SUMS").read_text().splitlines()
        if not line.startswith("#")
    )
    sums = {name: digest for digest, name in lines}
    vendored = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.glob("[!S]*")
    }
    assert vendored == sums
    assert "MIT" in (VENDOR / "uPlot.LICENSE").read_text()
