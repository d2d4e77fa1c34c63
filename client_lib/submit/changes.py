"""Changes of a job for another run, and the messages about them. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import split_script
from client_lib.spec.job import JobSpec, from_last_step
from client_lib.spec.refusals import validated
from client_lib.spec.request import CodeInPlace, FunctionCode, SubmitRequest
from client_lib.spec.secrets import MASK
from client_lib.spec.wire import JobInfo
from client_lib.submit.arguments import words

_CODE = ("script", "code", "working_dir")  # fields that say what runs
_CALL = ("args", "flags")  # fields that a function does not read: it was stored with its arguments
_EXPERIMENT = ("script", "args", "flags", "env_variables")
"""Fields that the program reads: a run with other values is another experiment, and
needs checkpoints of its own.
"""


def changed(
    spec: JobSpec, changes: Mapping[str, object], function: FunctionCode | None = None
) -> JobSpec:
    """The spec with other values for some fields; None: the default. `function`: what the job
    calls, if it does. Raises InvalidRequest: an unknown field, a wrong value, a field that would
    change the code."""
    path = spec.python_script
    script = changes.get("script")
    try:
        is_same_file = (
            path is not None and isinstance(script, str) and split_script(script)[:1] == [path]
        )
    except ValueError as error:
        raise InvalidRequest(f"script: {error}") from None
    for name in _CODE:
        # other words may stand behind it
        if name in changes and not (name == "script" and is_same_file):
            raise InvalidRequest(
                f"{name} can't be changed: a job that is submitted again runs the same code",
                hint="submit a new job",
            )
    for name in _CALL:
        if function and name in changes:
            raise InvalidRequest(
                f"{name} can't be changed: the job calls {function.name} with the arguments that "
                "were stored with it",
                hint="submit the function again, with other arguments",
            )
    requirements = changes.get("requirements")
    if isinstance(requirements, str | PathLike):
        changes = {**changes, "requirements": [fspath(requirements)]}
    if "args" in changes:
        changes = {**changes, "args": words(changes["args"])}
    kept = from_last_step(spec).model_dump(exclude_unset=True)
    given = {
        name: value
        for name, value in {**kept, **changes}.items()
        if value is not None or name == "log_file"
    }
    return validated(JobSpec, given)


def with_arguments(spec: JobSpec, args: Sequence[str]) -> dict[str, Any]:
    """The changes that replace all arguments of a script, also the arguments that stand behind it
    in the field `script`.
    """
    path = spec.python_script
    replaced: dict[str, Any] = {"args": list(args)}
    return (
        replaced
        if path is None or not split_script(spec.script)[1:]
        else {"script": shlex.quote(path), **replaced}
    )


def differences(before: JobSpec, after: JobSpec) -> list[str]:
    """`n_workers: 2 -> 4` for each field that differs but the name, quoted as a shell
    needs it; secrets masked.
    """
    old = before.masked()
    new = after.masked()
    return [
        f"{name}: {_shown(getattr(old, name))} -> {_shown(getattr(new, name))}"
        for name in JobSpec.model_fields
        if name != "name" and getattr(before, name) != getattr(after, name)
    ]


# --- checkpoints


def what_differs(stored: SubmitRequest, after: JobSpec, sha256_now: str | None) -> list[str]:
    """The fields that make the new run another experiment. `sha256_now`: see `code_message`."""
    # compared as the text that the program gets
    differ = [
        name
        for name in _EXPERIMENT
        if _shown(getattr(stored.spec, name)) != _shown(getattr(after, name))
    ]
    edited = isinstance(stored.code, CodeInPlace) and None not in (stored.code.sha256, sha256_now)
    if edited and stored.code.sha256 != sha256_now and "script" not in differ:
        differ.insert(0, "script")
    return differ


def checkpoints(
    before: JobInfo, after: JobSpec, differ: Sequence[str], resume: bool | None
) -> tuple[bool, str]:
    """True if the new run gets a copy of the checkpoints of the old job, and a message about the
    checkpoints that the new run will find. `differ`: see `what_differs`. `resume`: the user's wish;
    None: checkpoints of the same experiment are used. Raises InvalidRequest: `resume` contradicts
    the state of the old job or a `checkpoint_dir`."""
    old = before.name
    its_own = before.spec.checkpoint_dir
    wanted = not differ if resume is None else resume
    reason = (
        f": {', '.join(differ)} {'differs' if differ == ['script'] else 'differ'}" if differ else ""
    )
    if after.checkpoint_dir is not None:
        if not wanted and after.checkpoint_dir == its_own:
            raise InvalidRequest(
                f"checkpoint_dir={its_own} has the checkpoints of {old}, "
                f"and the new job is to start without them{reason}",
                hint="give another checkpoint_dir, `--set checkpoint_dir=` for a new one, "
                "or --resume (resume=True) to start from these checkpoints",
            )
        return False, f"checkpoint_dir={after.checkpoint_dir}, as it was left"
    if not wanted:
        way_out = "" if resume is False else "; --resume (resume=True) starts from them"
        return False, f"it starts fresh, without the checkpoints of {old}{reason}{way_out}"
    if its_own is not None:
        if resume:
            raise InvalidRequest(
                f"the checkpoints of {old} are in checkpoint_dir={its_own}, which is not copied",
                hint="leave checkpoint_dir as it was to start from them",
            )
        return False, f"checkpoint_dir: a new one; those of {old} stay in {its_own}"
    if before.state.final:
        return True, f"checkpoint_dir: a copy of what {old} has left there"
    if resume:
        raise InvalidRequest(
            f"{old} has not ended, and still writes its checkpoints",
            hint=f"wait until it has ended, or stop it: client-lib cancel {old}",
        )
    return (
        False,
        f"checkpoint_dir: a new one, as {old} is {before.state} and still writes to its own",
    )


def code_message(stored: SubmitRequest, sha256_now: str | None) -> str:
    """The code that the new job runs. `sha256_now`: digest of a script in place as it is
    now; None: can't be read.
    """
    if not isinstance(stored.code, CodeInPlace):
        return f"the same code: snapshot {stored.code.sha256[:12]} of {stored.code.root}"
    if stored.code.sha256 is None or sha256_now is None:
        return "the code runs in place: it is today's, not that of the first run"
    if sha256_now == stored.code.sha256:
        return "the code runs in place; the script is as it was, what it imports is today's"
    return "the code runs in place, and the script was changed since: today's runs"


def _shown(value: object) -> str:
    """Write a value as options take it: `--flag key=value`, `--flag key` without a value."""
    if value is None or isinstance(value, str):
        return "none" if value is None else str(value)
    if isinstance(value, Mapping):
        quoted = {
            key: each if each == MASK else shlex.quote(str(each)) for key, each in value.items()
        }
        return (
            " ".join(key if value[key] is None else f"{key}={text}" for key, text in quoted.items())
            or "none"
        )
    return (shlex.join(map(str, value)) or "none") if isinstance(value, Sequence) else str(value)
