"""Steps of the network: proxy, names, tcp, tls, clock and api, about one address.

Rules kept here: no credential is sent. The certificate is verified where the CA of the cluster is known.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from urllib.parse import urlsplit

from mooring.agent.doctor import probes, supervisor
from mooring.agent.doctor.examination import Examination, ProbedAddress
from mooring.agent.doctor.probes import DialledPlace, Handshake, UnresolvedError
from mooring.client.http import tls
from mooring.client.http.connection import proxies_for
from mooring.errors import MooringError
from mooring.pki.x509 import bundles, names
from mooring.trust import doctor
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.fetch import connection_error, read_cluster_info
from mooring.trust.doctor import Judgement, failed, ok, skipped
from mooring.trust.httpexchange import PROXY, HttpFailure
from mooring.trust.httpproxy import Proxy, ProxySettingError
from mooring.trust.httpsurl import dialled_host, is_address, tls_name
from mooring.trust.joinconfiguration import vouched_cas
from mooring.trust.kubeconfig import address_of

CHECK_PROXY = "check the proxy, and the setting that names it: NO_PROXY excepts servers"
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy")
EXCEPTION_VARIABLES = ("NO_PROXY", "no_proxy")


async def check_proxy(exam: Examination, target: ProbedAddress) -> Judgement:
    """Find the proxy of the server, by the rule of every request."""
    try:
        target.proxy = proxies_for(target.way)(target.way.server)
    except ProxySettingError as error:
        return failed(str(error), "correct the variable, or except the server by NO_PROXY")
    if target.proxy is not None:
        return ok(f"requests go by {target.proxy}", proxy=target.proxy.shown_url, source=target.proxy.source)
    variable = next((one for one in PROXY_VARIABLES if os.environ.get(one)), "")
    if not variable:
        return ok("no variable names a proxy", proxy="", source="")
    if target.way.is_k3s:
        return ok(f"{variable} is set, and agents of k3s do not use it", proxy="", source=variable)
    exception = next((one for one in EXCEPTION_VARIABLES if os.environ.get(one)), "")
    reason = f"{exception} excepts {target.host}" if exception else "loopback addresses use no proxy"
    return ok(f"{variable} is set, and {reason}", proxy="", source=variable)


async def check_names(exam: Examination, target: ProbedAddress) -> Judgement:
    """Resolve the name of the server, or that of its proxy."""
    host, port = _dialled(target)
    if is_address(host.partition("%")[0]):
        version = 6 if ":" in host else 4
        target.resolved = ((version, host),)
        return doctor.judge_names(host, target.resolved, is_address=True, in_hosts=False)
    in_hosts = probes.is_in_hosts(host)
    try:
        async with asyncio.timeout(exam.options.timeout):
            target.resolved = await probes.resolve(host, port)
    except UnresolvedError as error:
        reason, is_final = str(error), error.is_final
    except TimeoutError:
        reason, is_final = f"no answer within {exam.options.timeout:g} s", False
    else:
        return doctor.judge_names(host, target.resolved, is_address=False, in_hosts=in_hosts)
    judgement = doctor.judge_unresolved(host, reason, is_final=is_final, in_hosts=in_hosts)
    return _about_proxy(target, judgement)


async def check_tcp(exam: Examination, target: ProbedAddress) -> Judgement:
    """Connect to each address, and choose the first that accepts."""
    _, port = _dialled(target)
    addresses = [address for _, address in target.resolved[: probes.MAX_ADDRESSES]]
    attempts = await asyncio.gather(*(probes.connect_to(one, port, exam.options.timeout) for one in addresses))
    good = next((one for one in attempts if one.outcome == doctor.CONNECTED), None)
    if good is not None:
        tunnel = address_of(target.way.server).partition("/")[0] if target.proxy is not None else ""
        target.place = DialledPlace(good.address, port, tunnel)
        proxy = target.proxy if target.proxy is not None and _can_tunnel(target.proxy) else None
        if proxy is not None and (refusal := await probes.refused_tunnel(target.place, exam.options.timeout)):
            return failed(proxy.refusal(refusal), CHECK_PROXY)
        if target.proxy is not None and proxy is None:
            reply = await exam.version(target)
            if isinstance(reply, HttpFailure) and reply.kind == PROXY:
                raise connection_error("connecting the server", reply)
    judgement = _about_proxy(target, doctor.judge_tcp(port, attempts))
    if judgement.result == doctor.FAILED and exam.files.clusters and not exam.options.addresses:
        judgement = replace(
            judgement,
            remedy=f"{judgement.remedy}; the address is that in the files of this machine: if the servers have another one, "
            f"{exam.files.with_token}",
        )
    return judgement


def _about_proxy(target: ProbedAddress, judgement: Judgement) -> Judgement:
    """Return the judgement of names or connections, which says where it is about the proxy."""
    if target.proxy is None or judgement.result == doctor.OK:
        return judgement
    return replace(judgement, message=f"the proxy ({target.proxy.shown_url}): {judgement.message}", remedy=CHECK_PROXY)


def _can_tunnel(proxy: Proxy) -> bool:
    """Return whether a tunnel needs neither TLS with the proxy, nor its password, nor SOCKS."""
    parts = urlsplit(proxy.url)
    return parts.scheme == "http" and not parts.username


def _dialled(target: ProbedAddress) -> tuple[str, int]:
    """Return host and port to which this machine connects: those of the proxy, where there is one."""
    if target.proxy is None:
        return target.host, target.port
    parts = urlsplit(target.proxy.url)
    return dialled_host(parts), parts.port or {"https": 443, "http": 80}.get(parts.scheme, 1080)


async def check_tls(exam: Examination, target: ProbedAddress) -> Judgement:
    """Perform a handshake, and verify the certificate where the CA of the cluster is known."""
    place, name = target.place, tls_name(target.way.tls_server_name or target.host)
    assert place is not None  # a connection passed
    if target.proxy is not None and not _can_tunnel(target.proxy):
        return skipped("the HTTP client alone connects the server by this proxy: step api says whether it does")
    done = await probes.handshake(place, name, tls.not_verifying(), exam.options.timeout)
    if not done.certificate:
        return await _judge_no_handshake(exam, target, place, done)
    seen = target.seen = probes.read_certificate(done.certificate)
    if seen is None:
        return failed("the server shows a certificate that cannot be read", "replace the certificate of the server")
    now = exam.clock.now()
    if not seen.valid_at(now):
        await exam.version(target)
    judgement = doctor.judge_certificate(seen, now, target.server_time)
    if judgement.result != doctor.OK:
        return judgement
    return await _verified(exam, target, place, name, seen) or judgement


async def _judge_no_handshake(
    exam: Examination, target: ProbedAddress, place: DialledPlace, done: Handshake
) -> Judgement:
    first = done.first
    if not probes.looks_like_tls(first) and not place.tunnel:
        # A server in plain HTTP may wait for the end of a line, close without a word, or answer by a page alone.
        first = await probes.first_bytes(place, target.host, exam.options.timeout) or first
    if first and not probes.looks_like_tls(first):
        return doctor.judge_first_bytes(first)
    if done.silent:
        return doctor.judge_silent_handshake(exam.options.timeout, done.received)
    return doctor.judge_closed_handshake(done.error)


async def _verified(
    exam: Examination, target: ProbedAddress, place: DialledPlace, name: str, seen: doctor.SeenCertificate
) -> Judgement | None:
    """Return a judgement when the CA of the cluster is known and does not verify the server."""
    anchors = await _known_anchors(exam, target)
    if not anchors:
        return None
    done = await probes.handshake(place, name, tls.for_api_server(anchors), exam.options.timeout)
    if not done.unverified or done.verify_code in probes.TIME_CODES:
        return None
    subjects = ", ".join(names.printable(one.subject) for one in bundles.certificates_among(anchors))
    return doctor.judge_unverified(seen, done.unverified, subjects, is_name=done.verify_code in probes.NAME_CODES)


async def _known_anchors(exam: Examination, target: ProbedAddress) -> bytes:
    """Return the CA that must verify the server, as PEM: from the files, a document, or what pins and token vouch for."""
    options = exam.options
    # The cluster that a pin names may be another one than that of the files.
    if target.way.ca_pem and not exam.is_pinned:
        return target.way.ca_pem
    if exam.joins_k3s_way_alone:
        return await supervisor.vouched_cas(exam, target)
    if options.token is None and not options.pins and not options.ca_hash:
        return b""
    # Errors of these are those of later steps.
    with suppress(MooringError):
        data = read_cluster_info(f"fetching cluster-info from {target.address}", await exam.fetch_cluster_info(target))
        if options.token is not None:
            clusterinfo.verify(data, options.token)
        return vouched_cas(exam.published(target, data).ca_pem, options.pins, options.ca_hash)
    return b""


async def check_clock(exam: Examination, target: ProbedAddress) -> Judgement:
    """Compare this machine's clock with the Date of the server."""
    reply = await exam.version(target)
    if isinstance(reply, HttpFailure):
        return skipped("no response came that has a Date")
    certificates: list[tuple[str, datetime, datetime]] = []
    if target.seen is not None:
        certificates.append(("the certificate of the server", target.seen.begin, target.seen.end))
    if (pair := exam.files.pair) is not None:
        leaf = pair.leaf
        certificates.append(("the certificate of this node", leaf.not_valid_before_utc, leaf.not_valid_after_utc))
    return doctor.judge_clock(exam.clock.now(), target.server_time, certificates)


async def check_api(exam: Examination, target: ProbedAddress) -> Judgement:
    """Recognise the program that answers GET /version."""
    reply = await exam.version(target)
    if isinstance(reply, HttpFailure):
        raise connection_error("asking for /version", reply)
    return doctor.judge_api(reply.status, reply.headers, reply.body)
