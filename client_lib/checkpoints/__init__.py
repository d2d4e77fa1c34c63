"""Finds checkpoints in a folder, and says of each whether it is complete: from names, sizes,
headers and directories alone. Nothing is unpickled, and no tensor is read.

    search, listing            walk a folder in small pieces, and judge what they find
    checkpoint                 the facts about a checkpoint; the verdict about a file or folder
    names                      the step in a name
    reading                    a regular file, opened without waiting and read by pieces
    single_files               a file by its suffix: torch or safetensors
    zip_archive, old_torch     files of torch.save since 1.6, and before
    pickle_words               the strings and numbers of a pickle, without building objects
    safetensors                files of safetensors
    folders                    which format a folder has, and what makes it complete
    distributed, deepspeed, hugging_face, sharded   the rules for folders of each format
    keeping                    which checkpoints a job no longer needs
    metric_values              the value of a metric that belongs to a checkpoint, the best of them
    pointers                   links and files that name a checkpoint

Launchers import this package; it imports nothing of client_lib. Standard library only,
Python >= 3.8, because the launcher runs with the interpreter of the job.
"""

from client_lib.checkpoints.checkpoint import Checkpoint
from client_lib.checkpoints.keeping import surplus
from client_lib.checkpoints.names import step_of
from client_lib.checkpoints.search import files_of, search

__all__ = ["Checkpoint", "files_of", "search", "step_of", "surplus"]
