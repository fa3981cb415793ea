"""The admin port: its HTTP server (`port`), and the routes that answer with the structs of `braidmq.admin.contract`."""
