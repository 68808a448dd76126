"""Cluster client against a real server, and against peers that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from secrets import token_hex
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.apimachinery.status import CODES
from mooring.apimachinery.watchevent import WatchEvent
from mooring.cli.cluster import is_transient
from mooring.client.cluster import JSON_PATCH, LIST_SECONDS, STRATEGIC, TIMEOUT, ClusterClient, ListResult
from mooring.client.listwatch import follow
from mooring.clock import Clock, SystemClock
from mooring.errors import (
    AlreadyExistsError,
    ApiError,
    ConfigError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    MooringError,
    NotFoundError,
    PeerError,
    TooManyRequestsError,
    UnauthorizedError,
)
from mooring.secret import Secret
from mooring.trust.discovery.errors import AnswerTooLongError, BalancerAnswerError, NotKubernetesError
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support import peer
from tests.support.liveserver import LiveServer
from tests.support.ports import free_port
from tests.support.testca import LOOPBACK, ThrowawayCA

CA = ThrowawayCA()
SERVING = CA.server(*LOOPBACK)


class Hasty(SystemClock):
    """Clock that counts sleeps and returns at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Leaping(SystemClock):
    """Clock that goes on by `step` seconds each time it is read."""

    step = 60.0

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += self.step
        return self._now


def config_map(name: str, label: str = "test-cluster", **data: str) -> Obj:
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "labels": {"of": label}},
        "data": data,
    }


@pytest.fixture
def label() -> str:
    """Return what no other test on the shared server, and no earlier try of this one, calls its objects."""
    return token_hex(4)


def test_every_verb_and_what_it_raises(live_server: LiveServer, label: str) -> None:
    name = f"verbs-{label}"

    async def run(client: ClusterClient) -> None:
        made = await client.create("configmaps", config_map(name, label, a="1"))
        with pytest.raises(AlreadyExistsError, match=rf'^configmaps "{name}" already exists$'):
            await client.create("configmaps", config_map(name))
        assert await client.get("configmaps", name, "default") == made
        updated = await client.update("configmaps", {**made, "data": {"a": "2"}})
        with pytest.raises(ConflictError):
            await client.update("configmaps", {**made, "data": {"a": "3"}})
        patched = await client.patch("configmaps", name, {"data": {"b": "1"}}, "default")
        assert patched["data"] == {"a": "2", "b": "1"}
        operations = [{"op": "remove", "path": "/data/a"}]
        patched = await client.patch("configmaps", name, operations, "default", content_type=JSON_PATCH)
        assert patched["data"] == {"b": "1"}
        patched = await client.patch("configmaps", name, {"data": {"b": None}}, "default", content_type=STRATEGIC)
        assert not patched.get("data")
        listed = await client.list("configmaps", "default", label_selector=f"of={label}")
        assert [(one["kind"], one["metadata"]["name"]) for one in listed.items] == [("ConfigMap", name)]
        with pytest.raises(ConflictError):
            await client.delete("configmaps", name, "default", uid="another")
        await client.delete("configmaps", name, "default", uid=updated["metadata"]["uid"], propagation="Background")
        with pytest.raises(NotFoundError, match=rf'^configmaps "{name}" not found$'):
            await client.get("configmaps", name, "default")
        with pytest.raises(InvalidError):
            await client.create("configmaps", config_map("NOT A NAME"))
        dry = await client.create("configmaps", config_map("dry"), dry_run=True)
        assert dry["metadata"]["name"] == "dry"
        with pytest.raises(NotFoundError):
            await client.get("configmaps", "dry", "default")
        assert json.loads(await client.read("/version"))["major"] == "1"

    live_server.run(run)


