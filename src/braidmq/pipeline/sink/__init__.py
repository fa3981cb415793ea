"""The way back: rows of Spark become publications, once each.

`writers` has the sinks of batches and streams, `batches` the way of one batch into a broker.
"""
