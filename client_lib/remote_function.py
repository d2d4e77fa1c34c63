"""`remote`: a function that runs as a job when it is called. Public."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, overload

from client_lib.job import Job

P = ParamSpec("P")
R = TypeVar("R")


class RemoteFunction(Generic[P, R]):
    """A function and the job that a call of it becomes. In a worker it is the plain function."""

    def __init__(self, function: Callable[P, R], options: dict[str, Any]) -> None:
        self.__client_lib_function__ = function
        self._options = options
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the job and wait; what the function returns in rank 0. Raises as `Job.result`."""
        value: R = self.submit(*args, **kwargs).result()
        return value

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """The job, submitted; it is not waited for."""
        job = self.job(*args, **kwargs)
        job.submit()
        return job

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """The job, not submitted yet."""
        return Job(script=self.__client_lib_function__, args=args, kwargs=kwargs, **self._options)

    def options(self, **options: Any) -> RemoteFunction[P, R]:
        """The same function with these arguments of Job besides."""
        return RemoteFunction(self.__client_lib_function__, self._options | options)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """A method: the object travels as its first argument."""
        if instance is None:
            return self
        return RemoteFunction(self.__client_lib_function__.__get__(instance, owner), self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (self.__client_lib_function__,)  # a worker may have nothing of this package


@overload
def remote(function: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote(**options: Any) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...
def remote(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorate a function so that calling it runs a job and gives rank 0's value. `options`: arguments of `Job`.

        @client_lib.remote(n_workers=2)
        def train(lr):
            ...

        accuracy = train(0.1)       # waits
        job = train.submit(0.1)     # does not

    Raises TypeError at once for an option that Job has not.
    """
    if function is None:
        return partial(_decorated, options=options)
    return _decorated(function, options)


def _decorated(function: Callable[..., Any], options: dict[str, Any]) -> RemoteFunction[..., Any]:
    for name in ("script", "args", "kwargs"):
        if name in options:
            raise TypeError(f"remote() takes no {name}: the function and the arguments of its calls are these")
    Job(script=_nothing, **options)
    return RemoteFunction(function, options)


def _nothing() -> None:
    """Takes nothing, so that the options alone are looked at."""
