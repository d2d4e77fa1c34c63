"""`client-lib serve` and `client-lib server`: the server's own command line."""

import sys

import pytest

from client_lib.cli.commands import server
from client_lib.errors import NotSupported
from client_lib.transport import local_server


def test_without_the_servers_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # an install without the extra takes minutes
    monkeypatch.setattr(local_server, "LIBRARIES", ("no_such_library",))
    with pytest.raises(NotSupported) as refused:
        server.become_server("client-lib serve", ["--port", "0"])
    assert "no_such_library" in refused.value.message
    assert f"{sys.executable} -m pip install 'client-lib[server]'" in (refused.value.hint or "")