def test_a_long_list_comes_in_pages(live_server: LiveServer, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.client.cluster.PAGE", 3)
    names = [f"page-{label}-{n}" for n in range(8)]

    async def run(client: ClusterClient) -> list[str]:
        await asyncio.gather(*(client.create("configmaps", config_map(name, label)) for name in names))
        listed = await client.list("configmaps", "default", label_selector=f"of={label}")
        await asyncio.gather(*(client.delete("configmaps", name, "default") for name in names))
        return [one["metadata"]["name"] for one in listed.items]

    assert live_server.run(run) == names


def test_a_watch_gives_each_event_once_and_a_stale_one_is_expired(live_server: LiveServer) -> None:
    async def run(client: ClusterClient) -> list[str]:
        start = (await client.list("configmaps", "default")).resource_version
        made = await client.create("configmaps", config_map("watched"))
        await client.update("configmaps", {**made, "data": {"a": "1"}})
        await client.delete("configmaps", "watched", "default")
        seen = []
        events = client.watch(
            "configmaps", "default", resource_version=start, field_selector="metadata.name=watched", seconds=20
        )
        async with aclosing(events):
            async for event in events:
                seen.append(event.type)
                if event.type == "DELETED":
                    break
        return seen

    assert live_server.run(run) == ["ADDED", "MODIFIED", "DELETED"]


def test_impersonation_and_refusals_are_the_servers_own_words(live_server: LiveServer) -> None:
    from dataclasses import replace

    from mooring.client.cluster import connect
    from mooring.client.kubeconfigfiles import load

    async def run() -> None:
        selected = load(str(live_server.data_dir / "super-admin.conf"))
        user = replace(selected.user, impersonate="alice", impersonate_groups=("system:authenticated",))
        async with connect(replace(selected, user=user)) as client:
            with pytest.raises(ForbiddenError) as caught:
                await client.get("secrets", "x", "kube-system")
            assert str(caught.value) == (
                'secrets "x" is forbidden: User "alice" cannot get resource "secrets" in API group "" '
                'in the namespace "kube-system"'
            )

    asyncio.run(run())


def test_following_goes_on_through_a_restart(live_server: LiveServer, label: str) -> None:
    """Whether the events of the first server are still there after the restart decides between an event and another list."""
    one, two = f"one-{label}", f"two-{label}"

    def names(change: ListResult | WatchEvent) -> list[str]:
        objects = change.items if isinstance(change, ListResult) else [change.object]
        return [obj["metadata"]["name"] for obj in objects if obj["metadata"].get("labels", {}).get("of") == label]

    async def run(client: ClusterClient) -> None:
        troubles: list[MooringError] = []
        changes = follow(client, "configmaps", "default", on_failure=troubles.append)
        async with aclosing(changes):
            assert names(await anext(changes)) == []
            await client.create("configmaps", config_map(one, label))
            while (found := names(await anext(changes))) == []:
                pass
            assert found == [one]
            restarting = asyncio.to_thread(live_server.process.wait)
            live_server.process.kill()
            waiting = asyncio.ensure_future(anext(changes))
            await restarting
            await asyncio.to_thread(live_server.restart)
            await client.create("configmaps", config_map(two, label))
            found = names(await waiting)
            while two not in found:
                found = names(await anext(changes))
            assert found in ([two], [one, two])
        for name in (one, two):
            await client.delete("configmaps", name, "default")

    live_server.run(run)


# ── peers that misbehave ─────────────────────────────────────────────────────────────────────────────────────────


def asking(
    answer: peer.Answer,
    work: Callable[[ClusterClient], Coroutine[Any, Any, Any]],
    user: KubeconfigUser | None = None,
    clock: Clock | None = None,
) -> list[peer.ReceivedRequest]:
    async def run(server: peer.Peer) -> None:
        cluster = Cluster("c", server.url, CA.certificate_pem)
        async with ClusterClient(cluster, user or KubeconfigUser("u"), clock or Hasty()) as client:
            await work(client)

    with peer.http_peer(answer, SERVING) as server:
        asyncio.run(run(server))
        return server.requests


def status(code: int, reason: str, **details: Any) -> peer.Reply:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": reason,
        "code": code,
    }
    return peer.Reply(code, json.dumps(body | ({"details": details} if details else {})).encode())


def test_nobody_there_is_a_sentence_that_says_which_server_and_what_to_do() -> None:
    async def run() -> None:
        url = f"https://127.0.0.1:{free_port()}"
        async with ClusterClient(Cluster("c", url), KubeconfigUser("u"), SystemClock()) as client:
            with pytest.raises(PeerError) as caught:
                await client.get("secrets", "x", "y")
            assert str(caught.value) == (
                f"asking {url}: nothing answers there (connection refused); "
                "check the address, the port, the firewall, and that the server runs"
            )

    asyncio.run(run())


