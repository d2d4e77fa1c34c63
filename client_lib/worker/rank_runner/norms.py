"""The norms of the gradients and of the parameters of optimizers."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NORMS_SHARE = 0.004
"""Largest part of the time that norms may take."""
_SHARDED_BY = ("deepspeed", "megatron.core", "fairscale")
"""Libraries whose optimizers have parts of the parameters, as plain tensors."""
_SHARDED_MARKS = ("_fsdp_flattened", "ds_id")
"""Attributes of parameters of which a rank has a part."""
_DEVICES = ("cpu", "cuda")
"""Types of the devices on which norms are computed."""


class Norms:
    """The norms over all optimizers of an iteration. They are computed now and then, so that they
    take a small part of the time. They are not shown where a rank has but a part of the parameters,
    or where parameters are on several devices."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._due = 0.0
        self._cost_s = 0.0
        self._is_open = False
        self._gradients: list[Any] = []
        self._parameters: list[Any] = []

    def begin(self) -> None:
        """An iteration begins whose norms may be computed."""
        self._gradients = []
        self._parameters = []
        self._cost_s = 0.0
        self._is_open = time.perf_counter() >= self._due and not self._is_watched()

    def add(self, optimizer: Any) -> None:
        """Compute the norms of one optimizer, whose gradients are there."""
        if not self._is_open:
            return
        begun = time.perf_counter()
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        with_gradient = [each for each in parameters if each.grad is not None]
        gradients = [each.grad for each in with_gradient]
        self._is_open = bool(gradients) and self._are_whole(with_gradient, gradients)
        if self._is_open:
            with self._torch.no_grad():
                norm = self._norm(gradients)
                scale = getattr(optimizer, "grad_scale", None)
                self._gradients.append(norm if scale is None else norm / scale)
                self._parameters.append(self._norm(with_gradient))
        self._cost_s += time.perf_counter() - begun

    def close(self) -> None:
        """An optimizer has stepped whose norms cannot be computed: this iteration has none."""
        self._is_open = False

    def finish(self) -> dict[str, Any]:
        """The norms by their names, as tensors; {}: they are not computed in this iteration."""
        begun = time.perf_counter()
        values = self._all_norms() if self._is_open else {}
        self._is_open = False
        now = time.perf_counter()
        cost_s = self._cost_s + now - begun
        self._due = max(self._due, now + cost_s / NORMS_SHARE)
        return values

    def _all_norms(self) -> dict[str, Any]:
        with self._torch.no_grad():
            return {
                "optim/grad_norm": self._joined(self._gradients),
                "optim/param_norm": self._joined(self._parameters),
            }

    def _is_watched(self) -> bool:
        """True if the script counts or records the operations of torch."""
        stack = getattr(self._torch._C, "_len_torch_dispatch_stack", int)
        return bool(stack()) or self._torch.autograd._profiler_enabled()

    def _are_whole(self, parameters: list[Any], gradients: list[Any]) -> bool:
        torch = self._torch
        if any(name in sys.modules for name in _SHARDED_BY):
            return False
        device = (self._gradients or gradients)[0].device
        if device.type not in _DEVICES:
            return False
        plain = (torch.Tensor, torch.nn.Parameter)
        for tensor in [*parameters, *gradients]:
            if type(tensor) not in plain or tensor.device != device:
                return False
            if tensor.layout != torch.strided or not tensor.is_floating_point():
                return False
        return not any(hasattr(each, mark) for each in parameters for mark in _SHARDED_MARKS)

    def _norm(self, tensors: list[Any]) -> Any:
        """The norm over all tensors, in single precision or more."""
        torch = self._torch
        halves = (torch.float16, torch.bfloat16)
        norms = [
            torch.linalg.vector_norm(each, dtype=torch.float32)
            for each in tensors
            if each.dtype in halves
        ]
        rest: dict[Any, list[Any]] = {}
        for each in tensors:
            if each.dtype not in halves:
                rest.setdefault(each.dtype, []).append(each)
        for same in rest.values():
            norms += torch._foreach_norm(same)
        return self._joined(norms)

    def _joined(self, norms: list[Any]) -> Any:
        if len(norms) == 1:
            return norms[0]
        return self._torch.linalg.vector_norm(
            self._torch.stack([norm.to(self._torch.float64) for norm in norms])
        )
