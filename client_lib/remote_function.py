"""A function that runs as a job when it is called: `@remote`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, overload

from client_lib.functions import call as functions
from client_lib.job import Job, submitted

P = ParamSpec("P")
R = TypeVar("R")


class RemoteFunction(Generic[P, R]):
    """A function whose calls run as jobs. In a worker it is the plain function."""

    __name__: str

    def __init__(self, function: Callable[P, R], options: dict[str, Any]) -> None:
        self.__client_lib_function__ = function
        self._options = options
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the job, wait, and return the function's value of rank 0. Raises as `Job.result`."""
        return self.submit(*args, **kwargs).result()

    def __repr__(self) -> str:
        try:
            signature = str(inspect.signature(self.__client_lib_function__))
        except (TypeError, ValueError):  # some functions of C have none
            signature = "()"
        call = f"{functions.name_of(self.__client_lib_function__)}{signature}"
        options = [f"{name}={value!r}" for name, value in self._options.items()]
        return f"<remote {', '.join([call, *options])}>"

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit the job and return it without waiting."""
        return submitted(self.job(*args, **kwargs))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The job, not submitted yet."""
        return Job(script=self.__client_lib_function__, args=args, kwargs=kwargs, **self._options)

    def options(self, **options: Any) -> RemoteFunction[P, R]:
        """The same function with more arguments of Job."""
        return RemoteFunction(self.__client_lib_function__, self._options | options)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method: the object travels as its first argument."""
        if instance is None:
            return self
        return RemoteFunction(self.__client_lib_function__.__get__(instance, owner), self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (self.__client_lib_function__,)  # a worker may lack this package


@overload
def remote(function: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote(**options: Any) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...
def remote(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorate a function so that a call runs a job and returns the value of rank 0. `options`:
    arguments of `Job`. ::

        @client_lib.remote(n_workers=2)
        def train(lr):
            ...

        accuracy = train(0.1)       # waits
        job = train.submit(0.1)     # does not wait

    Raises TypeError at once for an option that Job does not have.
    """
    for name in ("script", "args", "kwargs"):
        if name in options:
            raise TypeError(
                f"remote() takes no {name}: the function and the arguments of its calls replace it"
            )
    Job(script=lambda: None, **options)  # only the options are checked
    return (
        partial(RemoteFunction, options=options)
        if function is None
        else RemoteFunction(function, options)
    )