def test_an_answer_that_is_not_of_an_api_server_is_told() -> None:
    async def work(client: ClusterClient) -> None:
        with pytest.raises(PeerError, match="status 502 without a Kubernetes Status"):
            await client.get("secrets", "x", "y")

    asking(lambda asked: peer.Reply(502, b"<html>bad gateway</html>"), work)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_balancer_whose_server_is_away_may_answer_otherwise_later(status: int) -> None:
    async def work(client: ClusterClient) -> None:
        with pytest.raises(
            BalancerAnswerError, match=f"status {status} without a Kubernetes Status.*; a load balancer or proxy"
        ):
            await client.get("secrets", "x", "y")

    asking(lambda asked: peer.Reply(status, b"<html>no server</html>"), work)


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        pytest.param(
            502, b"<title>502 Bad Gateway</title>", "without a Kubernetes Status: 502 Bad Gateway)", id="a page"
        ),
        pytest.param(404, b"default backend - 404", "without a Kubernetes Status: default backend - 404)", id="a text"),
        pytest.param(503, b"Bearer s3cret-t0ken", "without a Kubernetes Status)", id="the token that was sent"),
    ],
)
def test_the_text_of_an_answer_of_another_program_is_kept_in_one_line(status: int, body: bytes, text: str) -> None:
    async def run(server: peer.Peer) -> None:
        user = KubeconfigUser("u", token=Secret("s3cret-t0ken"))
        async with ClusterClient(Cluster("c", server.url, CA.certificate_pem), user, SystemClock()) as client:
            with pytest.raises(NotKubernetesError) as caught:
                await client.get("secrets", "x", "y")
            assert text in str(caught.value)
            with pytest.raises(NotKubernetesError) as caught:
                await anext(client.watch("secrets", resource_version="1"))
            assert text in str(caught.value)

    with peer.http_peer(lambda asked: peer.Reply(status, body), SERVING) as server:
        asyncio.run(run(server))


TOKEN = "s3cret-t0ken"


@pytest.mark.parametrize(
    "repeating",
    [
        pytest.param({"message": f"you sent Bearer {TOKEN}"}, id="message"),
        pytest.param({"message": "no", "details": {"causes": [None, {"message": TOKEN}]}}, id="cause"),
        pytest.param({"reason": TOKEN}, id="reason"),
    ],
)
@pytest.mark.parametrize("reason", ["Forbidden", "TooManyRequests", "ServiceUnavailable", "InternalError"])
def test_a_status_that_repeats_the_token_keeps_its_reason_alone(reason: str, repeating: dict[str, Any]) -> None:
    code = CODES[reason]
    body = json.dumps({"kind": "Status", "reason": reason, "code": code, **repeating}).encode()

    async def run(server: peer.Peer) -> None:
        user = KubeconfigUser("u", token=Secret(TOKEN))
        async with ClusterClient(Cluster("c", server.url, CA.certificate_pem), user, SystemClock()) as client:
            with pytest.raises(ApiError) as caught:
                await client.get("secrets", "x", "y")
        assert TOKEN not in f"{caught.value} {caught.value!r} {caught.value.details}"
        assert str(caught.value) == ("the server answered with code " + str(code) if "reason" in repeating else reason)

    with peer.http_peer(lambda asked: peer.Reply(code, body), SERVING) as server:
        asyncio.run(run(server))


def test_a_status_whose_user_has_the_short_password_as_its_name_is_kept() -> None:
    body = json.dumps({"kind": "Status", "reason": "Forbidden", "message": 'User "admin" cannot'}).encode()

    async def run(server: peer.Peer) -> None:
        user = KubeconfigUser("u", username="admin", password=Secret("admin"))
        async with ClusterClient(Cluster("c", server.url, CA.certificate_pem), user, SystemClock()) as client:
            with pytest.raises(ForbiddenError, match=r'^User "admin" cannot$'):
                await client.get("secrets", "x", "y")

    with peer.http_peer(lambda asked: peer.Reply(403, body), SERVING) as server:
        asyncio.run(run(server))


@pytest.mark.parametrize("details", [["x"], "x", 1, True])
def test_details_of_a_status_that_are_no_object_are_none(details: Any) -> None:
    body = json.dumps({"kind": "Status", "reason": "TooManyRequests", "message": "wait", "details": details}).encode()

    async def work(client: ClusterClient) -> None:
        with pytest.raises(TooManyRequestsError, match=r"^wait$") as caught:
            await client.get("secrets", "x", "y")
        assert caught.value.details.retry_after == 7

    asking(lambda asked: peer.Reply(429, body, {"Retry-After": "7"}), work)


