"""`python -m tests.chaos`: brokers are killed, drained, destroyed and cut off for minutes, under clients that roam;
nothing acknowledged may be lost.

Brokers are in network namespaces of their own where the system allows it; else a proxy on loopback is between them. A
run that fails says what is missing, and keeps the logs and data folders of the brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from braidmq.pubsub.registry import METHOD_DEFAULT, METHODS
from tests.chaos import namespaces, security
from tests.chaos.faults import KINDS
from tests.chaos.judge import Verdict
from tests.chaos.namespaces import Namespaces
from tests.chaos.proxy import Proxy
from tests.chaos.report import Report
from tests.chaos.rolling import RollingRestart
from tests.chaos.soak import Options, Soak

AUTO = "auto"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--minutes", type=float, default=10.0, help="of faults under load")
    made.add_argument("--brokers", type=int, default=10)
    made.add_argument("--clients", type=int, default=100, help="half publish, half subscribe")
    made.add_argument("--roaming", type=float, default=0.5, help="which part of the clients roams: 0 to 1")
    made.add_argument("--roam-every", type=float, default=10.0, help="seconds that one of them stays at a broker")
    made.add_argument("--copies", type=int, default=2, help="of each broker's store")
    made.add_argument("--seed", type=int, default=1, help="of the faults and of the clients")
    made.add_argument("--every", type=float, default=3.0, help="seconds between faults")
    made.add_argument("--quiet", type=float, default=120.0, help="seconds in which everything must have arrived")
    made.add_argument("--rate", type=float, default=1.0, help="publications a second, of each publisher")
    made.add_argument("--groups", type=int, default=10, help="of topics")
    made.add_argument("--method", default=METHOD_DEFAULT, choices=METHODS)
    made.add_argument("--security", default="key", choices=security.KINDS, help="between brokers")
    made.add_argument("--faults", default=",".join(KINDS), help="kinds of faults, with commas between")
    made.add_argument("--rolling", action="store_true", help="instead of faults: all brokers are drained, in turn")
    made.add_argument("--network", default=AUTO, choices=(AUTO, Namespaces.kind, Proxy.kind))
    made.add_argument("--folder", type=Path, help="for logs and data; a temporary one if not given")
    made.add_argument("--figures", type=Path, help="a file for the verdict's figures, as JSON")
    return made


def options_of(given: argparse.Namespace, network: str, kinds: tuple[str, ...]) -> Options:
    return Options(
        brokers=given.brokers,
        clients=given.clients,
        seconds=given.minutes * 60,
        every_s=given.every,
        quiet_s=given.quiet,
        rate=given.rate,
        groups=given.groups,
        seed=given.seed,
        method=given.method,
        security=given.security,
        kinds=kinds,
        copies=given.copies,
        roaming=given.roaming,
        roam_s=given.roam_every,
        network=network,
    )


def main() -> int:
    arguments = parser()
    given = arguments.parse_args()
    kinds = tuple(one for one in given.faults.split(",") if one)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        arguments.error(f"--faults: {', '.join(unknown)} is not known; there are {', '.join(KINDS)}")
    if "destroy" in kinds and given.copies < 2:
        kinds = tuple(one for one in kinds if one != "destroy")
    network = given.network
    if network == AUTO:
        network = Namespaces.kind if namespaces.is_entered() or namespaces.is_possible() else Proxy.kind
    if network == Namespaces.kind and not namespaces.is_entered():
        return namespaces.run_inside(sys.argv[1:])
    options = options_of(given, network, () if given.rolling else kinds)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="braidmq-chaos-"))
    soak = (RollingRestart if given.rolling else Soak)(options, folder, lambda text: print(text, flush=True))
    try:
        verdict = asyncio.run(soak.run())
    except BaseException:
        print(f"logs and data are kept in {folder}")
        raise
    tracebacks = [f"b{one.number}" for one in soak.brokers.all if "Traceback" in one.log]
    print("\n".join([f"ran {options.describe()}", *Report(verdict).lines(), *soak.breaker.not_whole]))
    if given.figures is not None:
        given.figures.write_text(json.dumps(figures_of(verdict) | {"faults": soak.breaker.carried_out}))
    if tracebacks:
        print(f"tracebacks are in the logs of {', '.join(tracebacks)}")
    if verdict.is_good and not tracebacks and not soak.breaker.not_whole:
        if given.folder is None:
            shutil.rmtree(folder)
        return 0
    print(f"logs and data are kept in {folder}")
    return 1


def figures_of(verdict: Verdict) -> dict[str, int]:
    return {
        "acknowledged": verdict.acknowledged,
        "deliveries": verdict.deliveries,
        "connects": sum(one.connects for one in verdict.clients),
        "missing": len(verdict.missing),
        "twice": len(verdict.twice),
        "late": len(verdict.late),
        "sessions lost": len(verdict.anew),
        "sessions anew": len(verdict.allowed_anew),
    }


if __name__ == "__main__":
    sys.exit(main())
