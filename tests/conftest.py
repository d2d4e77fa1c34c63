"""Settings of every test, the local server that tests share, and the file for the
second chances of `.ci/run`.
"""

import gc
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from client_lib.transport.local_server import find_or_start
from tests.kit.examples import examples
from tests.kit.local_server import stop_server

pytest_plugins = ["tests.cluster.fixtures", "tests.kit.bounds", "tests.kit.rights"]

SECOND_CHANCE = {"process", "cluster", "local_server"}
"""Tests that may be repeated, by marker or fixture: the load of a machine can break a
deadline of a real process.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--second-chances",
        metavar="FILE",
        type=Path,
        help="write the failed tests to FILE, one a line, if all are of tiers that may be repeated "
        "(pytest @FILE)",
    )


def pytest_configure() -> None:
    """A shell that runs us in the background has SIGINT ignored, and all that
    we start would inherit it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # the load of a machine must not fail a test of a property
    settings.register_profile(
        "any machine",
        max_examples=examples(100),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note in the keywords, which a report carries, that a test has
    jobs run by the local server.
    """
    for item in items:
        if "local_server" in getattr(item, "fixturenames", ()):
            item.keywords["local_server"] = True


def pytest_collection_finish() -> None:
    """Spare each later garbage collection the objects of all tests and their modules."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    """Tests that are coroutines run on asyncio, as the server does, and not on trio."""
    return "asyncio"


@pytest.fixture(scope="session")
def local_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a real local server that all tests of this run share."""
    state = tmp_path_factory.mktemp("server") / "state"
    find_or_start(state)
    yield state
    stop_server(state)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if path := config.getoption("--second-chances"):
        failed = [
            report
            for kind in ("failed", "error")
            for report in terminalreporter.stats.get(kind, [])
        ]
        repeatable = all(SECOND_CHANCE & set(getattr(report, "keywords", ())) for report in failed)
        names = dict.fromkeys(_name(report.nodeid) for report in failed) if repeatable else {}
        path.write_text("".join(f"{name}\n" for name in names))


def _name(node: str) -> str:
    """The test without the name of its xdist group."""
    return re.sub(r"@[\w. ]+$", "", node)
