import pytest
from hypothesis import given, strategies as st

from client_lib.spec.command_line import check_name, name_for, split_script


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train-x7k2m"),
        ("/a/b/My_Model v2.py --lr 1".replace(" v2", "_v2"), "my-model-v2-x7k2m"),
        ("'my train.py'", "my-train-x7k2m"),
        ("2024_run.py", "job-2024-run-x7k2m"),
        ("обучение.py", "job-x7k2m"),
        ("bash run.sh", "run-x7k2m"),
        ("python3.11 -u train.py", "train-x7k2m"),
        ("bash -c 'echo $HOME; ls'", "bash-x7k2m"),
        ("sleep infinity", "sleep-x7k2m"),
        ("x" * 60 + ".py", "x" * 44 + "-x7k2m"),
    ],
)
def test_a_name_comes_from_what_runs(script: str, name: str) -> None:
    assert name_for(script, "x7k2m") == name


@given(st.text(min_size=1))
def test_every_script_gives_a_dns_label(script: str) -> None:
    try:
        words = split_script(script)
    except ValueError:
        return
    if words:
        check_name(name_for(script, "x7k2m"))
