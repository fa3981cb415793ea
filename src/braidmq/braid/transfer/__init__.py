"""Publications between brokers: outbound topics, inbound streams, batches, and the short way (`cut_through`)."""
