"""`mooring kubeconfig user` when the certificate is not granted, and the signing of a first token during conflicts."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.cli import kubeconfig
from mooring.cli.server.init import FirstTokenFlags
from mooring.controlplane.publishing import firstboot
from mooring.errors import ConflictError, PeerError
from mooring.trust.bootstraptoken.token import TokenError, parse_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class QuickClock:
    """Clock whose time passes only by sleeping."""

    def __init__(self) -> None:
        self.slept = 0.0

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds


class Signer:
    """Cluster that sets `status` on an approved request after `looks` reads."""

    def __init__(self, status: Obj, looks: int = 0) -> None:
        self.status, self.looks = status, looks
        self.obj: Obj = {}

    async def create(self, plural: str, obj: Obj) -> Obj:
        self.obj = obj
        return obj

    async def update(self, plural: str, obj: Obj, *, subresource: str, dry_run: bool) -> Obj:
        self.obj = obj
        return obj

    async def get(self, plural: str, name: str) -> Obj:
        conditions = self.obj.get("status", {}).get("conditions", [])
        if not conditions or self.looks > 0:
            self.looks -= bool(conditions)
            return self.obj
        return self.obj | {"status": {"conditions": conditions} | self.status}


def issued(signer: Signer, clock: QuickClock) -> bytes:
    wanted = kubeconfig.build_signing_request("jane", b"request", timedelta(hours=1))
    limit = timedelta(seconds=10)
    return asyncio.run(kubeconfig.request_certificate(signer, wanted, clock, limit))  # type: ignore[arg-type] # the verbs it uses


def test_the_certificate_is_awaited() -> None:
    clock = QuickClock()
    assert issued(Signer({"certificate": base64.b64encode(b"PEM").decode()}, looks=3), clock) == b"PEM"
    assert clock.slept == pytest.approx(0.6)


def test_a_signer_that_refuses_is_quoted() -> None:
    failed = {
        "conditions": [{"type": "Failed", "reason": "SignerValidationFailure", "message": "usages did not match"}]
    }
    with pytest.raises(PeerError, match=r"was not granted: Failed \(SignerValidationFailure: usages did not match\)$"):
        issued(Signer(failed), QuickClock())


def test_a_signer_that_does_not_answer_is_told() -> None:
    clock = QuickClock()
    with pytest.raises(
        PeerError, match=r"no certificate was issued within 10s; see whether the cluster's controllers run"
    ):
        issued(Signer({}), clock)
    assert 10 <= clock.slept < 11


@pytest.mark.parametrize(
    ("name", "readable"),
    [("jane", "jane"), ("Jane Doe@example.com", "jane-doe-example-com"), ("名前", "user"), ("x" * 99, "x" * 40)],
)
def test_a_request_is_named_after_its_user(name: str, readable: str) -> None:
    made: str = kubeconfig.build_signing_request(name, b"", None)["metadata"]["name"]
    assert made.rpartition("-")[0] == f"mooring-user-{readable}"


# ── first token ──────────────────────────────────────────────────────────────────────────────────────────────────

TOKEN = parse_token("first1.0123456789abcdef")


class Registry:
    """Registry with cluster-info and one token, where `conflicts` writes conflict."""

    def __init__(self, conflicts: int) -> None:
        self.conflicts = conflicts
        self.config_map: Obj = {"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "text"}}
        self.secret = to_secret(new_record(TOKEN, NOW))
        self.writes = 0
        self.reader = self.writer = self

    async def get(self, kind: Any, namespace: str, name: str) -> Any:
        return SimpleNamespace(obj=self.config_map)

    async def list(self, kind: Any, namespace: str, options: Any) -> Any:
        return SimpleNamespace(items=[SimpleNamespace(obj=self.secret)])

    async def update(self, kind: Any, namespace: str, name: str, obj: Obj, change: Any, options: Any) -> None:
        self.writes += 1
        if self.writes <= self.conflicts:
            raise ConflictError("somebody was faster")
        self.config_map = obj


@pytest.mark.parametrize("conflicts", [0, 3])
def test_cluster_info_is_signed_whoever_else_writes(conflicts: int) -> None:
    registry = Registry(conflicts)
    asyncio.run(firstboot.sign_cluster_info(registry, QuickClock()))  # type: ignore[arg-type] # the three calls it uses
    assert "jws-kubeconfig-first1" in registry.config_map["data"]
    asyncio.run(firstboot.sign_cluster_info(registry, QuickClock()))  # type: ignore[arg-type] # the three calls it uses
    assert registry.writes == conflicts + 1


def test_signing_is_left_to_the_signer_that_is_always_faster() -> None:
    registry = Registry(1000)
    asyncio.run(firstboot.sign_cluster_info(registry, QuickClock()))  # type: ignore[arg-type] # the three calls it uses
    assert registry.writes == firstboot.MAX_ATTEMPTS


def flags(text: str | None, hours: int = 24) -> FirstTokenFlags:
    return FirstTokenFlags(text=text, ttl=timedelta(hours=hours), withheld=False)


@pytest.mark.parametrize(
    ("text", "first", "made"),
    [(None, True, True), (None, False, False), ("", True, False), ("", False, False), (TOKEN.reveal(), False, True)],
    ids=["first start", "later start", "none wanted", "none wanted later", "one wanted later"],
)
def test_when_a_token_is_made(text: str | None, first: bool, made: bool) -> None:
    chosen = flags(text).token(first)
    assert (chosen is not None) is made
    if text:
        assert chosen == TOKEN


@pytest.mark.parametrize(("text", "hours"), [("bad", 1), (None, -1), ("", -1)])
def test_a_wish_that_cannot_be_met_is_refused_before_anything_is_made(text: str | None, hours: int) -> None:
    with pytest.raises(TokenError):
        flags(text, hours).check(QuickClock())