@pytest.mark.parametrize(
    "more", [{}, {"code": None}, {"code": 0}, {"code": None, "reason": None, "details": None}], ids=str
)
def test_a_status_without_a_code_has_that_of_the_response(more: dict[str, Any]) -> None:
    body = json.dumps({"kind": "Status", "message": "gone", **more}).encode()

    async def work(client: ClusterClient) -> None:
        with pytest.raises(NotFoundError, match=r"^gone$"):
            await client.get("secrets", "x", "y")

    asking(lambda asked: peer.Reply(404, body), work)


OTHER_JSON: dict[str, bytes] = {
    "without metadata": b'{"kind":"SecretList","items":null}',
    "metadata that is a text": b'{"kind":"Secret","metadata":"x"}',
    "an empty object": b"{}",
}


@pytest.mark.parametrize("body", OTHER_JSON.values(), ids=OTHER_JSON)
def test_json_that_is_no_object_of_kubernetes_is_not_taken_for_one(body: bytes) -> None:
    async def work(client: ClusterClient) -> None:
        for refused in (
            client.get("configmaps", "x", "default"),
            client.create("configmaps", config_map("x")),
            client.update("configmaps", config_map("x")),
            client.patch("configmaps", "x", {}, "default"),
        ):
            with pytest.raises(NotKubernetesError, match="JSON, but not an object of Kubernetes"):
                await refused

    asking(lambda asked: peer.Reply(200, body), work)


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":5}',
        b'{"items":[5]}',
        b'{"items":[{}]}',
        b'{"items":[{"metadata":[]}]}',
        b'{"items":[{"metadata":{}}]}',
        b'{"items":[],"metadata":"x"}',
        b'{"items":[],"metadata":{"continue":5}}',
        b"{}",
    ],
)
def test_json_that_is_no_list_of_kubernetes_is_not_taken_for_one(body: bytes) -> None:
    async def work(client: ClusterClient) -> None:
        with pytest.raises(NotKubernetesError, match="JSON, but not a list of Kubernetes"):
            await client.list("configmaps")

    asking(lambda asked: peer.Reply(200, body), work)


@pytest.mark.parametrize("follows", [lambda count: "same", str], ids=["the same page for ever", "ever another page"])
def test_a_list_whose_pages_never_end_is_given_up(follows: Callable[[int], str]) -> None:
    pages = count()
    clock = Leaping()

    def answer(asked: peer.ReceivedRequest) -> peer.Reply:
        metadata = {"continue": follows(next(pages)), "resourceVersion": "5"}
        return peer.Reply(200, json.dumps({"kind": "List", "metadata": metadata, "items": []}).encode())

    async def work(client: ClusterClient) -> None:
        with pytest.raises(NotKubernetesError, match="pages of a list without an end"):
            await client.list("configmaps")

    asked = asking(answer, work, clock=clock)
    assert len(asked) <= LIST_SECONDS / clock.step + 2


def test_a_watch_event_without_an_object_is_refused() -> None:
    event = b'{"type":"ADDED","object":{"metadata":null}}\n'

    async def work(client: ClusterClient) -> None:
        with pytest.raises(NotKubernetesError, match="JSON, but not an object of Kubernetes"):
            await anext(client.watch("secrets", resource_version="1"))

    asking(lambda asked: peer.Reply(200, event), work)


def test_plain_http_is_refused() -> None:
    with pytest.raises(ConfigError, match="begins with a blank: remove it"):
        ClusterClient(Cluster("c", " https://127.0.0.1:1"), KubeconfigUser("u"), SystemClock())
    with pytest.raises(ConfigError, match="must be an https URL"):
        ClusterClient(Cluster("c", "http://127.0.0.1:8080"), KubeconfigUser("u"), SystemClock())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../x", "%2e"])
