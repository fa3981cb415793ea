"""The shell of a site: it puts the parts of a broker together and runs them in an event loop.

    server         one broker from start to stop, and `serve`, which runs it until a signal
    sites          several brokers in one process
    listening/     where clients come in: TCP, TLS, WebSocket and Unix sockets
    admin/         the admin port: metrics, health, and what the command line and Spark ask for
    metrics/       numbers for Prometheus and `$SYS`
    log_recorder   hands publications to the process that writes the log
    log_lines      the broker's own log lines

Nothing is imported here: the log needs packages that may not be installed.
"""
