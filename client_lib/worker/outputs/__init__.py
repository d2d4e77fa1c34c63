"""Keeps files that ranks write to their working directory for download, while the ranks run and at
their end.

    collector   scans: finds new and changed files, keeps them, forgets removed ones, and reports
                files that cannot be kept
    http_store  keeps files on a remote server

`client_lib.launcher_protocol.output_globs` names the files, and `output_store` beside it keeps them
in a directory of this machine.
"""
