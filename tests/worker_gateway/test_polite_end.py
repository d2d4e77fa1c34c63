"""The server ends by SIGTERM, as at each upgrade, while threads of agents send
lines and wait for orders.
"""

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from client_lib.launcher_protocol.log_segments import SegmentWriter
from client_lib.worker.pod import AgentEvent, Instruction
from client_lib.worker.pod.log_carriers import ServerCarrier, Spool
from client_lib.worker.pod.server_channel import ServerChannel, ServerClient
from client_lib.worker.pod.settings import PodSettings
from server_stub.serve import Server
from server_stub.worker_gateway.attempt import WorkerGroup
from tests.http.conftest import Running
from tests.kit.examples import examples
from tests.kit.waiting import until
from tests.worker_gateway.conftest import free_port
from tests.worker_gateway.test_log_file import records, stored

BLOCK = 200
"""Records that each agent has to send around one end of the server."""


class Servers:
    """Servers on one port and one directory, one after the other, with one
    open attempt of two workers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.port, self.over = folder, free_port(), False
        self.workers = tuple(folder / "data" / "id" / "workers" / str(number) for number in (0, 1))

    def start(self) -> None:
        self.running = Running(self._folder, server=Server, port=self.port)
        folder = self._folder / "data" / "id"
        group = WorkerGroup("id", "train", 1, folder, self.workers, 1, None, None, 2**30)
        registry = self.running.parts.workers
        self.running.call(lambda: registry.open(group, lambda: None))
        self.token = registry.token("id", 1)

    def end(self) -> None:
        self.running.stop()

    def client(self, pod: PodSettings) -> ServerClient:
        """A client whose thread rests after the test."""
        servers = self

        class Client(ServerClient):
            def put_state(self, *state: Any) -> Instruction:
                if servers.over:
                    threading.Event().wait()
                return super().put_state(*state)

        return Client(pod, self.token, None)


def pod_settings(
    server_url: str | None, worker: int, n_workers: int = 2, barrier_port: int = 0
) -> PodSettings:
    return PodSettings(
        server_url=server_url,
        job="train",
        attempt=1,
        worker=worker,
        n_workers=n_workers,
        spool_bytes=2**30,
        snapshot=None,
        function=False,
        conda_prefix=None,
        barrier_port=barrier_port,
        termination_log="",
        stay_s=600.0,
        claim_s=900.0,
        leave_s=60.0,
        uid=f"uid-{worker}",
        name=f"pod-{worker}",
        master_addr="127.0.0.1",
        master_port=0,
        environment={},
        start="first",
    )


class AgentThreads:
    """Those threads of one worker's agent that talk to the server."""

    def __init__(self, folder: Path, servers: Servers, worker: int) -> None:
        pod = pod_settings(f"http://127.0.0.1:{servers.port}", worker)
        self.orders: list[AgentEvent] = []
        self.written = 0
        self._log = SegmentWriter(str(folder), 2**62, 2**16)
        spool = Spool(str(folder), 2**30)

        def new_server() -> ServerClient:
            return servers.client(pod)

        self.carrier = ServerCarrier(new_server(), spool)
        self.channel = ServerChannel(new_server, spool.newest, "", self.orders.append)
        self.channel.claim()
        self.channel.start()
        self.carrier.start()

    def write(self, count: int) -> None:
        self._log.add(records(self.written, self.written + count))
        self._log.flush()
        self.written += count

    def end(self) -> None:
        self.carrier.finish()
        self.carrier.join(60)
        assert not self.carrier.is_alive()


@settings(
    max_examples=examples(6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(moments=st.lists(st.floats(0.0, 0.15), min_size=1, max_size=3), ready=st.integers(0, 2))
def test_a_server_that_ends_politely_at_any_moment_costs_no_line_and_no_order(
    moments: list[float], ready: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """`moments`: seconds from a block of lines to the end of the server; `ready`: the end before
    which the first worker is ready, which the last is after all of them."""
    with tempfile.TemporaryDirectory() as temporary:
        servers = Servers(Path(temporary))
        servers.start()
        agents = [
            AgentThreads(Path(temporary) / f"spool-{worker}", servers, worker) for worker in (0, 1)
        ]
        for number, moment in enumerate(moments):
            if number == ready:
                agents[0].channel.send_state("ready")
            for agent in agents:
                agent.write(BLOCK)
            time.sleep(moment)
            servers.end()
            for agent in agents:
                agent.write(BLOCK)
            servers.start()
        for agent in agents:
            agent.channel.send_state("ready")
        for agent in agents:
            agent.end()
            until(lambda: agent.orders == [Instruction("go")])  # noqa: B023  # called at once
        for agent, folder in zip(agents, servers.workers, strict=True):
            assert stored(folder) == records(0, agent.written)
        assert "an error in the agent's thread" not in capfd.readouterr().err
        servers.over = True
        servers.end()
