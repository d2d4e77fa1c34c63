"""Runs in each rank of a drill, before its script, and writes what each step of the first optimizer
began with: digests of weights, gradients, state and random numbers, and the learning rates.

Two runs that are alike have equal records, and the first record of a resumed run tells what it got
back. Also written: which files the script saves, renames, and opens for writing. Nothing is changed
but hooks of torch, which it imports no earlier than the script does.

The launcher's file `rank_runner` executes this file, in the user's interpreter: standard library
only, Python 3.8. An error of its own is written, and never reaches the script.
"""

import builtins
import ctypes
import json
import os
import sys
import time
import traceback
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

_SAMPLE = 4096
"""Most elements of a tensor that a digest covers, evenly spread."""
_TENSORS = 2000
"""Most tensors that a digest covers."""
_PATHS = 1000
"""Most paths of each kind that are told."""
_WRITES = os.O_WRONLY | os.O_RDWR


class _Probe:
    """The record that is being made, and the file of all."""

    def __init__(self, folder: str) -> None:
        rank = os.environ.get("RANK", "0")
        self.pid = os.getpid()
        self.own = os.environ.get("CLIENT_LIB_WORKER_DIR", folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.file = os.open(os.path.join(folder, "rank-%s.jsonl" % rank), flags, 0o600)
        self.torch: Any = None
        self.optimizer: Any = None
        self.record: Dict[str, Any] = {}
        self.batch: Optional[int] = None
        self.scale: Optional[List[Any]] = None
        self.told: Dict[str, Set[str]] = {"opened": set(), "renamed": set(), "saved": set()}

    def write(self, entry: Dict[str, Any]) -> None:
        os.write(self.file, (json.dumps(entry) + "\n").encode("utf-8", "backslashreplace"))

    def path(self, kind: str, path: Any) -> None:
        """Write a path, once, unless the file belongs to the launcher."""
        told = self.told[kind]
        path = os.path.abspath(os.fsdecode(path))
        if path not in told and len(told) < _PATHS and not path.startswith(self.own):
            told.add(path)
            self.write({kind: path})

    # --- hooks of torch

    def install(self, torch: Any) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self.torch = torch
        register_module_forward_pre_hook(self._guarded(self._before_forward))
        register_optimizer_step_pre_hook(self._guarded(self._before_step))
        register_optimizer_step_post_hook(self._guarded(self._after_step))
        self._wrap_save(torch)
        self._wrap_scaler(torch)

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            if os.getpid() != self.pid:  # a fork, such as a worker of a DataLoader
                return
            try:
                hook(*args)
            except Exception:  # noqa: BLE001  (it must not reach the script)
                self.write({"error": traceback.format_exc(limit=-3)})

        return guarded

    def _wrap_save(self, torch: Any) -> None:
        save = torch.save

        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, bytes, os.PathLike)):
                self.path("saved", f)
            elif isinstance(getattr(f, "name", None), (str, bytes)):
                self.path("saved", f.name)
            return save(obj, f, *args, **kwargs)

        torch.save = saved

    def _wrap_scaler(self, torch: Any) -> None:
        kind = getattr(getattr(torch, "amp", None), "GradScaler", None)
        if kind is None:
            return
        step = kind.step

        def scaled(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                state = scaler.state_dict()
                self.scale = [state.get("scale"), state.get("_growth_tracker")]
            return step(scaler, *args, **kwargs)

        kind.step = scaled

    def _before_forward(self, module: Any, args: Any) -> None:
        if self.batch is None and module.training and self.torch.is_grad_enabled():
            tensors = list(self._tensors(args))
            if tensors:
                self.batch = self._digest(tensors)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self.optimizer is None:
            self.optimizer = optimizer
        if self.optimizer is not optimizer:
            return
        self.record = {}  # an error below must not leave the record of the step before
        self.record = {
            "weights": self._digest(self._weights()),
            "state": self._state(),
            "rates": [float(group.get("lr", 0.0)) for group in optimizer.param_groups],
            "random": self._random(),
            "scale": self.scale,
        }

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self.optimizer is not optimizer:
            return
        # only now: a closure, such as Lightning's, makes the batch and the gradients in the step
        batch = self.batch
        self.batch = None
        if not self.record:
            return
        weights = self._weights()
        self.record["batch"] = batch
        self.record["gradients"] = self._digest(
            [each.grad for each in weights if each.grad is not None]
        )
        self.record["weights_after"] = self._digest(weights)
        self.record["state_after"] = self._state()
        self.record["time"] = time.time()
        self.write(self.record)

    # --- digests

    def _weights(self) -> List[Any]:
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    def _state(self) -> int:
        """Digest of what the optimizer keeps of each weight: moments, and counters of steps."""
        found = []
        text = []
        for weight in self._weights():
            kept = self.optimizer.state.get(weight, {})
            for name in sorted(kept, key=str):
                value = kept[name]
                if hasattr(value, "untyped_storage"):
                    found.append(value)
                elif value is not None:
                    text.append("%s=%r" % (name, value))
        return zlib.crc32(repr(text).encode(), self._digest(found))

    def _tensors(self, value: Any, depth: int = 3) -> Iterator[Any]:
        if isinstance(value, self.torch.Tensor):
            yield value
        elif depth and isinstance(value, dict):
            for each in value.values():
                yield from self._tensors(each, depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            for each in value:
                yield from self._tensors(each, depth - 1)

    def _digest(self, tensors: List[Any]) -> int:
        digest = 0
        for tensor in tensors[:_TENSORS]:
            tensor = tensor.detach()
            if hasattr(tensor, "to_local"):  # a shard
                tensor = tensor.to_local()
            if tensor.layout is not self.torch.strided:
                continue
            flat = tensor.reshape(-1)
            every = max(1, flat.numel() // _SAMPLE)
            flat = flat[::every].contiguous().cpu()
            size = flat.numel() * flat.element_size()
            digest = zlib.crc32(ctypes.string_at(flat.data_ptr(), size) if size else b"", digest)
        return digest

    def _random(self) -> Dict[str, int]:
        """Digest of each generator of random numbers that the process has."""
        found = {"torch": self._digest([self.torch.get_rng_state()])}
        if self.torch.cuda.is_available() and self.torch.cuda.is_initialized():
            found["cuda"] = self._digest([self.torch.cuda.get_rng_state()])
        if "random" in sys.modules:
            found["python"] = zlib.crc32(repr(sys.modules["random"].getstate()[1]).encode())
        if "numpy.random" in sys.modules:
            kind, keys, at = sys.modules["numpy"].random.get_state()[:3]
            found["numpy"] = zlib.crc32(b"%d" % at, zlib.crc32(keys.tobytes()))
        return found

    # --- files

    def audit(self, event: str, args: Any) -> None:
        if os.getpid() != self.pid:
            return
        if event == "open" and isinstance(args[0], (str, bytes)):
            mode, flags = args[1:3]
            if (mode and set("wax+") & set(mode)) or (not mode and flags & _WRITES):
                self.path("opened", args[0])
        elif event == "os.rename":
            self.path("renamed", args[1])


def _when_torch_is_there(then: Callable[[Any], None]) -> None:
    """Call `then` with torch when the script has imported it. The warm pool's torch is imported
    already, and comes through the same statement."""
    plain_import = builtins.__import__

    def watched_import(*args: Any, **kwargs: Any) -> Any:
        module = plain_import(*args, **kwargs)
        torch = sys.modules.get("torch")
        spec = getattr(torch, "__spec__", None)
        is_whole = torch is not None and not getattr(spec, "_initializing", False)
        if is_whole and hasattr(torch, "optim"):
            if builtins.__import__ is watched_import:
                builtins.__import__ = plain_import
            then(torch)
        return module

    builtins.__import__ = watched_import


def _start_time() -> str:
    """Start time of this process, as `launcher_protocol.processes` tells it (Linux)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return fields[19].decode()


def _begin() -> None:
    probe = _Probe(os.environ["CLIENT_LIB_DRILL"])
    began: List[bool] = []

    def install(torch: Any) -> None:
        if not began:
            began.append(True)
            try:
                probe.install(torch)
            except Exception:  # noqa: BLE001  (it must not reach the script)
                probe.write({"error": traceback.format_exc(limit=-3)})

    sys.addaudithook(probe.audit)
    _when_torch_is_there(install)
    probe.write({"pid": probe.pid, "started": _start_time()})


_begin()
