"""Files that the server keeps beside the database: code snapshots, outputs, records of submits."""
