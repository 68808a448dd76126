"""The kubeconfig of a token webhook: wrong at start it stops the start, and changed it is followed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.chain import judge
from mooring.authn.credentials import Credentials, bearer
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.server.authentication.webhook import build
from tests.support.authnhost import AuthnHost, configured
from tests.support.manualclock import ManualClock
from tests.support.testca import ThrowawayCA
from tests.support.tokenwebhook import SimulatedWebhook, waits

API = "https://kubernetes.default.svc"
NO_VIEWS: Views = {}
JANE = UserInfo("jane")


class House:
    """A token webhook at work, without the rest of a server."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        config = configured(
            authentication_token_webhook_config_file=str(path),
            authentication_token_webhook_version="v1",
            api_audiences=(API,),
        )
        self.around = AuthnHost(config, self.clock)
        self.stage, self.counted = self.around.stage, self.around.counted
        running = build(config, self.around.host)
        assert running is not None
        self.running = running
        (self.authenticator,) = running.authenticators

    async def user(self, token: str) -> str:
        """The name of whose token it is; empty when it is nobody's."""
        chain = judge(Credentials(bearer=bearer(token)), [self.authenticator], NO_VIEWS, self.clock.now(), (API,))
        outcome = await self.stage.settle(chain)
        return outcome.user.username if outcome.user else ""

    async def changed(self) -> None:
        """Two looks later."""
        await self.around.changed()

    async def close(self) -> None:
        await self.stage.close()
        await self.running.close()


@pytest.fixture
def ca() -> ThrowawayCA:
    return ThrowawayCA("service", datetime.now(UTC))


@pytest.fixture
def hook(ca: ThrowawayCA, tmp_path: Path) -> Iterator[SimulatedWebhook]:
    with SimulatedWebhook(ca, tmp_path, users={"t": {"username": "jane"}}) as running:
        yield running


@pytest.fixture
def other(tmp_path: Path) -> Iterator[SimulatedWebhook]:
    """Another webhook of another CA, who knows somebody else."""
    directory = tmp_path / "other"
    directory.mkdir()
    with SimulatedWebhook(ThrowawayCA("other"), directory, users={"t": {"username": "john"}}) as running:
        yield running


def in_house(config: Path, test: Callable[[House], Awaitable[None]]) -> None:
    async def run() -> None:
        house = House(config)
        try:
            await test(house)
        finally:
            await house.close()

    asyncio.run(run())


def test_a_changed_kubeconfig_is_followed_and_verdicts_of_the_other_are_forgotten(
    hook: SimulatedWebhook, other: SimulatedWebhook
) -> None:
    config = hook.kubeconfig()

    async def test(house: House) -> None:
        assert await house.user("t") == "jane"
        config.write_bytes(other.kubeconfig().read_bytes().replace(b'"webhook-ca.crt"', b'"other/webhook-ca.crt"'))
        await house.changed()
        assert await house.user("t") == "john"
        assert (len(hook.requests), len(other.requests)) == (1, 1)

    in_house(config, test)


