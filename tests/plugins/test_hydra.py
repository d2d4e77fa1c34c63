"""A program as Hydra's tutorial shows them, with its runs as jobs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import client_lib.plugins.hydra as launcher
from client_lib import list_jobs
from client_lib.spec.job import JobSpec

APP = """
import os
import hydra
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path=".", config_name="config")
def my_app(cfg: DictConfig) -> float:
    if cfg.db.driver == "broken":
        raise KeyError("no such driver")
    out = hydra.core.hydra_config.HydraConfig.get().runtime.output_dir
    with open(os.path.join(out, "ran"), "w") as file:
        file.write(f"{cfg.db.driver} {cfg.db.timeout} {os.environ['CLIENT_LIB_JOB_NAME']}")
    return float(cfg.db.timeout)


if __name__ == "__main__":
    my_app()
"""


def run_app(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_app.py").write_text(APP)
    (folder / "config.yaml").write_text("db:\n  driver: mysql\n  timeout: 10\n")
    command = [sys.executable, "my_app.py", "--multirun", "hydra/launcher=client_lib", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.process
def test_each_combination_of_a_sweep_is_a_job_with_the_launcher_s_options(folder: Path) -> None:
    label = f"{folder.parent.name}"
    options = [
        "+hydra.launcher.labels.run=" + label,
        "hydra.sweep.dir=out",
        "hydra.sweep.subdir=${hydra.job.num}",
    ]
    done = run_app(folder, "db.driver=mysql,postgresql", "db.timeout=5,7", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [(folder / "out" / str(number) / "ran").read_text().split() for number in range(4)]
    assert [words[:2] for words in ran] == [
        ["mysql", "5"],
        ["mysql", "7"],
        ["postgresql", "5"],
        ["postgresql", "7"],
    ]
    jobs = list_jobs(label={"run": label})
    assert {job.name for job in jobs} == {words[2] for words in ran}
    assert "Launching 4 jobs with client_lib" in done.stdout


@pytest.mark.process
def test_an_error_of_a_run_is_that_of_the_program(folder: Path) -> None:
    done = run_app(folder, "db.driver=broken")
    assert done.returncode == 1
    assert "no such driver" in done.stdout + done.stderr


def test_the_options_are_arguments_of_job() -> None:
    assert set(launcher._OPTIONS.split()) <= set(JobSpec.model_fields)
    assert json.dumps(launcher._NODE)
