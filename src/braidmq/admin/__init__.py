"""The admin port as both sides know it.

    contract   what is asked and answered, as structs: the server encodes them; also drain_contract,
               ring_contract
    client     `AdminClient`, which asks: for the command line, readers of a log, and what runs on Spark
    errors     why there was no answer

Spark's executors import this too: it needs the standard library and msgspec, nothing else. Nothing is imported here,
for the broker's core takes structs of `contract` and knows no sockets.
"""
