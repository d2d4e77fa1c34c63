from client_lib import Job

job = Job(
    script="examples/digits_ddp.py",
    instance_type="cpu.1C.2G",  # "a100.1gpu" gives each worker a GPU
    n_workers=2,
)
print(job.submit())
job.logs()  # waits, prints, and follows until the job has ended
print(job.wait().state)  # or raises JobFailed with the first failing rank's traceback