def test_a_name_that_would_lead_elsewhere_is_refused_before_anybody_is_asked(name: str) -> None:
    client = ClusterClient(Cluster("c", "https://127.0.0.1:1"), KubeconfigUser("u"), SystemClock())
    obj = config_map(name)
    for refused, who in [
        (client.get("configmaps", name, "default"), "none of the configmaps"),
        (client.delete("configmaps", name, "default"), "none of the configmaps"),
        (client.patch("configmaps", name, {}, "default"), "none of the configmaps"),
        (client.update("configmaps", obj), "none of the configmaps"),
        (
            client.create("serviceaccounts", {}, "default", name=name, subresource="token"),
            "none of the serviceaccounts",
        ),
        (client.get("configmaps", "a", name or "."), "no namespace"),
        (client.list("configmaps", name or "."), "no namespace"),
        (client.create("configmaps", {}, name or "."), "no namespace"),
    ]:
        with pytest.raises(ConfigError, match=f"^{who} can be called "):
            asyncio.run(refused)


def test_what_cannot_be_sent_is_not_repeated() -> None:
    with peer.http_peer(lambda asked: peer.Reply(200, b"{}"), SERVING) as server:
        cluster = Cluster("c", server.url, CA.certificate_pem)

        async def ask() -> None:
            async with ClusterClient(cluster, KubeconfigUser("u", impersonate="hunter2\n"), SystemClock()) as client:
                await client.get_path("/version")

        with pytest.raises(PeerError, match="a header has a character that none can have") as failed:
            asyncio.run(ask())
        assert "hunter2" not in str(failed.value)


def test_a_server_that_asks_for_patience_is_asked_again_a_few_times() -> None:
    clock = Hasty()

    async def work(client: ClusterClient) -> None:
        with pytest.raises(TooManyRequestsError):
            await client.get("secrets", "x", "y")

    asked = asking(lambda asked: status(429, "TooManyRequests", retryAfterSeconds=7), work, clock=clock)
    assert len(asked) == 5
    assert clock.slept == [7, 7, 7, 7]


@pytest.mark.parametrize("patient", range(6))
def test_a_refusal_after_requests_for_patience_is_the_error(tmp_path: Any, patient: int) -> None:
    """Also in the last of the tries, where a file that was read again would need one more."""
    token = tmp_path / "token"
    token.write_text("t")
    replies = iter([status(429, "TooManyRequests", retryAfterSeconds=1)] * patient)
    error = UnauthorizedError if patient < 5 else TooManyRequestsError

    async def work(client: ClusterClient) -> None:
        with pytest.raises(error):
            await client.get("secrets", "x", "y")

    user = KubeconfigUser("u", token=Secret("ignored"), token_file=str(token))
    asking(lambda asked: next(replies, status(401, "Unauthorized")), work, user)


def test_a_410_of_a_watch_is_expired() -> None:
    event = json.dumps(
        {"type": "ERROR", "object": {"kind": "Status", "reason": "Expired", "message": "too old", "code": 410}}
    )

    async def work(client: ClusterClient) -> None:
        with pytest.raises(ExpiredError, match=r"^too old$"):
            await anext(client.watch("secrets", resource_version="1"))

    asking(lambda asked: peer.Reply(200, event.encode() + b"\n"), work)


def test_following_lists_again_after_410_and_waits_between_tries() -> None:
    clock = Hasty()
    expired = (
        json.dumps({"type": "ERROR", "object": {"kind": "Status", "reason": "Expired", "code": 410}}).encode() + b"\n"
    )
    listed = json.dumps({"kind": "SecretList", "metadata": {"resourceVersion": "5"}, "items": []}).encode()

    async def work(client: ClusterClient) -> None:
        changes = follow(client, "secrets")
        async with aclosing(changes):
            assert isinstance(await anext(changes), ListResult)
            assert isinstance(await anext(changes), ListResult)
            assert isinstance(await anext(changes), ListResult)

    asking(lambda asked: peer.Reply(200, expired if "watch=true" in asked.path else listed), work, clock=clock)
    assert clock.slept == [0.8, 1.6]


