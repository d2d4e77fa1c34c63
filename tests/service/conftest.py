import os
from pathlib import Path

import pytest

from tests.service.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    os.chmod(tmp_path, 0o700)
    return Bench(tmp_path)
