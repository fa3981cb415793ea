"""`braidmq flow`: runs dataflows beside brokers, and shows them."""
