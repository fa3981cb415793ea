"""The conformance suite: the normative statements of MQTT 3.1.1 and 5.0, shown on a broker in memory."""
