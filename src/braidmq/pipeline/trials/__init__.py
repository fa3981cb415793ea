"""Many trials of the simulator as one table: `table` keeps it and plays what is missing, here or as tasks of Spark."""
