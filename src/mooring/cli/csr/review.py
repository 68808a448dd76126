"""`mooring csr review`: decide waiting certificate signing requests one after the other.

Rules kept here:
* Each request is shown with the difference to what the name of its node had before. The answer is a line of standard input, so that
  a terminal and a script work alike. The end of the input ends the review.
* A request that was decided meanwhile does not end the review.
"""

from __future__ import annotations

import sys
from functools import partial

import click

from mooring.cli.cluster import ChosenCluster, changing_options
from mooring.cli.csr.decision import CsrDecision, decide
from mooring.cli.csr.details import PLURAL, QUALIFIED
from mooring.cli.csr.selection import RequestSelection, selector_options
from mooring.cli.csr.show import print_request, shown
from mooring.cli.printing.output import ask, echo
from mooring.client.cluster import ClusterClient
from mooring.controllers.certificates.issuance import is_undecided
from mooring.errors import ConfigError, NotFoundError

APPROVE, DENY, SKIP, QUIT = ANSWERS = ("approve", "deny", "skip", "quit")
_CONDITIONS = {APPROVE: "Approved", DENY: "Denied"}
MAX_ANSWER = 4096
"""Characters of a line that are read."""


@click.command("review")
@selector_options
@click.option(
    "--message",
    default="Decided with mooring csr review.",
    show_default=True,
    help="Message of the conditions, for people.",
)
@changing_options
def review(selection: RequestSelection, message: str, chosen: ChosenCluster) -> None:
    """Show each undecided request with what its node had before, and ask: approve, deny, skip or quit.

    Answers are read from standard input, one a line; the first letter is enough.
    """
    clock = chosen.clock
    counts = dict.fromkeys(ANSWERS, 0)

    async def work(client: ClusterClient) -> None:
        found = await chosen.retry(partial(selection.fetch, client))
        if not found:
            echo("No undecided certificate signing requests found.", err=True)
        for place, obj in enumerate(found, 1):
            name = obj["metadata"]["name"]
            try:
                newest = await chosen.retry(partial(client.get, PLURAL, name))
            except NotFoundError:
                continue
            if not is_undecided(newest):
                continue
            print_request(await chosen.retry(partial(shown, client, newest, clock.now())), clock.now())
            answer = _ask(f"[{place}/{len(found)}] {name}: approve, deny, skip or quit? ")
            if answer == QUIT:
                break
            if answer in _CONDITIONS:
                uid = newest["metadata"].get("uid", "")
                decision = CsrDecision(condition=_CONDITIONS[answer], message=message, uid=uid)
                try:
                    await chosen.retry(partial(decide, client, name, decision, clock))
                except ConfigError as error:
                    echo(f"Warning: {error}", err=True)
                    answer = SKIP
                else:
                    echo(f"{QUALIFIED}/{name} {decision.condition.lower()}")
            counts[answer] += 1
            echo()

    chosen.run(work)
    echo(f"{counts[APPROVE]} approved, {counts[DENY]} denied, {counts[SKIP]} skipped", err=True)


def _ask(question: str) -> str:
    """Return the answer to a question; `quit` at the end of the input."""
    while True:
        ask(question)
        line = sys.stdin.readline(MAX_ANSWER)
        if not line:
            echo(err=True)
            return QUIT
        given = line.strip().lower()
        found = [one for one in ANSWERS if given and one.startswith(given)]
        if found:
            return found[0]
        echo("Answer with approve, deny, skip or quit, or with the first letter.", err=True)
