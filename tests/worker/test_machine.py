"""What a worker tells of its machine."""

import json
import subprocess
import sys
from importlib.metadata import distributions

from client_lib.launcher_protocol.record import MAX_TEXT
from client_lib.worker import hardware


def merged(lines: bytes) -> dict[str, dict[str, str]]:
    parts: dict[str, dict[str, str]] = {}
    for line in lines.splitlines():
        assert len(line) <= MAX_TEXT
        for part, facts in json.loads(line).items():
            parts.setdefault(part, {}).update(facts)
    return parts


def test_the_packages_are_those_of_importlib_metadata_and_torch_is_not_imported() -> None:
    code = f"import runpy, sys; runpy.run_path({hardware.__file__!r}, run_name='__main__')"
    code += "; sys.exit('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    found = merged(ran.stdout)
    known = {
        each.name.replace("_", "-").lower(): each.version
        for each in reversed(list(distributions()))
    }
    assert found["packages"] == known
    assert found["hardware"]["torch"].partition("+")[0] == known["torch"].partition("+")[0]
    assert found["hardware"]["python"] == f"cpython {sys.version.split()[0]}"
    assert found["hardware"]["cpu"]


def test_plain_variables_of_seeds_are_told_and_no_others() -> None:
    plain = {
        "PYTHONHASHSEED": "random",
        "PL_GLOBAL_SEED": "-7",
        "SEED": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    plain["TF_DETERMINISTIC_OPS"] = "1"
    other = {
        "WALLET_SEED": "army van defense",
        "SEED_TOKEN": "1",
        "KEY_SEED": "1",
        "HOME": "/h",
        "SEED\udc80": "1",
    }
    assert merged(hardware.describe({**plain, **other, "MY_SEED": "9" * 999}))["seeds"] == plain


def test_another_program_than_python_has_no_packages() -> None:
    assert merged(hardware.describe({}, has_python=False)).keys() == {"hardware"}
