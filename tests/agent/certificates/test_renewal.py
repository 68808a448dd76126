"""RequestedRenewal of a certificate, on a manual clock with a signer in memory."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509

from mooring.agent.certificaterequest import CertificateTemplate, serving_template
from mooring.agent.pairfiles import CLIENT, KEPT_FILES, Pair, PairFiles
from mooring.agent.renewal import ClientCertificateExpiredError, RequestedRenewal
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import MODIFIED, WatchEvent
from mooring.client.cluster import ClusterClient, ListResult
from mooring.clock import rfc3339
from mooring.errors import PeerError
from mooring.pki.keys import public_key_der, signature_hash
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.requests import parse_request
from tests.support.manualclock import ManualClock, settle
from tests.support.testca import ThrowawayCA, read

HOUR = timedelta(hours=1)
SIGN, WAIT, DENY, FAIL = "sign", "wait", "deny", "fail"


class Cluster:
    """Cluster whose requests are decided as `decision` says. `away` makes it answer nothing."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ca = ThrowawayCA(now=clock.now())
        self.requests: list[Obj] = []
        self.decision = SIGN
        self.away = False
        self.lifetime = 10 * HOUR
        self.skew = timedelta()
        self.renewed = 0
        self.events: asyncio.Queue[WatchEvent] = asyncio.Queue()

    async def create(self, plural: str, obj: Obj) -> Obj:
        if self.away:
            raise PeerError("asking https://api.test: nothing answers there")
        name = f"csr-{len(self.requests)}"
        created = rfc3339(self.clock.now() + self.skew)
        metadata = {"name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": created}
        self.requests.append({**obj, "metadata": {**obj["metadata"], **metadata}, "status": {}})
        self.decide(self.decision)
        return self.requests[-1]

    def decide(self, decision: str, *, deliver: bool = False) -> None:
        """Decide the newest request."""
        obj = self.requests[-1]
        if decision == SIGN:
            begin = self.clock.now() + self.skew - timedelta(minutes=5)
            certificate = _certify(self.ca, obj, begin, begin + self.lifetime)
            obj["status"] = {
                "conditions": [{"type": "Approved"}],
                "certificate": base64.b64encode(certificate).decode(),
            }
        elif decision in (DENY, FAIL):
            kind = "Denied" if decision == DENY else "Failed"
            obj["status"] = {"conditions": [{"type": kind, "reason": "Tested", "message": "by a test"}]}
        if deliver:
            self.events.put_nowait(WatchEvent(MODIFIED, obj))

    async def list(self, target: str, namespace: str, *, field_selector: str, **rest: Any) -> ListResult:
        name = field_selector.removeprefix("metadata.name=")
        return ListResult(tuple(one for one in self.requests if one["metadata"]["name"] == name), "1")

    async def watch(self, target: str, namespace: str, **rest: Any) -> AsyncGenerator[WatchEvent]:
        while True:
            yield await self.events.get()


def _certify(ca: ThrowawayCA, obj: Obj, begin: datetime, end: datetime) -> bytes:
    parsed = parse_request(base64.b64decode(obj["spec"]["request"]))
    builder = (
        x509.CertificateBuilder().subject_name(parsed.subject.for_builder()).issuer_name(ca.certificate.subject.for_builder())
        .public_key(parsed.public_key).serial_number(x509.random_serial_number())
        .not_valid_before(begin).not_valid_after(end)
    )  # fmt: skip
    if parsed.alternative_names:
        builder = builder.add_extension(parsed.alternative_names.extension(), critical=False)
    return bundles.certificates_pem([read(builder.sign(ca.key, signature_hash(ca.key)))])


