"""Reads values that a GPU computes, without waiting for the GPU."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_WAITING_MAX = 64
"""Most groups of values that wait; more are not read."""


class DeviceValues:
    """Values of tensors on GPUs. They are read when the GPU has computed them, on a stream of
    their own: a read on the stream of the script would wait for all that the script has started."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._waiting: list[tuple[list[Any], list[Any], Callable[[list[float]], None]]] = []
        """Events, tensors, and who takes the values."""
        self._streams: dict[Any, Any] = {}
        """A stream of each device."""

    def read(self, tensors: Sequence[Any], take: Callable[[list[float]], None]) -> None:
        """Give the values of tensors with one element each to `take`, now or later."""
        if not any(tensor.is_cuda for tensor in tensors):
            take([float(tensor) for tensor in tensors])
            return
        if len(self._waiting) < _WAITING_MAX:
            # copies: the script may change or free what it has
            copies = [tensor.detach().clone() for tensor in tensors]
            devices = {each.device for each in copies if each.is_cuda}
            events = [self._recorded(device) for device in devices]
            self._waiting.append((events, copies, take))

    def poll(self) -> None:
        """Read what is computed by now."""
        while self._waiting and all(event.query() for event in self._waiting[0][0]):
            _, tensors, take = self._waiting.pop(0)
            take([self._value(tensor) for tensor in tensors])

    def _recorded(self, device: Any) -> Any:
        """An event after all that the script has started on a device."""
        with self._torch.cuda.device(device):
            event = self._torch.cuda.Event()
            event.record()
        return event

    def _value(self, tensor: Any) -> float:
        if not tensor.is_cuda:
            return float(tensor)
        if tensor.device not in self._streams:
            self._streams[tensor.device] = self._torch.cuda.Stream(tensor.device)
        with self._torch.cuda.stream(self._streams[tensor.device]):
            return float(tensor)
