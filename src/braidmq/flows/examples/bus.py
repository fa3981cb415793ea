"""The components of bus.toml. Each is a message processor: a function over the last messages of a stream, here a bus.

A frame of a drive recorder is {"frame": 17, "persons": ["a", "c"], "braking": 0.3}: what a camera's software would
have found in the picture, and how hard the bus brakes, in g.
"""

from braidmq.processors import Message, Notification, Spool, processor

BRAKING_MAX = 0.6


@processor(topic="bus/+/frames", spool=2)
def persons(spool: Spool, message: Message) -> Notification | None:
    """Who has got on or off since the frame before?"""
    if len(spool) < 2:
        return None
    before, now = (set(frame.json()["persons"]) for frame in spool)
    if before == now:
        return None
    return Notification({"on": sorted(now - before), "off": sorted(before - now), "aboard": len(now)})


@processor(topic="flow/bus/persons/+", spool=1)
def count(spool: Spool, message: Message) -> Notification:
    """How many?"""
    change = message.json()
    return Notification({"on": len(change["on"]), "off": len(change["off"]), "aboard": change["aboard"]})


@processor(topic="flow/bus/count/+", spool=1)
def database(spool: Spool, message: Message) -> Notification:
    """The state of each bus, kept by the braid as a retained message."""
    return Notification(message.json(), retain=True)


@processor(topic="bus/+/frames", spool=2)
def danger(spool: Spool, message: Message) -> Notification | None:
    """A warning when a bus begins to brake hard."""
    braking = [frame.json()["braking"] for frame in spool]
    if braking[-1] <= BRAKING_MAX or (len(braking) == 2 and braking[0] > BRAKING_MAX):
        return None
    return Notification({"warning": "hard braking", "braking": braking[-1], "frame": message.json()["frame"]})
