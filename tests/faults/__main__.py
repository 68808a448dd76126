"""Fault test in its long form: `python -m tests.faults`. Needs root, for network namespaces, and etcd.

Prints what happens as it happens, then the report. The exit status is 1 when something was wrong. `--disk-seeds` runs faults of
files instead, which need a C compiler alone.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import secrets
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

from tests.faults.disk.plans import plan_of, seeds_of
from tests.faults.disk.run import run_seed
from tests.faults.scenario import Scenario
from tests.faults.site import CLIENT, Site, faults, leader_stops, site
from tests.support import etcd
from tests.support.network import missing

LEADER_STOP_SECONDS = 20.0
"""Longer than the Lease of the controllers, 15 s."""


def main() -> int:
    """Run with the flags of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=200, metavar="N", help="agents that join and renew [200]")
    parser.add_argument("--clients", type=int, default=10, metavar="N", help="clients that read and write [10]")
    parser.add_argument("--operations", type=int, default=10_000, metavar="N", help="of each client at most [10000]")
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="servers [3]")
    parser.add_argument("--members", type=int, default=3, metavar="N", help="members of etcd, 0: a SQLite file [3]")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="length of a fault [4]")
    parser.add_argument("--only", default="", metavar="WORDS", help="only faults whose sentence has these words")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="of all that is drawn at random")
    parser.add_argument("--disk-seeds", default="", metavar="A-B", help="only run these seeds of faults of files")
    given = parser.parse_args()
    if given.disk_seeds:
        return run_disk_seeds(given.disk_seeds)
    if why := missing() or (etcd.MISSING if given.members else ""):
        parser.error(why)
    logging.getLogger("mooring").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="mooring-faults-") as directory:
        say(f"seed {given.seed}, files in {directory}")
        with site(Path(directory), given.servers, given.members) as (net, start):
            return net.run(CLIENT, lambda: run(start(), Path(directory), given))


def run_disk_seeds(text: str) -> int:
    """Run seeds of faults of files, such as `1000-2000`. Return the exit status."""
    wrong = total = 0
    for seed in seeds_of(text):
        plan = plan_of(seed)
        with tempfile.TemporaryDirectory(prefix="mooring-faults-", ignore_cleanup_errors=True) as directory:
            findings = run_seed(plan, Path(directory))
        total += 1
        wrong += bool(findings)
        if findings:
            say(str(plan), *findings)
    say(f"{total} seeds, {wrong} with findings")
    return 1 if wrong else 0


def run(place: Site, directory: Path, given: argparse.Namespace) -> int:
    """Run the scenario on the host CLIENT. Return the exit status."""
    begun = time.monotonic()
    scenario = Scenario(
        place,
        random.Random(given.seed),
        directory,
        machines=given.agents,
        clients=given.clients,
        operations=given.operations,
        join_seconds=given.seconds * 5,
        report=say,
    )
    happening = chain(faults(place, given.seconds), leader_stops(place, LEADER_STOP_SECONDS))
    try:
        asyncio.run(scenario.run(fault for fault in happening if given.only in fault.sentence))
    except BaseException:
        for server in place.servers:
            say(f"---- {place.host_of(server)}\n{server.log[-3000:]}")
        raise
    say("", *scenario.summary(), f"{time.monotonic() - begun:.0f} s in all")
    return 1 if scenario.findings else 0


def say(*lines: str) -> None:
    """Print at once."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