def test_a_token_file_is_read_again_after_a_401(tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    def answer(asked: peer.ReceivedRequest) -> peer.Reply:
        if asked.headers["Authorization"] == "Bearer new":
            return peer.Reply(200, b'{"metadata":{"name":"x"}}')
        token.write_text("new\n")
        return status(401, "Unauthorized")

    async def work(client: ClusterClient) -> None:
        assert await client.get("secrets", "x", "y") == {"metadata": {"name": "x"}}

    asked = asking(answer, work, KubeconfigUser("u", token=Secret("ignored"), token_file=str(token)))
    assert [one.headers["Authorization"] for one in asked] == ["Bearer old", "Bearer new"]


# ── several addresses ────────────────────────────────────────────────────────────────────────────────────────────


def of_one_cluster(*servers: str, ca: bytes = CA.certificate_pem, read_seconds: float = TIMEOUT) -> ClusterClient:
    first, *others = (Cluster("", server, ca) for server in servers)
    return ClusterClient(first, KubeconfigUser("u"), SystemClock(), others=others, failover_read_timeout=read_seconds)


def made(asked: peer.ReceivedRequest) -> peer.Reply:
    return peer.Reply(
        200, json.dumps({"kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}}).encode()
    )


def page(asked: peer.ReceivedRequest) -> peer.Reply:
    return peer.Reply(502, b"<html>bad gateway</html>")


def test_a_request_goes_to_the_next_address_when_one_does_not_answer_and_stays_there() -> None:
    nobody = f"https://127.0.0.1:{free_port()}"

    async def run(server: peer.Peer) -> None:
        async with of_one_cluster(nobody, server.url) as client:
            await client.create("configmaps", config_map("x"))
            await client.get("configmaps", "x", "default")
            assert [one.server for one in client.clusters] == [server.url, nobody]

    with peer.http_peer(made, SERVING) as server:
        asyncio.run(run(server))
        assert [asked.method for asked in server.requests] == ["POST", "GET"]


@pytest.mark.parametrize(
    "beginning", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"], ids=["before the answer", "in the body"]
)
def test_a_server_that_never_ends_its_answer_is_left_for_the_next(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait is short enough: only a limit for the whole ends it."""
    monkeypatch.setattr("mooring.client.cluster.BODY_SECONDS", 0.5)
    monkeypatch.setattr("mooring.client.cluster.FAILOVER_TIMEOUT", 0.2)
    drop = b"x" if beginning else b"HTTP/1.1 103 Early Hints\r\n\r\n"

    release = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(beginning)
        while not release.wait(0.02):
            connection.sendall(drop)

    async def run(dripping: peer.Peer, server: peer.Peer) -> None:
        async with of_one_cluster(dripping.url, server.url) as client:
            found = await client.get("configmaps", "x", "default")
            assert found["metadata"]["name"] == "x"
            assert client.server == server.url

    with peer.byte_peer(drip, SERVING) as dripping, peer.http_peer(made, SERVING) as server:
        try:
            asyncio.run(run(dripping, server))
        finally:
            release.set()


def test_a_body_that_drips_is_as_good_as_silence() -> None:
    """An agent with a Lease of 40 s has another server to ask."""
    release = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not release.wait(0.02):
            connection.sendall(b"x")

    async def run(dripping: peer.Peer, server: peer.Peer) -> None:
        async with of_one_cluster(dripping.url, server.url, read_seconds=0.3) as client:
            assert (await client.get("configmaps", "x", "default"))["metadata"]["name"] == "x"
            assert client.server == server.url

    with peer.byte_peer(drip, SERVING) as dripping, peer.http_peer(made, SERVING) as server:
        try:
            asyncio.run(run(dripping, server))
        finally:
            release.set()


def test_an_answer_above_the_limit_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.client.cluster.MAX_BODY", 20)

    async def run(server: peer.Peer) -> None:
        async with of_one_cluster(server.url) as client:
            with pytest.raises(
                AnswerTooLongError, match=r"longer than 20 bytes.*ask for less with a selector"
            ) as caught:
                await client.get("configmaps", "x", "default")
            assert not is_transient(caught.value)

    with peer.http_peer(made, SERVING) as server:
        asyncio.run(run(server))


def test_a_server_whose_machine_lost_its_power_is_left_after_the_read_timeout() -> None:
    def read_only(connection: socket.socket) -> None:
        while connection.recv(4096):
            continue

    async def run(silent: peer.Peer, server: peer.Peer) -> None:
        addresses = [Cluster("", one.url, CA.certificate_pem) for one in (silent, server)]
        for is_read in (True, False):
            first, other = addresses
            async with ClusterClient(
                first, KubeconfigUser("u"), SystemClock(), others=[other], failover_read_timeout=0.5
            ) as client:
                if is_read:
                    await client.get("configmaps", "x", "default")
                else:  # it may have been stored
                    with pytest.raises(PeerError, match=r"no answer within 0\.5 s"):
                        await client.create("configmaps", config_map("x"))
                assert client.server == server.url

    with peer.byte_peer(read_only, SERVING) as silent, peer.http_peer(made, SERVING) as server:
        asyncio.run(run(silent, server))
        assert [asked.method for asked in server.requests] == ["GET"]


def test_a_server_of_another_ca_is_passed_over_and_gets_no_credential() -> None:
    async def run(stranger: peer.Peer, server: peer.Peer) -> None:
        async with of_one_cluster(stranger.url, server.url) as client:
            await client.create("configmaps", config_map("x"))

    with (
        peer.http_peer(made, ThrowawayCA("stranger").server(*LOOPBACK)) as stranger,
        peer.http_peer(made, SERVING) as server,
    ):
        asyncio.run(run(stranger, server))
        assert stranger.requests == []


@pytest.mark.parametrize(
    ("method", "asked"), [("GET", [1, 1]), ("POST", [1, 0])], ids=["a read is asked elsewhere", "a write is not"]
)
def test_a_balancer_without_servers_behind_it(method: str, asked: list[int]) -> None:
    async def run(balancer: peer.Peer, server: peer.Peer) -> None:
        async with of_one_cluster(balancer.url, server.url) as client:
            if method == "GET":
                await client.get("configmaps", "x", "default")
            else:  # it may have been passed on before the balancer gave up
                with pytest.raises(PeerError, match="status 502"):
                    await client.create("configmaps", config_map("x"))
            assert client.server == server.url

    with peer.http_peer(page, SERVING) as balancer, peer.http_peer(made, SERVING) as server:
        asyncio.run(run(balancer, server))
        assert [len(balancer.requests), len(server.requests)] == asked


def test_what_may_pass_by_waiting_is_told_before_what_does_not() -> None:
    async def run(stranger: peer.Peer) -> None:
        nobody = f"https://127.0.0.1:{free_port()}"
        for servers in ((nobody, stranger.url), (stranger.url, nobody)):
            async with of_one_cluster(*servers) as client:
                with pytest.raises(PeerError, match="nothing answers there"):
                    await client.get("configmaps", "x", "default")

    with peer.http_peer(made, ThrowawayCA("stranger").server(*LOOPBACK)) as stranger:
        asyncio.run(run(stranger))


def test_a_refusal_is_an_answer_and_no_reason_to_ask_elsewhere() -> None:
    def refused(asked: peer.ReceivedRequest) -> peer.Reply:
        return peer.Reply(403, json.dumps({"kind": "Status", "reason": "Forbidden", "code": 403}).encode())

    async def run(first: peer.Peer, second: peer.Peer) -> None:
        async with of_one_cluster(first.url, second.url) as client:
            with pytest.raises(ForbiddenError):
                await client.get("configmaps", "x", "default")

    with peer.http_peer(refused, SERVING) as first, peer.http_peer(made, SERVING) as second:
        asyncio.run(run(first, second))
        assert second.requests == []


def test_requests_that_fail_together_do_not_pass_over_an_address_that_answers() -> None:
    nobody, nowhere = (f"https://127.0.0.1:{free_port()}" for _ in range(2))

    async def run(server: peer.Peer) -> None:
        async with of_one_cluster(nobody, server.url, nowhere) as client:
            found = await asyncio.gather(*(client.get("configmaps", "x", "default") for _ in range(8)))
            assert len(found) == 8

    with peer.http_peer(made, SERVING) as server:
        asyncio.run(run(server))


def test_other_addresses_are_used_from_the_next_request_on() -> None:
    async def run(old: peer.Peer, new: peer.Peer) -> None:
        async with of_one_cluster(old.url) as client:
            await client.get("configmaps", "x", "default")
            kept = Cluster("", old.url, CA.certificate_pem)
            await client.use([Cluster("", new.url, CA.certificate_pem), kept])
            assert client.server == old.url, "the one in use stays while it is among them"
            await client.use([Cluster("", new.url, CA.certificate_pem), replace(kept, tls_server_name="localhost")])
            assert client.server == new.url, "another way to the same address is another one"
            await client.use([kept])
            await client.use([Cluster("", new.url, CA.certificate_pem)])
            await client.get("configmaps", "x", "default")

    with peer.http_peer(made, SERVING) as old, peer.http_peer(made, SERVING) as new:
        asyncio.run(run(old, new))
        assert (len(old.requests), len(new.requests)) == (1, 1)
