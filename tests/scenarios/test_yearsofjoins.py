"""Growth over years: what is stored of ephemeral machines is bounded by the rules that delete it, and not by the number of joins.

Rules kept here:
* All controllers run on a real registry, by a clock that only the test moves. Two years pass, at one rate of joins.
* Each machine has its own token for one join. Some fall silent, some leave as `mooring leave` does, and some are deleted.
* The issuance log keeps its records by a rule of its own: they are counted apart.
* Work is counted in lines of Python, so that a slow machine changes nothing.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import certificaterevocation, lineagerecord, nodeidentity
from mooring.api.mooring.certificaterevocation import KEPT_AFTER_EXPIRY
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.clock import rfc3339
from mooring.controllers.actions import GRACE
from mooring.controllers.certificates.cleaner import DONE_AFTER
from mooring.controllers.certificates.issuance import EPHEMERAL_LIFE
from mooring.controllers.cleanup import TTL
from mooring.identity import BOOTSTRAPPERS, UserInfo
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.reconcile.registryapi import RegistryApi
from mooring.trust.bootstraptoken.restrictions import Restrictions, joined_keys
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.discovery import clusterinfo
from tests.support.loops import CA, controllers, exists, running, until
from tests.support.manualclock import ManualClock, settle
from tests.support.registryroom import Room, open_room
from tests.support.work import work

A_YEAR, DAY = timedelta(days=365), timedelta(days=1)
JOINS_A_YEAR = 300
BETWEEN = A_YEAR / JOINS_A_YEAR
TOKEN_LIFE = timedelta(days=7)
SILENCE = timedelta(minutes=2)
STEP = timedelta(seconds=10)
"""Time between two judgements of a silent machine: after a longer break node-lifecycle-controller begins again."""
ENDS = ("falls silent", "leaves", "is deleted")
"""The ends of machines, in turn."""
CYCLE = 2 * len(ENDS)
"""Machines whose work is counted together, since their ends differ."""
WORK = 1.05
"""Growth of the work in two years that is none: 0.5 % was measured."""

BOUNDS = {
    "secrets": TOKEN_LIFE // BETWEEN,  # used up at once, and deleted at their expiration
    "certificatesigningrequests": DONE_AFTER // BETWEEN,
    "events": TTL // BETWEEN,
    "nodeidentities": (EPHEMERAL_LIFE + GRACE) // BETWEEN,
    "certificaterevocations": (EPHEMERAL_LIFE + DAY + KEPT_AFTER_EXPIRY + GRACE) // (len(ENDS) * BETWEEN) + 1,
}
"""Most objects of a kind beyond those of an empty cluster when the next machine joins, by the rule that deletes them. Of other
kinds, such as Nodes, Leases and ConfigMaps, there are none."""


class Leaping(ManualClock):
    """A clock that passes years: sleepers whose moment has come wake together."""

    async def leap(self, span: timedelta) -> None:
        self._elapsed += span.total_seconds()
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
        await settle()


def everything(attributes: Attributes) -> Decision:
    return Decision(Ruling.ALLOW)


def counts(room: Room) -> Counter[str]:
    """Return the number of objects of each kind that has some, without the records of the issuance log."""
    found = {
        plural: len(list(room.registry.views[plural].list())) for plural in BY_PLURAL if plural in room.registry.views
    }
    return Counter({plural: number for plural, number in found.items() if number and plural != lineagerecord.PLURAL})


async def join(room: Room, number: int) -> str:
    """Let a machine join with a token of its own; return the name of its Node."""
    token, name = f"{number:06d}", f"runner-{number}"
    restrictions = Restrictions(max_joins=1, ephemeral=SILENCE)
    record = new_record(
        parse_token(f"{token}.0123456789abcdef"), room.clock.now(), ttl=TOKEN_LIFE, restrictions=restrictions
    )
    await room.create("secrets", to_secret(record), "kube-system")
    pem = build_request(generate_key(), f"system:node:{name}", ("system:nodes",))
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": KUBE_APISERVER_CLIENT_KUBELET,
        "usages": ["digital signature", "client auth"],
    }
    joiner = UserInfo(f"system:bootstrap:{token}", groups=(BOOTSTRAPPERS,))
    await room.create("certificatesigningrequests", {"metadata": {"name": name}, "spec": spec}, user=joiner)

    def is_issued() -> bool:
        request = room.registry.views["certificatesigningrequests"].get(name) or {}
        return "certificate" in (request.get("status") or {})

    await until(is_issued, name)
    used = room.registry.views["secrets"].get(f"bootstrap-token-{token}", "kube-system")
    assert used is not None
    assert len(joined_keys(used)) == 1
    await room.create("nodes", {"metadata": {"name": name}, "status": ready(room)})
    node = room.registry.views["nodes"].get(name)
    assert node is not None
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    lease = {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": {"holderIdentity": name}}
    await room.create("leases", lease, "kube-node-lease")
    return name


def ready(room: Room) -> Obj:
    now = rfc3339(room.clock.now())
    return {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}]}


async def end(room: Room, name: str, how: str) -> None:
    """Let the membership of a machine end."""
    identity = room.registry.views[nodeidentity.PLURAL].get(name)
    assert identity is not None
    if how == "falls silent":
        for _ in range(60):
            await wait(room, STEP)
            if not exists(room, "nodes", name):
                break
    else:
        await room.delete("nodes", name)
    if how == "leaves":
        (key,) = identity["spec"]["keys"]
        subject = {"serialNumber": key["serialNumber"].lstrip("0"), "issuer": key["issuer"]}
        spec = {**subject, "reason": "cessationOfOperation", "expiresAt": key["notAfter"]}
        entry = {"metadata": {"name": certificaterevocation.entry_name(subject)}, "spec": spec}
        await room.create(certificaterevocation.PLURAL, entry)
    await until(lambda: not exists(room, "nodes", name), f"{name} {how}")
    await until(lambda: not exists(room, "leases", name, "kube-node-lease"), f"the Lease of {name}")


async def live(room: Room, number: int) -> None:
    """Let one machine join and end, and pass the time until the next one joins."""
    begun = room.clock.now()
    await end(room, await join(room, number), ENDS[number % len(ENDS)])
    await wait(room, BETWEEN - (room.clock.now() - begun))


async def wait(room: Room, span: timedelta) -> None:
    """Pass the time at once, as when a machine was suspended; the schedules of the controllers notice it."""
    assert isinstance(room.clock, Leaping)
    await room.clock.leap(span)


@contextmanager
def cluster() -> Iterator[tuple[asyncio.Runner, Room]]:
    """Run all controllers on a registry that lets everybody do everything."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start() -> Room:
            room = await stack.enter_async_context(open_room(authorize=everything, clock=Leaping()))
            shared = clusterinfo.config_map("https://192.0.2.1:6443", CA.certificate_pem)
            await room.create("configmaps", shared, "kube-public")
            await stack.enter_async_context(
                running(room, controllers(), RegistryApi(room.registry, everything, room.clock))
            )
            return room

        try:
            yield runner, runner.run(start())
        finally:
            runner.run(stack.aclose())