class Room:
    """One renewal under test, with its files."""

    def __init__(self, directory: Path, template: CertificateTemplate | None, draw: float, **more: Any) -> None:
        self.clock = ManualClock()
        self.cluster = Cluster(self.clock)
        self.files = PairFiles(directory, CLIENT)
        self.seconds = 0
        self.elsewhere = False
        """Whether another cluster answers at the address."""

        async def before() -> None:
            if self.elsewhere:
                raise PeerError("another cluster answers there")

        async def on_renewed() -> None:
            self.cluster.renewed += 1

        self.renewal = RequestedRenewal(
            "client", self.files, cast(ClusterClient, self.cluster), template,
            expiration_seconds=lambda: self.seconds, before=before, on_renewed=on_renewed, draw=lambda: draw, **more,
        )  # fmt: skip

    def place(self, begin: timedelta, end: timedelta, user: str = "system:node:m1") -> Pair:
        """Place a certificate that is valid from and until then, counted from now."""
        now = self.clock.now()
        made = self.cluster.ca.custom(
            names.subject(user, ["system:nodes"]), not_before=now + begin, not_after=now + end
        )
        pair = Pair((made.certificate,), made.key)
        self.files.write_pair(pair, now)
        return pair

    @property
    def current(self) -> Pair:
        pair = self.files.read_pair()
        assert pair is not None
        return pair


Scenario = Callable[[Room], Awaitable[None]]
CLIENT_TEMPLATE = CertificateTemplate("m1")


def renewing(
    directory: Path,
    scenario: Scenario,
    template: CertificateTemplate | None = CLIENT_TEMPLATE,
    draw: float = 0.5,
    prepare: Callable[[Room], object] = lambda room: None,
    **more: Any,
) -> None:
    async def run() -> None:
        room = Room(directory, template, draw, **more)
        prepare(room)
        task = asyncio.create_task(room.renewal.run())
        await settle()
        try:
            await scenario(room)
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended

    asyncio.run(run())


BACKDATED = timedelta(minutes=-5)


def valid(room: Room) -> Pair:
    return room.place(BACKDATED, 10 * HOUR)


def test_a_certificate_is_renewed_at_its_time_with_a_new_key_under_a_name_of_the_server(tmp_path: Path) -> None:
    async def scenario(room: Room) -> None:
        old = room.current
        await room.clock.advance(8 * 3600 - 1)
        assert not room.cluster.requests
        await room.clock.advance(2)
        (request,) = room.cluster.requests
        assert request["metadata"]["generateName"] == "csr-"
        assert request["spec"]["usages"] == ["digital signature", "client auth"]
        assert "expirationSeconds" not in request["spec"]
        assert public_key_der(room.current.key) != public_key_der(old.key)
        assert room.cluster.renewed == 1
        await room.clock.advance(3600)
        assert len(room.cluster.requests) == 1

    renewing(tmp_path, scenario, prepare=valid)


def test_a_rollover_of_the_ca_asks_for_an_earlier_renewal_once_for_each_certificate(tmp_path: Path) -> None:
    async def scenario(room: Room) -> None:
        for _ in range(2):
            room.renewal.renew_early()
            await room.clock.advance(89)
        assert not room.cluster.requests, "half of 1 % of ten hours, drawn once"
        room.renewal.renew_early()
        await room.clock.advance(3)
        assert len(room.cluster.requests) == 1
        await room.clock.advance(3600)
        assert len(room.cluster.requests) == 1, "the new certificate has its own time"
        room.renewal.renew_early()
        await room.clock.advance(181)
        assert len(room.cluster.requests) == 2

    renewing(tmp_path, scenario, prepare=lambda room: room.place(timedelta(0), 10 * HOUR))


async def request_times(room: Room) -> list[int]:
    """Return the seconds at which the machine sent requests, of the next hundred."""
    times: list[int] = []
    for second in range(100):
        times += [second] * (len(room.cluster.requests) - len(times))
        await room.clock.advance(1)
    return times


def test_a_certificate_of_thirty_seconds_is_renewed_each_twenty_four(tmp_path: Path) -> None:
    def prepare(room: Room) -> None:
        room.cluster.lifetime = timedelta(minutes=5, seconds=30)
        room.place(BACKDATED, timedelta(seconds=30))

    async def scenario(room: Room) -> None:
        times = await request_times(room)
        assert times[0] == pytest.approx(24, abs=1)
        assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([24] * 3, abs=1)

    renewing(tmp_path, scenario, prepare=prepare)


