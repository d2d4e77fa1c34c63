"""Finds how many steps a script plans, by its scheduler of learning rates."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LAG_MAX = 2
"""Most steps by which a scheduler may be behind or ahead of the optimizer with which it steps."""


def planned_steps(scheduler: Any, step: int) -> int | None:
    """The last step that a scheduler plans, when `step` is done; None: the scheduler does not tell,
    or does not step with the optimizer, such as a scheduler that steps once in an epoch."""
    total = _total(scheduler)
    done = getattr(scheduler, "last_epoch", None)
    if not isinstance(total, int) or not isinstance(done, int) or total < step:
        return None
    return total if abs(done - step) <= _LAG_MAX < step else None


def _total(scheduler: Any) -> Any:
    parts = getattr(scheduler, "_schedulers", None)
    milestones = getattr(scheduler, "_milestones", None)
    if parts and milestones:  # one after the other
        last = _total(parts[-1])
        return last + milestones[-1] if isinstance(last, int) else None
    for rule in getattr(scheduler, "lr_lambdas", None) or ():  # of transformers
        planned = (getattr(rule, "keywords", None) or {}).get("num_training_steps")
        if planned is not None:
            return planned
    return getattr(scheduler, "total_steps", None) or getattr(scheduler, "T_max", None)
