"""Files that the server keeps beside the database: code snapshots, outputs, records of submits.

`owned` opens files that the processes of jobs have written; `job_dirs` has the paths of the directories of a job.
"""
