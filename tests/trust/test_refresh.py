"""Refresh of addresses and CAs: published values take over, local changes stay."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.trust.discovery import clusterinfo, errors
from mooring.trust.discovery.pins import Pin, pins_of
from mooring.trust.discovery.refresh import (
    BASE,
    MergeBase,
    Refreshed,
    digest,
    first_published,
    follow_cluster,
    merge_base,
    merge_published,
    refresh_cluster,
)
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.httpexchange import (
    CERTIFICATE,
    NOT_ASKED,
    TIMEOUT,
    UNREACHABLE,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
)
from mooring.trust.kubeconfig import Cluster, Kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.support.discoverypeer import CA, OTHER_CA, Network, Server, status

A, B, C = "a.test:6443", "b.test:6443", "c.test:6443"
BOTH = CA + OTHER_CA


def info(*addresses: str, ca: bytes = CA, client_ca: bytes = b"", cluster_id: str = "") -> Obj:
    first, *others = (f"https://{address}" for address in addresses)
    return clusterinfo.config_map(first, ca, others=others, client_ca_pem=client_ca, cluster_id=cluster_id)


def base(*addresses: str, ca: bytes = CA, client_ca: bytes = CA, cluster_id: str = "") -> MergeBase:
    servers = tuple(f"https://{address}" for address in addresses)
    return MergeBase(servers, digest(ca), digest(client_ca), cluster_id=cluster_id)


def known(*addresses: str, ca: bytes = CA) -> tuple[Cluster, ...]:
    return tuple(Cluster(address, f"https://{address}", ca) for address in addresses)


def network(config_map: Obj, *addresses: str, serving_ca: bytes = CA) -> Network:
    """The servers at these addresses publish this; nothing answers elsewhere."""
    return Network({address: Server(config_map, serving_ca=serving_ca) for address in addresses})


def order(found: Refreshed) -> list[str]:
    return [one.name for one in found.clusters]


@pytest.mark.parametrize(
    ("before", "written", "published", "answering", "after"),
    [
        pytest.param([A], base(A), info(A), [A], [A], id="nothing changed"),
        pytest.param([A], base(A), info(B), [A, B], [B], id="the address was changed"),
        pytest.param([A], base(A), info(A, B), [A, B], [A, B], id="an address was added"),
        pytest.param([A, B], base(A, B), info(B), [A, B], [B], id="an address was taken away"),
        pytest.param([B, A], base(A, B), info(A, B), [A, B], [B, A], id="the second address is in use and stays"),
        pytest.param([A, B], base(A, B), info(A, B), [B], [B, A], id="the address in use does not answer"),
        pytest.param([A], base(A), info(B, C), [A, C], [C, B], id="the first new address does not answer"),
        pytest.param([C], base(A), info(A), [A, C], [C, A], id="an address that somebody else set stays"),
        pytest.param([C], base(A), info(B), [A, B, C], [C, B], id="it stays when the published one was changed"),
        pytest.param([C, A], base(A), info(A), [A], [A, C], id="it yields when it does not answer"),
        pytest.param([C], None, info(A), [A, C], [C, A], id="of what was published before nothing is known"),
        pytest.param([A, C], base(A), info(A), [A], [A, C], id="a further address that somebody else set stays"),
        pytest.param([A, C], base(A), info(B), [A, B], [B, C], id="it stays when all published ones were changed"),
        pytest.param([A, B, C], base(A, B), info(A), [A], [A, C], id="it stays beside one that was taken away"),
        pytest.param([A, C], None, info(A), [A], [A, C], id="it stays where nothing is known of before"),
        pytest.param([A, C], base(A), info(A, C), [A], [A, C], id="it is published now"),
        pytest.param([A, B, C], base(A, B), info(A, B), [C], [C, A, B], id="it is the only one that answers"),
    ],
)
def test_addresses(
    before: list[str], written: MergeBase | None, published: Obj, answering: list[str], after: list[str]
) -> None:
    assert order(network(published, *answering).drive(refresh_cluster(known(*before), written))) == after


def test_a_typed_address_is_asked_under_the_known_ca_when_no_known_one_answers() -> None:
    net = network(info(B), B)
    found = net.drive(refresh_cluster(known(A), base(A), [A, B]))
    assert order(found) == [B]
    assert "nothing answers there" in net.kept_notices[0]
    assert {request.target for request in net.servers[B].requests} == {Trust(CA)}
    assert {request.credentials for request in net.servers[B].requests} == {None}


@pytest.mark.parametrize(
    ("before", "written", "published", "serving", "after"),
    [
        pytest.param(CA, base(A), BOTH, CA, BOTH, id="a CA was added"),
        pytest.param(BOTH, base(A, ca=BOTH), OTHER_CA, OTHER_CA, OTHER_CA, id="the old CA was taken away"),
        pytest.param(BOTH, base(A), CA, CA, BOTH, id="a bundle that somebody else set stays"),
        pytest.param(CA, None, BOTH, CA, BOTH, id="of what was published before nothing is known"),
        pytest.param(CA, base(A), OTHER_CA, CA, CA, id="a published CA that does not verify the server is not used"),
    ],
)
def test_cas(before: bytes, written: MergeBase | None, published: bytes, serving: bytes, after: bytes) -> None:
    net = network(info(A, ca=published), A, serving_ca=serving)
    found = net.drive(refresh_cluster(known(A, ca=before), written))
    assert [one.ca_pem for one in found.clusters] == [after]


def test_a_change_of_ca_has_to_be_authenticated_by_the_ca_before() -> None:
    with pytest.raises(errors.CertificateError):
        network(info(A, ca=OTHER_CA), A, serving_ca=OTHER_CA).drive(refresh_cluster(known(A), base(A)))


@pytest.mark.parametrize(
    ("written", "published", "after"),
    [
        pytest.param(base(A, cluster_id="one"), info(A, B, cluster_id="one"), "one", id="the same cluster"),
        pytest.param(base(A), info(A, B, cluster_id="one"), "one", id="the id is learned"),
        pytest.param(None, info(A, B, cluster_id="one"), "one", id="of what was published before nothing is known"),
        pytest.param(base(A, cluster_id="one"), info(A, B), "one", id="an edited cluster-info has lost it"),
        pytest.param(base(A), info(A, B), "", id="another Kubernetes has none"),
    ],
)
@pytest.mark.parametrize("read", [refresh_cluster, follow_cluster])
def test_the_id_of_the_cluster(read: Any, written: MergeBase | None, published: Obj, after: str) -> None:
    found = network(published, A, B).drive(read(known(A), written))
    assert found.base is not None
    assert found.base.cluster_id == after
    assert merge_base(Cluster("", extensions=(found.base.extension(),))) == found.base


@pytest.mark.parametrize("read", [refresh_cluster, follow_cluster])
def test_a_cluster_of_another_id_is_not_followed_though_its_ca_is_the_same(read: Any) -> None:
    for away in ((), (B,)):
        with pytest.raises(errors.AnotherClusterError, match="its id is two, and the known one is one"):
            network(info(A, B, cluster_id="two"), A).drive(read(known(A, *away), base(A, cluster_id="one")))
    net = network(info(A, cluster_id="two"), A)
    net.servers[B] = Server(info(B, cluster_id="one"))
    assert order(net.drive(read(known(A, B), base(A, B, cluster_id="one")))) == [B]
    assert order(net.drive(read(known(A, B), base(B, cluster_id="one")))) == [B], "an address that was set here"
    responding, _ = net.drive(first_published(known(A, B), "one"))
    assert responding.name == B


@pytest.mark.parametrize(
    ("failures", "wanted"),
    [
        pytest.param((TIMEOUT, UNREACHABLE), "b.test:6443 .*: nothing answers there", id="the last"),
        pytest.param((TIMEOUT, NOT_ASKED), "a.test:6443 .*: no answer in time", id="the last that was asked"),
        pytest.param(
            (NOT_ASKED, NOT_ASKED), "a.test:6443 .*: no time was left to ask it", id="the first, if none was asked"
        ),
    ],
)
def test_the_error_of_all_addresses_is_that_of(failures: tuple[str, ...], wanted: str) -> None:
    def failing(kind: str) -> Server:
        return Server(None, override=lambda count, request: HttpFailure(kind, "x"))

    net = Network(dict(zip((A, B), map(failing, failures), strict=True)))
    with pytest.raises(errors.DiscoveryError, match=wanted):
        net.drive(refresh_cluster(known(A, B), base(A, B)))


def test_a_pin_vouches_for_the_ca_and_not_for_another_cluster() -> None:
    net = network(info(A, cluster_id="two"), A)
    with pytest.raises(errors.AnotherClusterError):
        net.drive(follow_cluster(known(A), None, "one"))
    assert net.drive(follow_cluster(known(A), None, "two")).base == base(A, cluster_id="two")


@pytest.mark.parametrize(
    "unproved", [{"server": "http://a.test:6443"}, {"insecure_skip_tls_verify": True}], ids=["http", "not verified"]
)
@pytest.mark.parametrize("read", [refresh_cluster, follow_cluster])
def test_what_nothing_proves_is_not_asked_for(read: Any, unproved: dict[str, Any]) -> None:
    net = network(info(A, ca=OTHER_CA), A)
    with pytest.raises(errors.DiscoveryError, match="nothing proves what it publishes"):
        net.drive(read([replace(*known(A), **unproved)], None))
    assert net.servers[A].requests == []


def test_nothing_is_taken_over_that_does_not_answer() -> None:
    with pytest.raises(errors.EndpointDownError):
        network(info(B), A).drive(refresh_cluster(known(A), base(A)))


@pytest.mark.parametrize("code", [401, 403])
def test_a_server_that_tells_strangers_nothing_is_no_reason_to_leave_it(code: int) -> None:
    net = network(info(B), A, B)
    net.servers[B].override = lambda count, request: status(code)
    assert order(net.drive(refresh_cluster(known(A), base(A)))) == [B]


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize("read", [refresh_cluster, follow_cluster])
def test_the_advice_where_cluster_info_is_not_public_is_not_that_of_a_join(read: Any, code: int) -> None:
    net = network(info(A), A)
    body = {"kind": "Status", "code": code, "message": "not you"}
    net.servers[A].override = lambda count, request: HttpResponse(code, json.dumps(body).encode(), {"audit-id": "a-b"})
    with pytest.raises(errors.NotPublicError) as caught:
        net.drive(read(known(A), base(A)))
    assert str(caught.value) == (
        f"fetching cluster-info from https://{A} with TLS verified: the server answered {code} (not you): cluster-info is not "
        "public there: anonymous requests are off, not accepted from this network (--anonymous-allow-cidr), or without the role "
        "kubeadm:bootstrap-signer-clusterinfo; ask an administrator of the cluster to let this machine read it, or for another "
        "kubeconfig; an administrator of a Mooring server learns the reason with: mooring auth explain a-b"
    )


def test_where_nothing_changed_one_request_is_enough() -> None:
    net = network(info(A), A)
    net.drive(refresh_cluster(known(A), base(A)))
    assert len(net.servers[A].requests) == 1


@pytest.mark.parametrize(
    "here", [{"tls_server_name": "kubernetes"}, {"proxy_url": "http://proxy.test:3128"}, {"disable_compression": True}]
)
@pytest.mark.parametrize(("before", "published"), [([A], info(A)), ([A], info(A, B)), ([A, B], info(A, B))])
def test_the_way_to_an_address_that_somebody_set_stays(here: dict[str, Any], before: list[str], published: Obj) -> None:
    net = network(published, A, B)
    first, *others = known(*before)
    found = net.drive(refresh_cluster([replace(first, **here), *others], base(*before)))
    assert found.clusters[0] == replace(first, **here)
    assert [one.server for one in found.clusters] == [one.server for one in found.published.published]
    assert len(net.servers[A].requests) == 1


def test_the_way_to_an_address_that_somebody_set_yields_when_it_does_not_lead_there() -> None:
    net = network(info(A, B), A, B)
    net.servers[A].override = lambda count, request: (
        HttpFailure(CERTIFICATE, "another name") if request.target == Trust(CA, tls_server_name="old.test") else None
    )
    first, second = known(A, B)
    found = net.drive(refresh_cluster([replace(first, tls_server_name="old.test"), second], base(A, B)))
    assert found.clusters == (first, second)


Way = dict[str, Any]
"""Fields of a Cluster."""
NAME: Way = {"tls_server_name": "kubernetes"}
OTHER_NAME: Way = {"tls_server_name": "other.test"}
PROXY: Way = {"proxy_url": "http://proxy.test:3128"}
OTHER_PROXY: Way = {"proxy_url": "http://other.test:3128"}


def published_by(way: Way) -> Obj:
    """cluster-info, edited by an administrator: A with this way, and B."""
    first, second = known(A, B)
    text = format_kubeconfig(Kubeconfig((replace(first, name="", **way), second)))
    return {"kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": {"kubeconfig": text}}


def trust(way: Way) -> Trust:
    return Trust(CA, **way)


@pytest.mark.parametrize(
    ("before", "here", "published", "after"),
    [
        pytest.param({}, NAME, {}, NAME, id="a name that was set here stays"),
        pytest.param({}, PROXY, NAME, PROXY | NAME, id="a name is published beside a proxy that was set here"),
        pytest.param(NAME, NAME, OTHER_NAME, OTHER_NAME, id="the published name was changed"),
        pytest.param(NAME, NAME, {}, {}, id="the published name was taken away"),
        pytest.param(PROXY, PROXY, OTHER_PROXY, OTHER_PROXY, id="the published proxy was changed"),
        pytest.param(NAME, OTHER_NAME, NAME, OTHER_NAME, id="another name than the published one was set here"),
        pytest.param(PROXY, OTHER_PROXY, PROXY, OTHER_PROXY, id="another proxy than the published one was set here"),
        pytest.param(PROXY, {}, PROXY, {}, id="the published proxy was removed here"),
        pytest.param(NAME, PROXY | NAME, OTHER_NAME, PROXY | OTHER_NAME, id="both were changed, on either side"),
    ],
)
def test_the_way_to_an_address_is_merged_field_by_field_and_proved(
    before: Way, here: Way, published: Way, after: Way
) -> None:
    net = network(published_by(published), A, B)
    written = replace(base(A, B), ways=(Cluster("", f"https://{A}", **before),))
    first, second = known(A, B)
    found = net.drive(refresh_cluster([replace(first, **here), second], written))
    assert found.clusters == (replace(first, **after), second)
    assert [one.target for one in net.servers[A].requests] == [trust(here), *([trust(after)] if after != here else ())]
    assert not net.servers[B].requests


@pytest.mark.parametrize("failure", [CERTIFICATE, UNREACHABLE, TIMEOUT])
@pytest.mark.parametrize("changed", [OTHER_NAME, OTHER_PROXY])
def test_a_published_way_that_does_not_lead_there_is_not_written(changed: Way, failure: str) -> None:
    net = network(published_by(changed), A, B)
    net.servers[A].override = lambda count, request: (
        HttpFailure(failure, "no") if request.target == trust(changed) else None
    )
    found = net.drive(refresh_cluster(known(A, B), base(A, B)))
    assert found.clusters == known(A, B)


@pytest.mark.parametrize("changed", [OTHER_NAME, OTHER_PROXY])
@pytest.mark.parametrize("before", [{}, NAME, PROXY])
@pytest.mark.parametrize("turn", [0, 1])
def test_a_published_way_that_leads_there_later_is_written_then(changed: Way, before: Way, turn: int) -> None:
    """A proxy that is published before it runs, a name before the certificate has it."""
    first, second = known(A, B)
    here = [replace(first, **before), second]
    written: MergeBase | None = replace(base(A, B), ways=(Cluster("", f"https://{A}", **before),) if before else ())
    blank: Way = {"tls_server_name": "", "proxy_url": ""}
    for leads in (False, False, True):
        net = network(published_by(changed), A, B)
        net.servers[A].override = lambda count, request, leads=leads: (  # type: ignore[misc]  # the default binds a value of the loop
            None if leads or request.target == trust(before) else HttpFailure(UNREACHABLE, "not yet")
        )
        found = net.drive(refresh_cluster(here[::-1] if turn else here, written))
        after = replace(first, **(blank | changed if leads else before))
        assert found.clusters == ((second, after) if turn else (after, second))
        here, written = sorted(found.clusters, key=lambda one: one.name), found.base
        assert merge_base(Cluster("", extensions=(written.extension(),) if written else ())) == written
    assert written == MergeBase.of(found.published)


@pytest.mark.parametrize("written", [base(A, B), None])
def test_a_published_ca_that_verifies_a_server_later_is_written_then(written: MergeBase | None) -> None:
    published = info(A, B, ca=OTHER_CA)
    found = network(published, A, B).drive(refresh_cluster(known(A, B), written))
    assert found.clusters == known(A, B)
    net = network(published, A, B)
    net.servers[B] = Server(published, serving_ca=OTHER_CA)
    found = net.drive(refresh_cluster(found.clusters, found.base))
    assert found.clusters == known(B, A, ca=OTHER_CA)
    assert found.base == MergeBase.of(found.published)


def test_a_ca_that_was_set_here_stays_beside_one_that_is_published_later() -> None:
    found = network(info(A, ca=CA), A).drive(refresh_cluster(known(A, ca=BOTH), base(A)))
    assert found.base == MergeBase.of(found.published)
    found = network(info(A, ca=OTHER_CA), A).drive(refresh_cluster(found.clusters, found.base))
    assert [one.ca_pem for one in found.clusters] == [BOTH]


@pytest.mark.parametrize("leads", [True, False])
def test_the_way_to_a_further_address_changes_only_when_it_leads_there(leads: bool) -> None:
    net = network(published_by(OTHER_NAME), A, B)
    net.servers[A].override = lambda count, request: None if leads else HttpFailure(CERTIFICATE, "another name")
    first, second = known(A, B)
    found = net.drive(refresh_cluster([second, first], base(A, B)))
    assert found.clusters == (second, replace(first, **(OTHER_NAME if leads else {})))


def test_a_proxy_that_rests_is_not_left_for_the_published_way() -> None:
    net = network(info(A, B), A, B)
    net.servers[A].override = lambda count, request: (
        HttpFailure(UNREACHABLE, "the proxy is down") if request.target == trust(PROXY) else None
    )
    first, second = known(A, B)
    found = net.drive(refresh_cluster([replace(first, **PROXY), second], base(A, B)))
    assert found.clusters == (second, replace(first, **PROXY))


@pytest.mark.parametrize(("direct", "way"), [(False, PROXY), (True, {})])
def test_a_new_address_is_reached_through_the_proxy_of_the_cluster_when_it_leads_there(direct: bool, way: Way) -> None:
    net = network(info(B), A, B)
    net.servers[B].override = lambda count, request: (
        HttpFailure(UNREACHABLE, "no way") if direct == (request.target == trust(PROXY)) else None
    )
    first, second = known(A, B)
    found = net.drive(refresh_cluster([replace(first, **PROXY)], base(A)))
    assert found.clusters == (replace(second, **way),)


def test_further_new_addresses_are_reached_through_the_proxy_of_the_cluster() -> None:
    net = network(info(A, B, C), A)
    first, second, third = known(A, B, C)
    found = net.drive(refresh_cluster([replace(first, **PROXY)], base(A)))
    assert found.clusters == tuple(replace(one, **PROXY) for one in (first, second, third))


@pytest.mark.parametrize(
    ("proxies", "after"),
    [
        pytest.param((OTHER_PROXY, {}), OTHER_PROXY, id="the proxy of the cluster was changed"),
        pytest.param((PROXY, OTHER_PROXY), OTHER_PROXY, id="the address has one of its own now"),
        pytest.param(({}, {}), {}, id="the cluster has no proxy any more"),
        pytest.param((PROXY, {}), PROXY, id="nothing changed"),
    ],
)
@pytest.mark.parametrize("leads", [True, False])
def test_an_address_that_was_learned_follows_the_proxy_of_the_cluster(
    proxies: tuple[Way, Way], after: Way, *, leads: bool
) -> None:
    """It was taken for one that was set by hand, and stayed at a proxy that was taken away."""
    first, second = known(A, B)
    written: MergeBase | None = replace(base(A), ways=(Cluster("", f"https://{A}", **PROXY),))
    found = network(published_by(PROXY), A, B).drive(refresh_cluster([replace(first, **PROXY)], written))
    assert found.clusters == (replace(first, **PROXY), replace(second, **PROXY))
    entries = replace(first, name="", **proxies[0]), replace(second, **proxies[1])
    config_map = published_by({}) | {"data": {"kubeconfig": format_kubeconfig(Kubeconfig(entries))}}
    for turn in range(3):
        net = network(config_map, A, B)
        net.servers[B].override = lambda count, request, turn=turn: (  # type: ignore[misc]  # the default binds a value of the loop
            None if leads or turn == 2 else HttpFailure(UNREACHABLE, "not yet")
        )
        read = merge_base(Cluster("", extensions=(found.base.extension(),))) if found.base else None
        assert read == found.base
        found = net.drive(refresh_cluster(found.clusters, read))
        if turn == 1:
            assert found.clusters == (replace(first, **proxies[0]), replace(second, **(after if leads else PROXY)))
    assert found.clusters == (replace(first, **proxies[0]), replace(second, **after))


def test_a_proxy_that_was_set_by_hand_for_an_address_that_was_learned_stays() -> None:
    first, second = known(A, B)
    found = network(info(A, B), A).drive(refresh_cluster([replace(first, **PROXY)], base(A)))
    here = [found.clusters[0], replace(second, **OTHER_PROXY)]
    for _ in range(2):
        found = network(info(A, B), A).drive(refresh_cluster(here, found.base))
        assert found.clusters == tuple(here)
    assert found.base == MergeBase.of(found.published)


def test_a_token_that_is_given_again_keeps_the_way_that_was_set_here() -> None:
    net = network(info(A), A)
    published = net.drive(refresh_cluster(known(A), base(A))).published
    net.servers[A].requests.clear()
    first = replace(known(A)[0], **NAME)
    assert net.drive(merge_published([first], base(A), published)).clusters == (first,)
    assert [request.target for request in net.servers[A].requests] == [trust(NAME)]


def test_a_cluster_info_without_kubeconfig_changes_nothing() -> None:
    empty = {"kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": {}}
    with pytest.raises(errors.UnusableClusterInfoError, match='it has no key "kubeconfig"'):
        network(empty, A).drive(refresh_cluster(known(A), base(A)))


@pytest.mark.parametrize(
    ("published", "superseded"),
    [
        pytest.param((), frozenset(), id="no rollover"),
        pytest.param(pins_of(OTHER_CA), {str(pin) for pin in pins_of(OTHER_CA)}, id="one CA"),
        pytest.param(pins_of(BOTH), {str(pin) for pin in pins_of(BOTH)}, id="two CAs"),
    ],
)
def test_cas_whose_certificates_are_to_be_renewed_are_read(published: tuple[Pin, ...], superseded: set[str]) -> None:
    config_map = clusterinfo.config_map(f"https://{A}", CA, superseded=published)
    found = network(config_map, A).drive(refresh_cluster(known(A), base(A)))
    assert found.published.superseded == superseded


def test_the_base_is_kept_as_an_extension() -> None:
    found = TrustedCluster(known(C)[0], None, (), "file", client_ca_pem=OTHER_CA, published=known(A, B, ca=BOTH))
    written = MergeBase.of(found)
    assert written is not None
    assert written == base(A, B, ca=BOTH, client_ca=OTHER_CA)
    assert merge_base(Cluster("c", extensions=({"name": "other"}, written.extension()))) == written


def test_the_base_keeps_the_ways_that_were_published() -> None:
    first, second = known(A, B)
    ways = (replace(first, **NAME), replace(second, disable_compression=True, **OTHER_PROXY))
    written = MergeBase.of(TrustedCluster(first, None, (), "file", client_ca_pem=CA, published=ways))
    assert written is not None
    assert [replace(way, ca_pem=b"") for way in (one.way for one in ways)] == list(written.ways)
    assert merge_base(Cluster("c", extensions=(written.extension(),))) == written


@pytest.mark.parametrize("ways", ["x", [1], [{}], [{"server": "s", "tls-server-name": "n", "proxy-url": "p"}]])
def test_ways_that_cannot_be_read_are_left_out(ways: Any) -> None:
    extension = base(A).extension()
    extension["extension"]["ways"] = ways
    assert merge_base(Cluster("c", extensions=(extension,))) == base(A)


def test_without_a_cluster_info_there_is_no_base() -> None:
    document = TrustedCluster(known(A)[0], None, (), "file", client_ca_pem=CA)
    assert MergeBase.of(document) is None
    assert MergeBase.of(replace(document, cluster_id="a-b-c")) == MergeBase((), digest(CA), "", cluster_id="a-b-c")


@pytest.mark.parametrize(
    "content",
    [None, {}, {"servers": "x"}, {"servers": [1], "certificate-authority": "", "client-certificate-authority": ""}],
)
def test_an_extension_that_cannot_be_read_is_none(content: Any) -> None:
    assert merge_base(Cluster("c", extensions=({"name": BASE, "extension": content},))) is None


def test_where_cluster_info_was_not_read_there_is_no_base_for_the_next_merge() -> None:
    """As of a document whose server keeps cluster-info to itself."""
    (first,) = known(A)
    document = TrustedCluster(first, None, (), "file", client_ca_pem=CA)
    found = network(info(A), A).drive(merge_published([first], base(A), document))
    assert (found.clusters, found.base) == ((first,), None)


# ── entries that any program may have written ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("before", "written", "published", "verifying", "after"),
    [
        pytest.param(CA, None, CA, {CA}, CA, id="the CA is the published one"),
        pytest.param(CA, None, BOTH, {CA, BOTH}, BOTH, id="a second CA is published"),
        pytest.param(BOTH, None, OTHER_CA, {BOTH, OTHER_CA}, OTHER_CA, id="the first was retired"),
        pytest.param(CA, None, OTHER_CA, {CA, OTHER_CA}, OTHER_CA, id="another CA, which verifies the server as well"),
        pytest.param(CA, None, OTHER_CA, {CA}, CA, id="another CA, behind something that has the known one"),
        pytest.param(b"", None, OTHER_CA, {b""}, b"", id="the roots of the machine, in front of the cluster"),
        pytest.param(CA, base(A), OTHER_CA, {CA, OTHER_CA}, OTHER_CA, id="with a base the published one follows"),
        pytest.param(CA, base(A, ca=BOTH), OTHER_CA, {CA, OTHER_CA}, CA, id="and one that was set by hand stays"),
    ],
)
def test_a_ca_that_was_set_for_something_in_front_of_the_cluster_stays(
    before: bytes, written: MergeBase | None, published: bytes, verifying: set[bytes], after: bytes
) -> None:
    """`verifying`: bundles under which the server is verified."""

    def answer(count: int, request: HttpRequest) -> HttpResponse | HttpFailure:
        trust = request.target
        assert isinstance(trust, Trust)
        if trust.ca_pem in verifying:
            return HttpResponse(200, json.dumps(info(A, ca=published)).encode())
        return HttpFailure(CERTIFICATE, "unable to get local issuer certificate")

    servers = Network({A: Server(None, override=answer)})
    found = servers.drive(follow_cluster(known(A, ca=before), written))
    assert found.clusters[0].ca_pem == after
    assert order(found)[0] == A


def test_an_entry_finds_its_cluster_by_the_addresses_that_were_published_before() -> None:
    found = network(info(B), B).drive(follow_cluster(known(A), base(A, B)))
    assert order(found) == [B]
    assert found.base == base(B)