def test_who_waits_for_the_old_one_gets_its_answer_and_nobody_else_does(
    hook: SimulatedWebhook, other: SimulatedWebhook
) -> None:
    config = hook.kubeconfig()
    hook.always = waits

    async def test(house: House) -> None:
        slow = asyncio.create_task(house.user("t"))
        while not hook.requests:
            await asyncio.wait([slow], timeout=0.005)
        config.write_bytes(other.kubeconfig().read_bytes().replace(b'"webhook-ca.crt"', b'"other/webhook-ca.crt"'))
        await house.changed()
        assert await house.user("t") == "john"
        hook.gate.set()
        assert await slow == "jane"
        assert await house.user("t") == "john"

    in_house(config, test)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="no YAML"),
        pytest.param(b"{}", id="no context"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_change_for_the_worse_is_not_used(
    hook: SimulatedWebhook, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    config = hook.kubeconfig()

    async def test(house: House) -> None:
        config.write_bytes(content)
        await house.changed()
        assert await house.user("t") == "jane"
        assert f"{config} was changed and is not used" in caplog.text

    in_house(config, test)


def test_a_client_certificate_that_is_renewed_is_shown_once_its_key_fits(
    hook: SimulatedWebhook, ca: ThrowawayCA, caplog: pytest.LogCaptureFixture
) -> None:
    ca.client("first").write(hook.directory, "client")
    config = hook.kubeconfig(user={"client-certificate": "client.crt", "client-key": "client.key"})

    async def test(house: House) -> None:
        await house.user("a")
        second = ca.client("second")
        (hook.directory / "client.crt").write_bytes(second.certificate_pem)
        await house.changed()
        await house.user("b")
        assert "client.crt was changed and is not used" in caplog.text
        (hook.directory / "client.key").write_bytes(second.key_pem)
        await house.changed()
        await house.user("c")
        await house.user("a")
        assert [asked.peer for asked in hook.requests] == ["first", "first", "second"]
        assert hook.tokens == ["a", "b", "c"], "what was decided is still known: it is the same webhook"

    in_house(config, test)


def test_a_ca_that_is_replaced_is_believed_from_then_on(hook: SimulatedWebhook, ca: ThrowawayCA) -> None:
    config = hook.kubeconfig()
    (hook.directory / "webhook-ca.crt").write_bytes(ThrowawayCA("stranger").certificate_pem)

    async def test(house: House) -> None:
        assert await house.user("t") == ""
        (hook.directory / "webhook-ca.crt").write_bytes(ca.certificate_pem)
        await house.changed()
        assert await house.user("t") == "jane"

    in_house(config, test)


def test_a_file_is_followed_once_however_often_it_is_named(hook: SimulatedWebhook) -> None:
    config = hook.kubeconfig()

    async def test(house: House) -> None:
        for number in range(5):
            config.write_text(json.dumps({**json.loads(config.read_text()), "number": "x" * number}))
            await house.changed()
        assert len(house.around.files._files) == 2
        assert await house.user("t") == "jane"

    in_house(config, test)


START: dict[str, tuple[Obj, Obj, str]] = {
    "http": ({"server": "http://a/"}, {}, 'cluster "service": server: the scheme must be https'),
    "a CA that is not there": ({"certificate-authority": "gone"}, {}, 'cluster "service": certificate-authority: '),
    "a number as server": ({"server": 1}, {}, "clusters[0].cluster.server must be text"),
    "two CAs": (
        {"certificate-authority-data": "eA=="},
        {},
        'invalid configuration: cluster "service" has both certificate-authority and certificate-authority-data',
    ),
    "a certificate without a key": ({}, {"client-certificate": "c"}, 'invalid configuration: user "server" has a client '),
    "a proxy of another kind": (
        {"proxy-url": "ftp://a"},
        {},
        'invalid configuration: cluster "service" has a proxy-url that cannot be used: it is not an http, https or socks5 URL',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cluster", "user", "why"), START.values(), ids=START.keys())
def test_what_is_wrong_at_start_stops_it_and_names_flag_file_and_field(
    hook: SimulatedWebhook, cluster: Obj, user: Obj, why: str
) -> None:
    config = hook.kubeconfig(cluster, user)
    with pytest.raises(ConfigError) as refused:
        House(config)
    assert str(refused.value).startswith(f"authentication-token-webhook-config-file: {config}: {why}")


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml cannot be read: no such file"):
        House(tmp_path / "gone.yaml")


def test_a_file_without_a_current_context_stops_the_start(hook: SimulatedWebhook) -> None:
    config = hook.kubeconfig()
    config.write_text(json.dumps({**json.loads(config.read_text()), "current-context": ""}))
    with pytest.raises(ConfigError, match=r"webhook\.yaml: the kubeconfig has no current context"):
        House(config)


def told(house: House, *verdicts: Verdict) -> None:
    for verdict in verdicts:
        cast(Any, house.authenticator)._on_verdict(verdict, house.clock.now())


DOWN = Rejected("webhook-unreachable", "connection refused")


def test_trouble_is_told_at_once_then_every_minute_and_its_end_once(
    hook: SimulatedWebhook, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def test(house: House) -> None:
        told(house, Accepted(JANE), NotMine(), Rejected("refused-by-webhook", "expired"))
        assert caplog.messages == []
        told(house, DOWN, DOWN, Rejected("timed-out", "no verdict within 30 s"))
        assert len(caplog.messages) == 1
        await house.clock.advance(60)
        told(house, Rejected("webhook-error", "it answers 503"))
        assert caplog.messages[1].endswith(
            "webhook-error: it answers 503; 2 more reviews failed since the last such line"
        )
        told(house, NotMine(), NotMine())
        assert caplog.messages[2:] == [f"the token webhook {hook.url} answers again"]
        told(house, DOWN)
        assert len(caplog.messages) == 4, "new trouble is told at once"

    in_house(hook.kubeconfig(), test)


def test_every_asking_is_counted_by_its_result(hook: SimulatedWebhook) -> None:
    async def test(house: House) -> None:
        told(house, DOWN)
        house.counted.clear()
        told(house, Accepted(JANE), NotMine(), DOWN)
        assert house.counted == ["accepted", "not-mine", "webhook-unreachable"]

    in_house(hook.kubeconfig(), test)


def test_a_query_is_not_logged(hook: SimulatedWebhook, caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        told(house, DOWN)
        assert "hunter2" not in caplog.text

    in_house(hook.kubeconfig({"server": f"{hook.url}?key=hunter2"}), test)
