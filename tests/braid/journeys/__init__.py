"""Clients that roam through a braid whose brokers crash, are cut off, drained and destroyed, as a seed will have it.

`faulty_sites`  brokers with journals in virtual time, and all that befalls them
`link`          a connection between a client and its broker
`client`        a client with a session that stays, which goes from broker to broker
`subscriber`, `publisher`   the two kinds of them
`mishaps`       the faults of a run, drawn from its seed
`checking`      what must hold in the end, and what may not
`run`           all of it, for one seed
"""
