"""Detours: what is sent to a host that cannot be reached directly goes by a third host that both reach.

Sites behind firewalls are often so: 1 and 2 reach 3, and not each other. Every protocol above is written as if all
hosts reached each other, so the way round is made once, below all of them, and none of them knows of it. The host
passes on (`Ways` of `braidmq.host`); when, and by which third host, is decided here, the same in both worlds.
"""
