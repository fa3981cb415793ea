"""Where clients come in: TCP, TLS, WebSocket and Unix sockets."""

from braidmq.server.listening.listeners import Listeners
from braidmq.server.listening.sockets import ListenError
from braidmq.server.listening.tls import TlsError

__all__ = ["ListenError", "Listeners", "TlsError"]
