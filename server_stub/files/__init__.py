"""Files that the server keeps beside the database: directories of jobs, code snapshots,
outputs, records of submits.
"""
