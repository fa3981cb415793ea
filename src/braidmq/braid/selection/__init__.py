"""Components of clients, and reservations of them: the layer `select` for unmodified MQTT clients."""