def test_two_years_of_ephemeral_joins_leave_what_the_rules_keep_and_cost_the_same_to_the_end() -> None:
    joins = 2 * JOINS_A_YEAR
    with cluster() as (runner, room):
        runner.run(live(room, 0))
        runner.run(wait(room, 30 * DAY))
        empty = counts(room)

        def exceeding() -> dict[str, int]:
            """Return the kinds of which there are more objects than the rules keep."""
            more = counts(room) - empty
            return {plural: number for plural, number in more.items() if number > BOUNDS.get(plural, 0)}

        async def one(number: int) -> None:
            await live(room, number)
            await until(lambda: not exceeding(), f"bounds after {number} joins: {exceeding()}")

        def cycle(first: int) -> int:
            """Return the work of a cycle of joins."""
            counted = work(lambda: [runner.run(live(room, number)) for number in range(first, first + CYCLE)])
            assert exists(room, nodeidentity.PLURAL, f"runner-{first + CYCLE - 1}"), "the cycle came to its end"
            return counted

        for number in range(1, CYCLE):
            runner.run(one(number))
        early = cycle(CYCLE)
        for number in range(2 * CYCLE, joins):
            runner.run(one(number))
        late = cycle(joins)
        assert late <= WORK * early, f"{early}, then {late}"

        runner.run(wait(room, KEPT_AFTER_EXPIRY + 30 * DAY))
        runner.run(wait(room, 2 * DAY))
        runner.run(until(lambda: counts(room) == empty, f"an empty cluster: {counts(room) - empty}"))
