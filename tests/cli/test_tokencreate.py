"""`mooring token create` with lost responses: the stored token is recognised and printed."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from mooring.apimachinery.schema import Obj
from mooring.cli.token.create import create_all
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import AlreadyExistsError, ConfigError, NotFoundError
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import TokenRecord, new_record
from mooring.trust.discovery.errors import EndpointDownError
from mooring.trust.kubeconfig import KubeconfigUser, user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.support.commandline import CommandLine, mooring
from tests.support.testca import ThrowawayCA

__all__ = ["mooring"]


class Losing:
    """Cluster that stores objects and loses its first response to a POST."""

    warning = ""

    def __init__(self) -> None:
        self.stored: dict[str, Obj] = {}

    async def get(self, target: str, name: str, namespace: str) -> Obj:
        if name not in self.stored:
            raise NotFoundError.of("", target, name)
        return self.stored[name]

    async def create(self, target: str, obj: Obj) -> Obj:
        name = obj["metadata"]["name"]
        if name in self.stored:
            raise AlreadyExistsError.of("", target, name)
        self.stored[name] = obj
        raise EndpointDownError("asking", "connection reset")

    async def update(self, target: str, obj: Obj) -> Obj:
        return self.stored.setdefault(obj["metadata"]["name"], obj)


def stored(cluster: Losing, record: TokenRecord) -> None:
    client = cast("ClusterClient", cluster)
    asyncio.run(create_all(client, [record], lambda made: made.token.id, SystemClock(), timedelta(seconds=10)))


def test_a_lost_answer_does_not_make_the_token_somebody_elses(capsys: pytest.CaptureFixture[str]) -> None:
    cluster, record = Losing(), new_record(parse_token("lostan.0123456789abcdef"), SystemClock().now())
    stored(cluster, record)
    assert list(cluster.stored) == ["bootstrap-token-lostan"]
    assert capsys.readouterr().out == "lostan\n"
    with pytest.raises(ConfigError, match='a token with id "lostan" already exists'):
        stored(cluster, record)


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("https://192.0.2.10:6443", "192.0.2.10:6443"),
        ("https://lb.example", "lb.example:443"),
        ("https://[2001:db8::1]", "[2001:db8::1]:443"),
        ("https://lb.example/", "lb.example:443"),
    ],
)
def test_the_join_line_names_the_port_that_the_url_means(
    server: str, address: str, mooring: CommandLine, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "admin.conf"
    kubeconfig.write_text(
        format_kubeconfig(user_kubeconfig(server, ThrowawayCA().certificate_pem, KubeconfigUser("admin")))
    )
    line = mooring.done("token", "create", "--print-join-command", "--dry-run", "--kubeconfig", str(kubeconfig))
    assert f"mooring join {shlex.quote(address)} --token " in line


@pytest.mark.parametrize(
    ("way", "fields"),
    [
        ({"tls_server_name": "inner.test"}, "tls-server-name"),
        ({"proxy_url": "http://jane:hush@proxy.test:3128"}, "proxy-url"),
        ({"tls_server_name": "inner.test", "proxy_url": "socks5://proxy.test"}, "tls-server-name and proxy-url"),
        ({}, ""),
    ],
    ids=str,
)
def test_a_way_that_a_join_line_cannot_carry_is_warned_of(
    tmp_path: Path, mooring: CommandLine, way: dict[str, Any], fields: str
) -> None:
    kubeconfig = tmp_path / "admin.conf"
    config = user_kubeconfig("https://192.0.2.1", ThrowawayCA().certificate_pem, KubeconfigUser("admin"))
    config = replace(config, clusters=tuple(replace(one, **way) for one in config.clusters))
    kubeconfig.write_text(format_kubeconfig(config))
    outcome = mooring("token", "create", "--print-join-command", "--dry-run", "--kubeconfig", str(kubeconfig))
    assert outcome.out.startswith("mooring join 192.0.2.1:443 --token ")
    warning = f"Warning: the kubeconfig reaches https://192.0.2.1 by {fields}, which a join line cannot carry"
    assert (warning in outcome.err) == bool(fields)
    assert "hush" not in outcome.err


def test_no_join_line_for_a_server_with_a_path(tmp_path: Path, mooring: CommandLine) -> None:
    """As Rancher writes it: the line would lead elsewhere."""
    kubeconfig = tmp_path / "admin.conf"
    server = "https://rancher.example.com/k8s/clusters/c-1"
    config = user_kubeconfig(server, ThrowawayCA().certificate_pem, KubeconfigUser("admin"))
    kubeconfig.write_text(format_kubeconfig(config))
    outcome = mooring("token", "create", "--print-join-command", "--dry-run", "--kubeconfig", str(kubeconfig))
    assert outcome.code == 1
    assert '/c-1" of the kubeconfig has a path, which a join line cannot carry: ' in outcome.err
    assert "--discovery-file" in outcome.err
