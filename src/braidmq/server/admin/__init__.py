"""What the broker tells of itself: counters, metrics and health over HTTP, `$SYS` topics, log lines."""
