"""Files of people follow their cluster: address and CAs, in the record of a login and in its entries of the kubeconfigs.

Rules kept here (docs/adr/0020, docs/keep-a-kubeconfig-fresh.md):
* cluster-info is read at each renewal, verified by the CAs of the login. What cannot be read changes nothing: the renewal says why
  the server does not respond.
* A cluster of another id than the remembered one gets no credential, and its id is not written down.
* The addresses of a cluster share one time limit: many of them may be gone.
* The record is written before the entries. A kubeconfig that another program changes, or that is elsewhere, keeps its old entry:
  the credential is given to it as long as it names the server and CAs of the login alone.
* An entry is changed and never added: the kubeconfig that a program uses need not be the one that this process sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from mooring.cli.login.kubeconfigentries import KubeconfigFiles, plan_entries
from mooring.client.http.requests import drive_notifying, fetch
from mooring.client.login.loginfiles import LoginFiles
from mooring.clock import Clock
from mooring.errors import ConfigError, PeerError
from mooring.pki.errors import PkiError
from mooring.trust.discovery.errors import AnotherClusterError, CertificateError, DiscoveryError
from mooring.trust.discovery.fetch import named_pins, pinned_ca
from mooring.trust.discovery.pins import Pin, pins_of
from mooring.trust.discovery.refresh import MergeBase, Refreshed, first_published, follow_cluster, merge_base
from mooring.trust.httpexchange import NOT_ASKED, SHORTEST_WAIT, TIMEOUT, HttpFailure, HttpRequest, HttpResponse, Trust
from mooring.trust.kubeconfig import Cluster, Kubeconfig, address_of
from mooring.trust.loginrecord import Login, Place

SECONDS = 30.0
"""Time limit of the requests to a cluster, which its addresses share: a person waits."""
Send = Callable[[HttpRequest], Awaitable[HttpResponse | HttpFailure]]


async def follow(
    known: Sequence[Cluster],
    base: MergeBase | None,
    pins: Collection[Pin],
    clock: Clock,
    seconds: float = SECONDS,
    known_id: str = "",
) -> Refreshed:
    """Return the addresses of a cluster as it publishes them now. `known_id`: the id of the cluster, "" for that of the base.

    Raises DiscoveryError that says what to compare, ConfigError.
    """
    if known[0].insecure_skip_tls_verify:
        raise ConfigError(
            f"the entry of {known[0].server} skips verification: nothing proves what its cluster publishes"
        )
    known_id = known_id or (base.cluster_id if base is not None else "")
    base = None if pins else base
    servers = (*(one.server for one in known), *(base.servers if base is not None else ()))
    send = _sender(seconds, len(set(map(address_of, servers))), clock)
    if pins:
        ca_pem = await drive_notifying(pinned_ca(known[0].server, pins), send, clock.sleep)
        known = [replace(one, ca_pem=ca_pem) for one in known]
    try:
        return await drive_notifying(follow_cluster(known, base, known_id), send, clock.sleep)
    except CertificateError as error:
        raise ConfigError(f"{error}. {await _advice(known[0], send, clock)}") from None


def _sender(seconds: float, addresses: int, clock: Clock) -> Send:
    """Return a function that sends requests within the time: an address has its share, and is asked once when it hangs."""
    end, share = clock.monotonic() + seconds, max(SHORTEST_WAIT, seconds / addresses)
    hung: dict[tuple[str, str], HttpFailure] = {}
    asked: set[str] = set()

    async def send(request: HttpRequest) -> HttpResponse | HttpFailure:
        left = end - clock.monotonic()
        way = address_of(request.url), request.target.proxy_url if isinstance(request.target, Trust) else ""
        if way in hung:
            return hung[way]
        if left <= 0:
            return HttpFailure(NOT_ASKED, "the addresses of a cluster share --timeout")
        asked.add(way[0])
        reply = await fetch(replace(request, timeout=min(request.timeout, share), within=left), clock)
        if isinstance(reply, HttpFailure) and reply.kind == TIMEOUT:
            rest = addresses - len(asked)
            if rest and clock.monotonic() >= end:
                # The error of all the addresses is that of the last which was asked.
                hint = f"no time is left for {rest} more of the addresses, which share --timeout"
                reply = replace(reply, message=reply.text, hint=hint)
            hung[way] = reply
        return reply

    return send


async def _advice(known: Cluster, send: Send, clock: Clock) -> str:
    """Return what a person does where the known CAs do not verify the server: a new CA, another server, or a missing name."""
    try:
        pins = await drive_notifying(named_pins(known.server), send, clock.sleep)
        is_known = bool(known.ca_pem) and set(pins) <= set(pins_of(known.ca_pem))
    except (DiscoveryError, PkiError):
        return "If the CA of the cluster was replaced without this file, ask an administrator for its hash"
    seen = ", ".join(map(str, pins))
    if is_known:
        return (
            f"The machine there names the CA {seen}, which is known here: a hash does not help. Use an "
            "address that its certificate names, or add this one to the certificate of the server (--tls-san)"
        )
    return (
        f"The machine there names the CA {seen}. If the CA of the cluster was replaced because it was compromised, compare that "
        "with an administrator of the cluster (mooring token create --print-join-command prints the hash), and run: mooring "
        "kubeconfig refresh --discovery-token-ca-cert-hash HASH"
    )


def remembered_id(*entries: Cluster) -> str:
    """Return the id of the cluster that the first of the entries remembers which remembers one; "" when none does."""
    bases = filter(None, map(merge_base, entries))
    return next((base.cluster_id for base in bases if base.cluster_id), "")


def followed(place: Place, clock: Clock, known_id: str = "") -> Place:
    """Return the place as its cluster publishes it now. `known_id`: the id of the cluster, "" for the one that the place remembers.

    Raises ConfigError where a person has to compare the CA, and AnotherClusterError as `check_same` does.
    """
    cluster = place.cluster()
    try:
        return place_of(asyncio.run(follow((cluster,), merge_base(cluster), (), clock, known_id=known_id)))
    except AnotherClusterError:
        # It may answer at another address of the cluster: the credential is sent to the place alone.
        check_same(place, clock, known_id or remembered_id(cluster))
    except PeerError:
        pass
    return place


def check_same(place: Place, clock: Clock, known_id: str) -> None:
    """Raise AnotherClusterError when another cluster than the known one answers at a place.

    An id that is not known, and a cluster-info that cannot be read, decide nothing.
    """
    if known_id:
        try:
            asyncio.run(
                drive_notifying(first_published((place.cluster(),), known_id), _sender(SECONDS, 1, clock), clock.sleep)
            )
        except AnotherClusterError:
            raise
        except PeerError:
            pass


def place_of(found: Refreshed) -> Place:
    """Return the place of a login at a cluster."""
    way = found.clusters[0]
    return Place(
        way.server,
        way.ca_pem,
        way.tls_server_name,
        way.proxy_url,
        way.disable_compression,
        found.base.extension() if found.base is not None else None,
    )


def carry_over(logins: LoginFiles, before: Login, after: Login, kubeconfig: str = "") -> None:
    """Write the entries of a login whose record was written, and remove the record at its former address."""
    if before.place == replace(after.place, published=before.place.published):
        return
    files, plan = KubeconfigFiles(kubeconfig), partial(plan_entries, login=after, earlier={before.id}, use=False)
    with suppress(ConfigError):
        if plan(files.read()).added == Kubeconfig():
            files.apply(plan)
            if before.id != after.id:
                logins.remove(before.id)
