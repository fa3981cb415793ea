"""Where clients come in: TCP, TLS, WebSocket and Unix sockets."""
