"""Numbers of a broker: for Prometheus (`exposition` and the collectors), and as `$SYS` topics."""
