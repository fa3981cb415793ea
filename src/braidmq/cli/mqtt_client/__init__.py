"""`pub` and `sub`: a client of any MQTT broker."""