@pytest.mark.parametrize(
    ("lifetime", "is_satisfying"),
    [
        pytest.param(timedelta(minutes=5, seconds=1), True, id="it ends a second after its issue"),
        pytest.param(10 * HOUR, False, id="it never satisfies the template"),
    ],
)
def test_new_certificates_that_are_due_at_once_are_replaced_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lifetime: timedelta, is_satisfying: bool
) -> None:
    def prepare(room: Room) -> None:
        room.cluster.lifetime = lifetime
        if not is_satisfying:
            monkeypatch.setattr(RequestedRenewal, "satisfies", lambda renewal, pair: False)

    async def scenario(room: Room) -> None:
        times = await request_times(room)
        assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([2, 4, 8, 17, 32, 32], abs=1)
        room.cluster.lifetime = 10 * HOUR
        monkeypatch.undo()
        await room.clock.advance(600)
        assert len(room.cluster.requests) == len(times) + is_satisfying, "a certificate that lasts ends the pauses"

    renewing(tmp_path, scenario, prepare=prepare)


def test_a_missing_certificate_cannot_be_renewed_early(tmp_path: Path) -> None:
    async def scenario(room: Room) -> None:
        room.renewal.renew_early()
        await room.clock.advance(1)
        assert not room.cluster.requests

    renewing(tmp_path, scenario, template=None)


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda room: None, id="it is missing"),
        pytest.param(lambda room: room.place(-2 * HOUR, -HOUR), id="it has expired"),
        pytest.param(lambda room: room.place(-9 * HOUR, HOUR), id="its time has come"),
        pytest.param(lambda room: room.place(-HOUR, 9 * HOUR, "system:node:other"), id="it has another name"),
    ],
)
def test_a_certificate_is_requested_at_once_when(tmp_path: Path, prepare: Callable[[Room], object]) -> None:
    async def scenario(room: Room) -> None:
        assert len(room.cluster.requests) == 1
        assert room.current.valid_at(room.clock.now())

    renewing(tmp_path, scenario, prepare=prepare)


def test_the_lifetime_that_was_chosen_is_repeated(tmp_path: Path) -> None:
    def prepare(room: Room) -> None:
        room.seconds = 86_400

    async def scenario(room: Room) -> None:
        assert room.cluster.requests[0]["spec"]["expirationSeconds"] == 86_400

    renewing(tmp_path, scenario, prepare=prepare)


def test_failed_attempts_are_repeated_with_kubelets_pauses_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[float] = []

    async def refuse(pair: Pair) -> None:
        raise PeerError("not this one")

    def prepare(room: Room) -> None:
        original = room.cluster.create

        async def create(plural: str, obj: Obj) -> Obj:
            tried.append(room.clock.monotonic())
            return await original(plural, obj)

        room.cluster.create = create  # type: ignore[method-assign] # counts the attempts

    async def scenario(room: Room) -> None:
        for _ in range(130):
            await settle(60)
            await room.clock.advance(1)
        assert [round(b - a, 3) for a, b in pairwise(tried)] == [2, 4, 8, 16, 32, 32, 32][: len(tried) - 1]
        assert len(tried) >= 7
        keys = {one["spec"]["request"] for one in room.cluster.requests}
        assert len(keys) == len(tried)
        assert caplog.messages == ["the client certificate could not be renewed, trying again: not this one"]
        assert room.files.read_pair() is None

    renewing(tmp_path, scenario, draw=0.0, prepare=prepare, check=refuse)


def test_nothing_is_requested_while_another_cluster_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def prepare(room: Room) -> None:
        room.elsewhere = True

    async def scenario(room: Room) -> None:
        await room.clock.advance(60)
        assert room.cluster.requests == []
        told = "the client certificate could not be renewed, trying again: another cluster answers there"
        assert caplog.messages == [told]
        room.elsewhere = False
        await room.clock.advance(60)
        assert len(room.cluster.requests) == 1

    renewing(tmp_path, scenario, prepare=prepare)


