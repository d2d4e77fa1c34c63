"""The local runtime with warm pools: when one is begun, used, replaced and left
alone, and what a job is told.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from server_stub.runtimes import Attempt
from server_stub.runtimes.local import warm
from server_stub.runtimes.local.plan import wants_warm
from tests.kit.bounds import Bounds
from tests.kit.processes import alive
from tests.kit.waiting import eventually
from tests.runtimes.conftest import Site, running

pytestmark = [
    pytest.mark.process,
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the warm pool is there on Linux only"),
]
SCRIPT = "import tqdm, os; print('ran')"


def write(folder: Path, text: str = SCRIPT) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


async def warmed(site: Site) -> Site:
    """A first job has run, and a pool stands."""
    await site.ended(site.submit("first", write(site.folder)))
    await eventually(lambda: [pool.state for pool in site.runtime.warm_pools()] == ["ready"])
    return site


async def was_warm(site: Site, attempt: Attempt) -> list[bool | None]:
    ended = await site.ended(attempt)
    assert ended.reason == "Completed", ended
    return [worker.warm for worker in ended.workers]


def conda_environment(folder: Path) -> Path:
    """Another interpreter, with the packages of this one."""
    python = folder / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python.parents[1]


def notes(site: Site, attempt: Attempt) -> list[str]:
    return [note for seen in site.of(attempt) for note in seen.notes]


@pytest.mark.smoke
async def test_the_first_job_starts_fresh_and_those_behind_it_warm(tmp_path: Path) -> None:
    async with running(tmp_path, warm=True) as site:
        first = site.submit("first", write(tmp_path))
        assert await was_warm(site, first) == [False]
        assert notes(site, first) == []
        await eventually(lambda: [pool.state for pool in site.runtime.warm_pools()] == ["ready"])
        second = site.submit("second", write(tmp_path), n_workers=2)
        assert await was_warm(site, second) == [True, True]
        assert site.lines(second)[-1] == "ran"
        shown = site.runtime.warm_pools()[0]
        assert (shown.python, shown.launches, shown.state) == (sys.executable, 2, "ready")
        assert shown.modules > 3
        assert shown.memory_mib


async def test_warm_is_off_by_a_setting_by_the_job_and_for_other_interpreters_and_commands(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, warm=False) as site:
        assert await was_warm(site, site.submit("off", write(tmp_path))) == [False]
        assert not (tmp_path / "warm").exists()
    async with running(tmp_path, warm=True) as site:
        await warmed(site)
        job = site.submit("job", write(tmp_path), warm=False)
        assert await was_warm(site, job) == [False]
        assert notes(site, job) == []  # it asked for it
        command = site.submit("command", "true", type="binary")
        other = site.submit(
            "other", write(tmp_path, "print(1)"), conda_env=str(conda_environment(tmp_path))
        )
        for attempt, why in (
            (command, "the command is no Python script"),
            (other, "an interpreter of its own"),
        ):
            assert await was_warm(site, attempt) == [False]
            assert [why in note for note in notes(site, attempt)] == [True]


async def test_where_launchers_cannot_sweep_there_is_no_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as on macOS
    monkeypatch.setattr(warm, "LAUNCHER_SWEEPS", False)
    async with running(tmp_path, warm=True) as site:
        assert await was_warm(site, site.submit("first", write(tmp_path))) == [False]
        assert await was_warm(site, site.submit("second", write(tmp_path))) == [False]
        assert site.runtime.warm_pools() == []


async def test_a_script_that_imports_nothing_installed_begins_no_pool(tmp_path: Path) -> None:
    async with running(tmp_path, warm=True) as site:
        await site.ended(site.submit("first", write(tmp_path, "print(1)")))
        await site.ended(site.submit("second", write(tmp_path, "print(1)")))
        assert site.runtime.warm_pools() == []


async def test_a_job_that_does_not_fit_says_why_and_runs_fresh(tmp_path: Path) -> None:
    async with running(tmp_path, warm=True) as site:
        await warmed(site)
        odd = site.submit("odd", write(tmp_path), env_variables={"MALLOC_ARENA_MAX": 1})
        assert await was_warm(site, odd) == [False]
        assert "MALLOC_ARENA_MAX" in notes(site, odd)[0]


async def test_after_two_jobs_that_did_not_fit_the_pool_is_made_for_such(tmp_path: Path) -> None:
    async with running(tmp_path, warm=True) as site:
        await warmed(site)
        begun = site.runtime.warm_pools()[0].pid
        for name in ("one", "two"):
            await site.ended(
                site.submit(name, write(tmp_path), env_variables={"MALLOC_ARENA_MAX": 1})
            )
        await eventually(lambda: site.runtime.warm_pools()[0].pid != begun)
        await eventually(lambda: [pool.state for pool in site.runtime.warm_pools()] == ["ready"])
        third = site.submit("three", write(tmp_path), env_variables={"MALLOC_ARENA_MAX": 1})
        assert await was_warm(site, third) == [True]


async def test_a_dead_pool_costs_a_job_nothing_but_time(tmp_path: Path) -> None:
    async with running(tmp_path, warm=True) as site:
        await warmed(site)
        pool = site.runtime.warm_pools()[0].pid
        assert pool
        os.kill(pool, signal.SIGSTOP)  # it hangs: found out at the next launch
        hung = site.submit("hung", write(tmp_path))
        assert await was_warm(site, hung) == [False]
        assert "did not answer" in notes(site, hung)[0]
        await eventually(lambda: [pool.state for pool in site.runtime.warm_pools()] == ["ready"])
        assert await was_warm(site, site.submit("next", write(tmp_path))) == [True]
        await eventually(lambda: not alive(pool))


def package_tool(folder: Path, text: str) -> tuple[Path, Submitter]:
    """Make a package `tool` with this text; return its file, and a shell whose Python finds it."""
    site_packages = folder / "site-packages"
    site_packages.mkdir()
    tool = site_packages / "tool.py"
    tool.write_text(text)
    environment = dict(os.environ) | {"PYTHONPATH": str(site_packages)}
    return tool, Submitter(python=sys.executable, environment=environment, working_dir=str(folder))


async def test_an_import_that_does_not_end_costs_the_pool_and_no_other_one(
    tmp_path: Path, bounds: Bounds
) -> None:
    bounds(warm, _START_S=3.0)
    _, shell = package_tool(tmp_path, "import os, time; 'RANK' in os.environ or time.sleep(600)")
    async with running(tmp_path, warm=True) as site:
        await site.ended(
            site.submit("first", write(tmp_path, "import tool"), n_workers=2, _submitter=shell)
        )
        await eventually(
            lambda: [pool.state for pool in site.runtime.warm_pools() if pool.pid] == ["starting"]
        )
        pid = site.runtime.warm_pools()[0].pid or 0
        await eventually(lambda: not site.runtime.warm_pools() and not alive(pid))


async def test_a_new_package_begins_a_pool_that_has_it(tmp_path: Path) -> None:
    async with running(tmp_path, warm=True) as site:
        await warmed(site)
        before = site.runtime.warm_pools()[0]
        await site.ended(site.submit("second", write(tmp_path, "import tqdm, yaml")))
        await eventually(
            lambda: (
                [
                    p.modules > before.modules
                    for p in site.runtime.warm_pools()
                    if p.state == "ready"
                ]
                == [True]
            )
        )


async def test_an_upgraded_package_is_that_of_the_next_job_and_of_the_warm_ones_behind_it(
    tmp_path: Path,
) -> None:
    tool, shell = package_tool(tmp_path, "version = 1")
    script = write(tmp_path, "import tool; print(tool.version)")
    async with running(tmp_path, warm=True) as site:

        async def ran(name: str) -> tuple[list[bool | None], str]:
            attempt = site.submit(name, script, _submitter=shell)
            return await was_warm(site, attempt), site.lines(attempt)[-1]

        async def ready() -> None:
            await eventually(
                lambda: [pool.state for pool in site.runtime.warm_pools()] == ["ready"]
            )

        assert await ran("first") == ([False], "1")
        await ready()
        assert await ran("warm") == ([True], "1")
        tool.write_text("version = 22")
        tool.with_name("tool-22.dist-info").mkdir()
        assert await ran("upgraded") == ([False], "22")
        await ready()
        assert await ran("warm-again") == ([True], "22")


async def test_an_edit_of_the_users_own_module_counts_in_the_next_job(tmp_path: Path) -> None:
    script = write(tmp_path, "import tqdm, mine; print(mine.text)")
    (tmp_path / "mine.py").write_text("text = 'before'")
    async with running(tmp_path, warm=True) as site:
        await site.ended(site.submit("first", script))
        await eventually(lambda: [pool.state for pool in site.runtime.warm_pools()] == ["ready"])
        # Python tells two versions of one second apart by their size
        for text in ("before", "edited since"):
            (tmp_path / "mine.py").write_text(f"text = {text!r}")
            attempt = site.submit(text, script)
            assert await was_warm(site, attempt) == [True]
            assert site.lines(attempt)[-1] == text


async def test_pools_end_with_their_server_and_the_list_of_modules_stays(tmp_path: Path) -> None:
    async with running(tmp_path, warm=True) as site:
        pool = (await warmed(site)).runtime.warm_pools()[0].pid
        assert pool
    await eventually(lambda: not alive(pool))
    async with running(tmp_path, warm=True) as site:
        await site.ended(site.submit("again", write(tmp_path, "print('imports nothing')")))
        await eventually(
            lambda: (
                [pool.modules > 3 for pool in site.runtime.warm_pools() if pool.state == "ready"]
                == [True]
            )
        )


async def test_a_warm_job_outlives_its_server_and_is_found_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    text = f"import tqdm, os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    async with running(tmp_path, warm=True) as site:
        await warmed(site)
        attempt = site.submit("long", write(tmp_path, text))
        assert (await site.phase(attempt, "running")).workers[0].warm
    async with running(tmp_path, warm=True) as site:
        site.runtime.submit(attempt)
        await site.phase(attempt, "running")
        gate.touch()
        assert await was_warm(site, attempt) == [True]


def test_a_list_grows_and_a_few_modules_of_known_packages_are_no_reason_for_a_new_pool() -> None:
    assert warm.extended(["torch"], ["torch", "torch.fx"]) == (["torch", "torch.fx"], False)
    assert warm.extended(["torch"], ["yaml"]) == (["torch", "yaml"], True)
    assert warm.extended(["torch"], [f"torch.m{n}" for n in range(20)])[1]
    assert warm.extended([], ["client_lib.worker", "_distutils_hack"]) == ([], False)


def test_scripts_and_functions_may_be_warm_and_commands_and_other_environments_not() -> None:
    script, command = JobSpec(script="train.py"), JobSpec(script="make all")
    assert wants_warm(script, False, default=True)
    assert wants_warm(command, True, default=True)
    assert not wants_warm(command, False, default=True)
    assert not wants_warm(script, False, default=False)
    assert not wants_warm(script.model_copy(update={"warm": False}), False, default=True)
    assert not wants_warm(script.model_copy(update={"conda_env": "other"}), False, default=True)
