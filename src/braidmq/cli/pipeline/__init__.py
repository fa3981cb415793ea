"""`pipeline`: the ready-made pipelines of Spark."""
