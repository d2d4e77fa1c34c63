"""What the platform's `client_lib` offers beyond jobs. None of it is here; each says what to use instead.

Classes refuse when they are made: there is no half of an object that fails later.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import NoReturn

from client_lib.errors import NotSupported


class ImageBuildJob:
    """Builds an image there."""

    def __init__(
        self,
        from_image: str | None = None,
        requirements_file: str | None = None,
        install_type: str = "pip",
        conda_env: str | None = None,
        poetrylock_file: str | None = None,
    ) -> None:
        """Raises NotSupported, with what to do for the packages that it was to install."""
        del from_image, install_type, conda_env
        raise NotSupported("ImageBuildJob: no image is built here", hint=_packages(requirements_file, poetrylock_file))


def _packages(requirements_file: str | None, poetrylock_file: str | None) -> str:
    if poetrylock_file:
        return f"install what {poetrylock_file} locks (`poetry install`) into the environment that submits"
    file = requirements_file or "requirements.txt"
    return f"pass Job(requirements={file!r}): they are installed before the script starts, beside those of the image"


class S3CopyJob:
    """Copies to and from object storage there."""

    def __init__(self, path: str | None = None, bucket: str | None = None, recursive: bool = False) -> None:
        """Raises NotSupported."""
        del path, bucket, recursive
        raise NotSupported(
            "S3CopyJob: nothing is copied here",
            hint="run `aws s3 cp` or `rclone copy`, by itself or as Job(script='aws s3 cp ...', type='binary')",
        )


def copy_from_nfs(
    source_path: str | None = None, from_region: str | None = None, destination_path: str | None = None
) -> NoReturn:
    """Raises NotSupported."""
    del source_path, from_region, destination_path
    raise NotSupported("copy_from_nfs: there are no regions to copy between", hint="`rsync` copies between machines")


def get_transfer_data_logs(id: object = None) -> NoReturn:
    """Raises NotSupported."""
    del id
    raise NotSupported("get_transfer_data_logs: nothing is transferred here", hint="`rsync -v` tells what it copies")


def save_aws_credentials(ns: str | None = None, key: str | None = None, secret: str | None = None) -> NoReturn:
    """Raises NotSupported. Nothing of the arguments is kept or shown."""
    del ns, key, secret
    raise NotSupported(
        "save_aws_credentials: no credentials are kept here",
        hint="put them into the environment and name them: Job(secrets=['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'])",
    )


def update() -> str:
    """Changes nothing; says which version this is and how to get another."""
    return f"client_lib {version('client_lib')}; `pip install --upgrade client-lib` installs the newest"
