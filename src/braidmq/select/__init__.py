"""One component of many: Multicast, Anycast and the ledger find one that is near, free and fits, and reserve it."""
