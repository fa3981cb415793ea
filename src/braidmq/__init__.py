"""BraidMQ: MQTT edge brokers braided into one network with no centre."""

__version__ = "0.1.0"
