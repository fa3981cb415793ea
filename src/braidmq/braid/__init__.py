"""What joins a broker to others: interest and publications, histories, retained messages and sessions that move.

`node.BraidNode` is a broker's part on a real network, made of its configuration; `braid.Braid` puts the rooms together
over any host; `federation.BraidFederation` is what the core of the broker sees of it.
"""
