"""`make soak`: many seeds of networks under faults. A failing one is printed; `--first SEED --seeds 1` runs it again.

Each run is a network of 64 nodes under 2 % loss, repetition and overtaking, one join, leave, return or crash a second,
and a partition that heals. The runs of publish/subscribe methods have all that the simulator knows: paths that clog, a
partition of which one side still hears the other, and clocks that jump and drift. They are watched all
the time for what must always hold. Once it is quiet no checker may complain.

`filters:…` are runs of methods that are given filters with wildcards, which come and go with their topics: see
tests/sim/filter_churn.py. `sessions:covers` are brokers with their core, journals and mirrors, and clients that roam
among them: see tests/braid/journeys. In `sessions:overlapping` two faults happen at a time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import Pool

from braidmq.overlay.suzaku import PERIOD_S
from braidmq.pubsub.registry import METHODS
from braidmq.sim.checkers.watch import EVERY_S
from braidmq.sim.trials.trial import Trial, play
from tests.braid.journeys.run import wrong_after_faults as wrong_after_journeys
from tests.overlay import test_flexible_graph, test_skip_graph
from tests.overlay.test_ring import QUIET_S, RingNetwork
from tests.overlay.test_suzaku import SuzakuNetwork
from tests.sim import filter_churn
from tests.simulated import FaultyNetwork, O, OverlayNetwork

NODES = 64
PROGRESS_EVERY = 50
"""How often a soak that no terminal shows says how far it is."""

SEEDS_A_PROCESS = 25
"""A process that has run so many is replaced: what is left of dead networks takes up memory."""

FAULTS = "loss=0.02,dup=0.02,reorder=0.05,clog=0.01,partition=20-40,oneway=50-70,jump=0.2,drift=0.2,churn=1"
CHURN_FROM_S, CHURN_UNTIL_S = 80, 180


def _network() -> FaultyNetwork:
    return FaultyNetwork(0.02, split=(110.0, 125.0), until=float(CHURN_UNTIL_S))


def _wrong_after_churn(network: OverlayNetwork[O], quiet_s: float) -> list[str]:
    for _ in range(NODES):
        network.add()
    for second in range(CHURN_FROM_S, CHURN_UNTIL_S):
        network.sim.at(second, network.churn_brokers)
    network.sim.run(CHURN_UNTIL_S)
    network.wait_until_right(quiet_s)
    return network.wrong()


def ring(seed: int) -> list[str]:
    return _wrong_after_churn(RingNetwork(seed, _network()), QUIET_S)


def suzaku(seed: int) -> list[str]:
    return _wrong_after_churn(SuzakuNetwork(seed, _network()), QUIET_S + 60 * PERIOD_S)


def skip_graph(seed: int) -> list[str]:
    return test_skip_graph.wrong_after_faults(seed, NODES)


def flexible(seed: int) -> list[str]:
    return test_flexible_graph.wrong_after_faults(seed, NODES)


def method(name: str, seed: int) -> list[str]:
    trial = Trial(method=name, pattern="delta", nodes=NODES, seed=seed, faults=FAULTS)
    return play(trial, watch_every_s=EVERY_S).complaints


RUNS: dict[str, Callable[[int], list[str]]] = {
    "ring": ring,
    "suzaku": suzaku,
    "skip_graph": skip_graph,
    "flexible": flexible,
    **{f"method:{name}": partial(method, name) for name, entry in METHODS.items() if not entry.is_baseline},
    **{
        f"filters:{name}": partial(filter_churn.wrong_after_churn, name)
        for name, entry in METHODS.items()
        if entry.takes_filters
    },
    "sessions:covers": wrong_after_journeys,
    "sessions:overlapping": partial(wrong_after_journeys, at_once=2),
}


def _run(task: tuple[str, int]) -> tuple[str, int, list[str]]:
    name, seed = task
    try:
        return name, seed, RUNS[name](seed)
    except Exception as error:
        return name, seed, [f"{type(error).__name__}: {error}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overlay", dest="run", choices=[*RUNS, "all"], default="all")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds, for each kind of run")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    runs = list(RUNS) if options.run == "all" else [options.run]
    tasks = [(name, seed) for name in runs for seed in range(options.first, options.first + options.seeds)]
    failed = done = 0
    began_at = time.monotonic()
    with Pool(options.jobs, maxtasksperchild=SEEDS_A_PROCESS) as pool:
        for name, seed, wrong in pool.imap_unordered(_run, tasks):
            done += 1
            if wrong:
                failed += 1
                print(f"\n{name}, seed {seed}: {len(wrong)} complaints, the first: {wrong[0]}", flush=True)
            if sys.stdout.isatty():
                print(f"\r{done} of {len(tasks)}, {failed} failed", end="", flush=True)
            elif done % PROGRESS_EVERY == 0:
                print(f"{done} of {len(tasks)}, {failed} failed", flush=True)
    print(f"\n{done - failed} passed, {failed} failed in {time.monotonic() - began_at:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
