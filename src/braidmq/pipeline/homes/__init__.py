"""Plans of home servers on Spark: who has published what, from logs, and candidate plans as tasks."""
