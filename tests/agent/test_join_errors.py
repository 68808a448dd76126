"""Errors of a join, each with its exact message: step, reason, remedy."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from mooring.agent.join import join
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError
from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import USAGE_AUTHENTICATION, USAGE_SIGNING, BootstrapToken, parse_token
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.fetch import Polling
from mooring.trust.discovery.pins import pin_of
from mooring.trust.joinconfiguration import JoinPlan
from tests.support import peer
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer
from tests.support.manualclock import HurriedClock
from tests.support.ports import free_port
from tests.support.testca import LOOPBACK, Pair, ThrowawayCA

TOKEN = parse_token("abcdef.0123456789abcdef")
CA = ThrowawayCA()
OTHER = ThrowawayCA("somebody else")
PIN = str(pin_of(CA.certificate))


def plan(endpoint: str, token: BootstrapToken = TOKEN, pin: str = PIN, name: str = "m1") -> JoinPlan:
    return join_plan(name, (endpoint,), Secret(token.reveal()), pins=(pin,))


def why(wanted: JoinPlan, root: Path, timeout: float = 30.0) -> str:
    options = join_options(root=root, polling=Polling(attempts=1), certificate_timeout=timeout)
    with pytest.raises(JoinError) as caught:
        asyncio.run(join(wanted, options, HurriedClock()))
    message = str(caught.value)
    secret = wanted.tls_token.secret.reveal().decode() if wanted.tls_token else TOKEN.reveal()
    assert secret not in message
    return re.sub(r"(?<=mooring auth explain )[0-9a-f-]{36}$", "ID", message)


EXPLAINED = "; an administrator of a Mooring server learns the reason with: mooring auth explain ID"


def test_a_malformed_token_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError) as caught:
        join_plan("m1", ("127.0.0.1:1",), Secret("abcdef.TOOSHORT"), pins=(PIN,))
    assert str(caught.value) == (
        "--token: the bootstrap token is not of the form abcdef.0123456789abcdef: "
        "6 characters, one dot, 16 characters, only a-z and 0-9, nothing before or after"
    )


# ── against a real server ────────────────────────────────────────────────────────────────────────────────────────


def no_signature(server: LiveServer, token: BootstrapToken) -> str:
    """Return the message for cluster-info that other tokens have signed."""
    return (
        f"join failed at step discovery: verifying cluster-info from {server.endpoint} (step 2): cluster-info carries no "
        f'signature for token id "{token.id}": the token is unknown, expired, or lacks the signing usage; '
        "look on the server: `mooring status` says when cluster-info cannot be signed, `mooring token list` has the tokens; "
        "make one with `mooring token create`"
    )


def test_an_unknown_id_has_no_signature(live_server: LiveServer, tmp_path: Path) -> None:
    live_server.create_token()
    token = parse_token("zzzzzz.0123456789abcdef")
    assert why(plan(live_server.endpoint, token, live_server.pin), tmp_path) == no_signature(live_server, token)
    assert list(tmp_path.iterdir()) == []


def test_an_expired_token_has_no_signature(live_server: LiveServer, tmp_path: Path) -> None:
    live_server.create_token()
    expires = SystemClock().now() - timedelta(seconds=1)
    token = live_server.create_token(expires=expires, signed=False)
    assert why(plan(live_server.endpoint, token, live_server.pin), tmp_path) == no_signature(live_server, token)


def test_a_token_without_the_signing_usage_has_no_signature(live_server: LiveServer, tmp_path: Path) -> None:
    live_server.create_token()
    token = live_server.create_token(usages=(USAGE_AUTHENTICATION,), signed=False)
    assert why(plan(live_server.endpoint, token, live_server.pin), tmp_path) == no_signature(live_server, token)


def test_a_wrong_secret_makes_the_signature_wrong(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    wrong = parse_token(f"{token.id}.aaaaaaaaaaaaaaaa")
    assert why(plan(live_server.endpoint, wrong, live_server.pin), tmp_path) == (
        f"join failed at step discovery: verifying cluster-info from {live_server.endpoint} (step 2): the signature of "
        f'cluster-info for token id "{token.id}" is wrong: the secret half of the token is not the server\'s, or the '
        "answer was forged; this server is not trusted: check the token and the address"
    )


def test_a_wrong_pin_is_refused(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    assert why(plan(live_server.endpoint, token, PIN), tmp_path) == (
        f"join failed at step discovery: comparing the CA from {live_server.endpoint} with the pins (step 4): no CA of the "
        f"cluster has a pinned public key (it has {live_server.pin}); this server is not trusted: compare "
        "--discovery-token-ca-cert-hash with the value that `mooring token create --print-join-command` prints on the server; "
        "the hash may be of a CA that was replaced"
    )


def test_a_token_without_the_authentication_usage_cannot_ask(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token(usages=(USAGE_SIGNING,), groups=())
    assert why(plan(live_server.endpoint, token, live_server.pin), tmp_path) == (
        f'join failed at step name: the server does not accept token id "{token.id}": it is unknown, was deleted or '
        "revoked, has expired, its secret is wrong, it lacks the usage authentication, it is not for the network of this "
        "machine, or a limit in its annotations cannot be read; "
        "list tokens on the server with `mooring token list`, make one with `mooring token create`"
        f"{EXPLAINED}"
    )


def test_a_token_whose_groups_may_not_ask_is_told_which_role_is_missing(
    live_server: LiveServer, tmp_path: Path
) -> None:
    token = live_server.create_token(groups=("system:bootstrappers:nobody",))
    assert why(plan(live_server.endpoint, token, live_server.pin), tmp_path) == (
        f'join failed at step request: the server does not allow token id "{token.id}" to ask for a certificate '
        f'(certificatesigningrequests.certificates.k8s.io is forbidden: User "system:bootstrap:{token.id}" cannot create '
        'resource "certificatesigningrequests" in API group "certificates.k8s.io" at the cluster scope): its groups are not '
        "bound to the ClusterRole system:node-bootstrapper, or the token is not for this node name, or for no further machine"
        f"{EXPLAINED}"
    )


def test_a_machine_of_another_cluster_is_told_what_to_remove(live_server: LiveServer, tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    state.write_ca(OTHER.certificate_pem)
    assert why(plan(live_server.endpoint, live_server.create_token(), live_server.pin), tmp_path) == (
        f"join failed at step discovery: {state.ca} holds the CA of another cluster; if this machine shall leave that "
        f"cluster, remove {state.ca}, {state.kubeconfig} and {state.certificates}, then join again"
    )


def test_a_name_in_use_is_refused(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    wanted = plan(live_server.endpoint, token, live_server.pin, "taken")
    options = join_options(root=tmp_path / "first", polling=Polling(attempts=1))
    asyncio.run(join(wanted, options))
    assert why(wanted, tmp_path / "second") == (
        'join failed at step name: the cluster has a Ready node of the name "taken"; choose another with --node-name, or '
        "if that machine is gone, delete it with `kubectl delete node taken`"
    )


# ── against servers that are not what they should be ─────────────────────────────────────────────────────────────


def published(server: str, ca_pem: bytes, token: BootstrapToken = TOKEN) -> Obj:
    now = SystemClock().now()
    config_map = clusterinfo.config_map(server, ca_pem)
    secret = tokensecret.to_secret(tokensecret.new_record(token, now))
    signed = clusterinfo.signed(config_map, [secret], now)
    assert signed is not None
    return signed


def first_fetch(port_or_peer: str) -> str:
    return f"join failed at step discovery: fetching cluster-info from {port_or_peer} (step 1): "


def verified_fetch(endpoint: str) -> str:
    return f"join failed at step discovery: fetching cluster-info from {endpoint} with TLS verified (step 5): "


def test_the_endpoint_is_down(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    assert why(plan(endpoint), tmp_path) == first_fetch(endpoint) + (
        "nothing answers there (connection refused); check the address, the port, the firewall, and that the server runs"
    )


def test_the_endpoint_does_not_speak_tls(tmp_path: Path) -> None:
    with peer.http_peer() as server:
        assert why(plan(server.endpoint), tmp_path) == first_fetch(server.endpoint) + (
            "the server does not speak TLS (what it answers is not TLS); "
            "give the HTTPS address of the API server, usually port 6443"
        )


def test_the_endpoint_is_a_web_server(tmp_path: Path) -> None:
    with peer.http_peer(lambda asked: peer.Reply(200, b"<html>Welcome</html>"), CA.server(*LOOPBACK)) as server:
        assert why(plan(server.endpoint), tmp_path) == first_fetch(server.endpoint) + (
            "the answer is not one of a Kubernetes API server (not JSON); check the address and the port"
        )


def serving(pair: Pair, second: Callable[[str], Obj] | None = None, tmp_path: Path | None = None) -> str:
    """Return the error of a join at a server with the certificate `pair`. With `second` its second response differs."""
    answers: list[Obj] = []

    def answer(asked: peer.ReceivedRequest) -> peer.Reply:
        return peer.Reply(200, json.dumps(answers.pop(0)).encode())

    assert tmp_path is not None
    with peer.http_peer(answer, pair) as server:
        url = server.url
        answers += [
            published(url, CA.certificate_pem),
            (second or (lambda url: published(url, CA.certificate_pem)))(url),
        ]
        return why(plan(server.endpoint), tmp_path).replace(server.endpoint, "HOST")


def test_the_ca_changed_between_the_two_fetches(tmp_path: Path) -> None:
    message = serving(CA.server(*LOOPBACK), lambda url: published(url, OTHER.certificate_pem), tmp_path)
    assert message == (
        "join failed at step discovery: comparing both copies of cluster-info from HOST (step 6): cluster-info differs from "
        "what was fetched before TLS was verified: the CA was just changed, or the first answer was altered; this "
        "server is not trusted: try again, and if it stays so, tell the administrator"
    )


def test_the_server_that_signed_is_not_the_one_that_answers(tmp_path: Path) -> None:
    assert serving(OTHER.server(*LOOPBACK), None, tmp_path) == verified_fetch("HOST") + (
        "the server's certificate does not verify (unable to get local issuer certificate); "
        "another machine may answer in its place, or the address is not among the names of the certificate"
    )


def test_the_clocks_differ(tmp_path: Path) -> None:
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    ended = SystemClock().now() - timedelta(minutes=1)
    message = serving(CA.custom("kube-apiserver", extensions=[(names, False)], not_after=ended), None, tmp_path)
    head, _, tail = message.partition("this machine's clock says ")
    assert head == verified_fetch("HOST") + (
        "the server's certificate is not valid at this machine's time (certificate has expired; "
    )
    assert tail[20:] == (
        "); compare the clocks of this machine and of the server, then renew the certificate if both are right"
    )


def test_a_clock_that_is_a_day_behind_is_told_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server tells its time by the Date header of its first response, which is not verified."""
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    ended = SystemClock().now() - timedelta(minutes=1)
    now = HurriedClock.now
    monkeypatch.setattr(HurriedClock, "now", lambda self: now(self) - timedelta(days=1))
    message = serving(CA.custom("kube-apiserver", extensions=[(names, False)], not_after=ended), None, tmp_path)
    found = re.search(r"; this machine's clock is (\d+) s behind the server's: set the clocks by NTP$", message)
    assert found is not None
    assert abs(int(found[1]) - 86_400) < 60
