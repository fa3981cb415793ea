"""MQTT 3.1.1 and 5.0 without input or output: packets and their bytes, topics and their order, reasons.

Nothing here knows a socket, a clock or a source of chance; bytes come in and packets go out, or the other way round.
"""
