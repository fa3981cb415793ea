"""Which buses are crowded? The processor of `braidmq demo`; it runs at the edge and on Spark as it stands here.

A bus tells how many passengers it has, ten times a second, as {"passengers": 61} on a topic of its own.
"""

from braidmq.processors import Message, Notification, Spool, processor

SEATS = 50


@processor(topic="bus/+/frames", spool=20, output="bus/alerts")
def passengers(spool: Spool, message: Message) -> Notification | None:
    """An alert once a bus has more passengers than seats for 19 frames on end, and had not before."""
    counts = [frame.json()["passengers"] for frame in spool]
    if len(counts) == spool.size and counts[0] <= SEATS < min(counts[1:]):
        return Notification({"bus": message.topic} | message.json())
    return None
