"""Running a plan in rounds: the driver, what it asks of a pool, and the record of a round in a folder or a bucket."""
