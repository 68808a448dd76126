"""Targets of the second stage: a provider, an identity service or a webhook."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.server.authentication.kubeconfigtarget import TargetConnector
from mooring.trust.httpexchange import PROXY, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected
from tests.support import peer
from tests.support.connectproxy import connect_proxy
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA()
CONNECTOR = TargetConnector(SystemClock(), lambda path: Path(path).read_bytes())


async def asked(url: str) -> list[HttpResponse | HttpFailure]:
    selected = Selected(Cluster("c", url, CA.certificate_pem), KubeconfigUser("u"), "")
    answers = []
    for target in (CONNECTOR.https(url, CA.certificate_pem), CONNECTOR.kubeconfig(selected)):
        answers.append(await target.send(HttpRequest("target", timeout=5)))
        await target.close()
    return answers


def test_a_server_uses_the_proxies_of_its_environment_for_providers_and_webhooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As kube-apiserver: client-go's transport and apimachinery's SetTransportDefaults take `http.ProxyFromEnvironment`."""
    with peer.http_peer(pair=CA.server("id.test")) as server, connect_proxy(server.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "excepted.test")
        answers = asyncio.run(asked("https://id.test./a"))
        direct = asyncio.run(asked("https://excepted.test"))
    assert [isinstance(answer, HttpResponse) for answer in answers] == [True, True]
    assert proxy.targets == ["id.test.:443"] * 2
    assert all(isinstance(answer, HttpFailure) and "resolved" in answer.message for answer in direct)


def test_a_proxy_that_cannot_be_used_is_a_failure_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://user:secret@proxy")
    said = "HTTPS_PROXY: it is not an http, https or socks5 URL"
    assert asyncio.run(asked("https://id.test")) == [HttpFailure(PROXY, said, unsent=True)] * 2