@pytest.mark.parametrize(
    ("decision", "message"),
    [(DENY, "csr-0 was denied (Tested: by a test)"), (FAIL, "csr-0 could not be signed (Tested: by a test)")],
)
def test_a_decision_against_the_request_ends_its_wait_and_another_follows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, decision: str, message: str
) -> None:
    def prepare(room: Room) -> None:
        room.cluster.decision = decision

    async def scenario(room: Room) -> None:
        assert message in caplog.text
        room.cluster.decision = SIGN
        await room.clock.advance(2.5)
        assert len(room.cluster.requests) == 2
        assert room.files.read_pair() is not None

    renewing(tmp_path, scenario, prepare=prepare)


def denied(reason: str) -> Obj:
    return {"conditions": [{"type": "Denied", "reason": reason, "message": "by a test"}]}


async def pass_time(room: Room, seconds: int, step: int = 10) -> None:
    """Let time pass in steps, in each of which a request is sent and answered."""
    for _ in range(0, seconds, step):
        await settle(60)
        await room.clock.advance(step)


def test_after_denials_the_pauses_double_up_to_an_hour_and_each_reason_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[float] = []

    def prepare(room: Room) -> None:
        room.cluster.decision = DENY
        original = room.cluster.create

        async def create(plural: str, obj: Obj) -> Obj:
            tried.append(room.clock.monotonic())
            return await original(plural, obj)

        room.cluster.create = create  # type: ignore[method-assign] # counts the attempts

    async def scenario(room: Room) -> None:
        await pass_time(room, 130, 1)
        await pass_time(room, 7800)
        pauses = [later - earlier for earlier, later in pairwise(tried)]
        assert pauses[:5] == pytest.approx([2, 4, 8, 16, 32], abs=1)
        assert pauses[5:] == pytest.approx([64, 128, 256, 512, 1024, 2048, 3600], abs=10)
        assert [one.partition(": ")[2] for one in caplog.messages] == [
            "the request csr-0 was denied (Tested: by a test)"
        ]
        original = room.cluster.decide

        def decide(decision: str, *, deliver: bool = False) -> None:
            original(decision, deliver=deliver)
            room.cluster.requests[-1]["status"] = denied("Another")

        room.cluster.decide = decide  # type: ignore[method-assign] # another reason
        await pass_time(room, 3610)
        assert len(caplog.messages) == 2
        assert "was denied (Another: by a test)" in caplog.messages[1]
        room.cluster.decide, room.cluster.decision = original, SIGN  # type: ignore[method-assign] # the former one
        await pass_time(room, 3610)
        assert room.current.valid_at(room.clock.now()), "an approval ends the wait at the next request"

    renewing(tmp_path, scenario, draw=0.0, prepare=prepare)


def test_a_certificate_that_another_program_places_ends_the_wait_after_a_denial(tmp_path: Path) -> None:
    def prepare(room: Room) -> None:
        room.cluster.decision = DENY

    async def scenario(room: Room) -> None:
        await pass_time(room, 600)
        sent = len(room.cluster.requests)
        valid(room)
        await pass_time(room, 30)
        assert room.cluster.renewed == 1
        await pass_time(room, 3600)
        assert len(room.cluster.requests) == sent

    renewing(tmp_path, scenario, prepare=prepare)


def test_a_client_certificate_that_expires_after_a_denial_ends_the_renewals(tmp_path: Path) -> None:
    async def run() -> None:
        room = Room(tmp_path, CLIENT_TEMPLATE, 0.0, needs_own_certificate=True)
        room.place(-9 * HOUR, HOUR)
        room.cluster.decision = DENY
        task = asyncio.create_task(room.renewal.run())
        await pass_time(room, 3620)
        assert task.done(), "noticed within ten seconds, and not after the pause of 34 minutes"
        with pytest.raises(ClientCertificateExpiredError):
            await task

    asyncio.run(run())


def test_a_request_that_nobody_decides_is_left_after_15_minutes_for_one_with_another_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mooring.agent")

    def prepare(room: Room) -> None:
        room.cluster.decision = WAIT

    async def scenario(room: Room) -> None:
        await room.clock.advance(899)
        assert len(room.cluster.requests) == 1
        assert "approve it with `mooring csr approve csr-0`" in caplog.text
        await room.clock.advance(5)
        assert len(room.cluster.requests) == 2
        assert "the request csr-0 was not approved within 900 s" in caplog.text
        room.cluster.decide(SIGN, deliver=True)
        await settle()
        assert room.cluster.renewed == 1

    renewing(tmp_path, scenario, prepare=prepare)


