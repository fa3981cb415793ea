"""The braid: what joins this broker to the others, so that clients anywhere see one MQTT network."""
