"""The values of two GPUs, by a fake torch that knows which stream is the current one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from client_lib.worker.rank_runner.device_values import DeviceValues

SCRIPTS_STREAM = "the script's"


class FakeCuda:
    """The current device, and the current stream of each device."""

    def __init__(self) -> None:
        self.current = "cuda:0"
        self.streams = {"cuda:0": SCRIPTS_STREAM, "cuda:1": SCRIPTS_STREAM}
        self.is_done = {"cuda:0": False, "cuda:1": False}
        self.n_streams = 0

    def Event(self) -> FakeEvent:
        return FakeEvent(self)

    def Stream(self, device: str) -> FakeStream:
        self.n_streams += 1
        return FakeStream(device)

    @contextmanager
    def device(self, device: str) -> Iterator[None]:
        before = self.current
        self.current = device
        yield
        self.current = before

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.streams[stream.device] = "ours"
        yield
        self.streams[stream.device] = SCRIPTS_STREAM


@dataclass
class FakeStream:
    device: str


@dataclass
class FakeEvent:
    cuda: FakeCuda
    device: str = ""

    def record(self) -> None:
        self.device = self.cuda.current

    def query(self) -> bool:
        return self.cuda.is_done[self.device]


@dataclass
class FakeTensor:
    cuda: FakeCuda
    device: str
    value: float
    is_cuda: bool = True

    def detach(self) -> FakeTensor:
        return self

    def clone(self) -> FakeTensor:
        return self

    def __float__(self) -> float:
        if self.is_cuda:
            assert self.cuda.is_done[self.device], f"{self.device} has not computed it"
            assert self.cuda.streams[self.device] != SCRIPTS_STREAM, "it waits for the script"
        return self.value


@dataclass
class FakeTorch:
    cuda: FakeCuda = field(default_factory=FakeCuda)


def test_each_gpu_has_a_stream_for_its_values() -> None:
    torch = FakeTorch()
    values = DeviceValues(torch)
    taken: list[list[float]] = []
    on = [FakeTensor(torch.cuda, f"cuda:{number}", float(number)) for number in (0, 1)]
    for each in (*on, *on):
        values.read([each], taken.append)
    torch.cuda.is_done.update({"cuda:0": True, "cuda:1": True})
    values.poll()
    assert taken == [[0.0], [1.0], [0.0], [1.0]]
    assert torch.cuda.n_streams == 2


def test_values_of_two_gpus_are_read_when_both_have_computed_them() -> None:
    torch = FakeTorch()
    values = DeviceValues(torch)
    taken: list[list[float]] = []
    on = [FakeTensor(torch.cuda, f"cuda:{number}", float(number)) for number in (0, 1)]
    values.read([*on, FakeTensor(torch.cuda, "cpu", 2.0, is_cuda=False)], taken.append)
    for device in ("cuda:0", "cuda:1"):
        values.poll()
        assert taken == []
        torch.cuda.is_done[device] = True
    values.poll()
    assert taken == [[0.0, 1.0, 2.0]]
