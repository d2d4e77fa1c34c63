"""Reads values that a GPU computes, without waiting for the GPU."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_WAITING_MAX = 64
"""Most groups of values that wait; more are not read."""


class DeviceValues:
    """Values of tensors on one GPU. They are read when the GPU has computed them, on a stream of
    their own: a read on the stream of the script would wait for all that the script has started."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._waiting: list[tuple[Any, Sequence[Any], Callable[[list[float]], None]]] = []
        self._stream: Any = None

    def read(self, tensors: Sequence[Any], take: Callable[[list[float]], None]) -> None:
        """Give the values of tensors with one element each to `take`, now or later."""
        if not any(tensor.is_cuda for tensor in tensors):
            take([float(tensor) for tensor in tensors])
            return
        if len(self._waiting) < _WAITING_MAX:
            # copies: the script may change or free what it has
            copies = [tensor.detach().clone() for tensor in tensors]
            with self._torch.cuda.device(next(each.device for each in copies if each.is_cuda)):
                event = self._torch.cuda.Event()
                event.record()
            self._waiting.append((event, copies, take))

    def poll(self) -> None:
        """Read what is computed by now."""
        while self._waiting and self._waiting[0][0].query():
            _, tensors, take = self._waiting.pop(0)
            device = next(each.device for each in tensors if each.is_cuda)
            self._stream = self._stream or self._torch.cuda.Stream(device)
            with self._torch.cuda.stream(self._stream):
                values = [float(tensor) for tensor in tensors]
            take(values)