def test_addresses_that_change_end_the_wait_and_another_certificate_is_requested(tmp_path: Path) -> None:
    first = serving_template("m1", [{"type": "InternalIP", "address": "192.0.2.7"}])
    second = serving_template("m1", [{"type": "InternalIP", "address": "192.0.2.8"}])

    def prepare(room: Room) -> None:
        room.cluster.decision = WAIT

    async def scenario(room: Room) -> None:
        assert len(room.cluster.requests) == 1
        room.cluster.decision = SIGN
        room.renewal.use_template(second)
        await settle(100)
        assert len(room.cluster.requests) == 2
        found = names.alternative_names(room.current.leaf.extensions)
        assert [str(one) for one in found.ips] == ["192.0.2.8"]
        room.renewal.use_template(first)
        await settle(100)
        assert len(room.cluster.requests) == 3
        room.renewal.use_template(None)
        await room.clock.advance(20 * 3600)
        assert len(room.cluster.requests) == 3

    renewing(tmp_path, scenario, template=first, prepare=prepare)


def test_a_certificate_that_another_program_places_is_used(tmp_path: Path) -> None:
    async def scenario(room: Room) -> None:
        await room.clock.advance(60)
        valid(room)
        await room.clock.advance(60)
        assert (room.cluster.renewed, room.cluster.requests) == (1, [])

    renewing(tmp_path, scenario, prepare=valid)


def test_a_client_certificate_that_expired_ends_the_renewals(tmp_path: Path) -> None:
    async def run() -> None:
        room = Room(tmp_path, CLIENT_TEMPLATE, 0.5, needs_own_certificate=True)
        room.place(-2 * HOUR, -HOUR)
        with pytest.raises(
            ClientCertificateExpiredError, match="the client certificate expired at 2026-01-02T02:04:05Z"
        ):
            await room.renewal.run()
        assert not room.cluster.requests

    asyncio.run(run())


@pytest.mark.parametrize(
    ("skew", "message"),
    [
        pytest.param(timedelta(seconds=400), "this machine's clock is 400 s behind the server's", id="behind"),
        pytest.param(timedelta(hours=-11), "this machine's clock is 39600 s ahead of the server's", id="ahead"),
    ],
)
def test_a_clock_that_differs_is_told_in_seconds_with_its_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, skew: timedelta, message: str
) -> None:
    def prepare(room: Room) -> None:
        room.cluster.skew = skew

    async def scenario(room: Room) -> None:
        assert f"{message}: set the clocks by NTP" in caplog.text
        assert "but this machine's clock says" in caplog.text

    renewing(tmp_path, scenario, prepare=prepare)


def test_a_few_old_files_are_kept(tmp_path: Path) -> None:
    async def scenario(room: Room) -> None:
        room.cluster.lifetime = HOUR
        for _ in range(3 * KEPT_FILES):
            await room.clock.advance(3600)
        files = sorted(tmp_path.glob("kubelet-client-2*.pem"))
        assert len(files) == KEPT_FILES
        assert room.files.target() == files[-1]

    renewing(tmp_path, scenario)


def test_files_of_other_programs_and_the_current_one_are_never_removed(tmp_path: Path) -> None:
    files, now = PairFiles(tmp_path, CLIENT), ManualClock().now()
    made = ThrowawayCA().node("m1")
    pair = Pair((made.certificate,), made.key)
    for day in range(1, 9):
        files.write_pair(pair, now.replace(day=day))
    oldest = files.write_pair(pair, now.replace(year=2020))
    (tmp_path / "kubelet-client-of-mine.pem").write_text("")
    (tmp_path / "kubelet-server-2020-01-01-00-00-00.pem").write_text("")
    files.prune()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [
        oldest.name, "kubelet-client-2026-01-07-03-04-05.pem", "kubelet-client-2026-01-08-03-04-05.pem",
        "kubelet-client-current.pem", "kubelet-client-of-mine.pem", "kubelet-server-2020-01-01-00-00-00.pem",
    ]  # fmt: skip
