"""Files of `torch.save` before 1.6, or with `_use_new_zipfile_serialization=False`: five pickles
(magic number, version, system, the object, the keys of its storages), then the storages.
"""

from client_lib.checkpoints.checkpoint import Judging, Verdict
from client_lib.checkpoints.reading import File

MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
MAGIC_AT_0 = b"\x80\x02" + MAGIC
MAGIC_WITHIN = 32
"""Later protocols of pickle have a frame before the number."""


def judge(file: File) -> Judging:
    """Judge a file that begins with MAGIC."""
    yield
    return Verdict(f"{file.size} bytes in the old format: its end can't be judged")
