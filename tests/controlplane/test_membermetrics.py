"""Metrics of the subject: what is counted of requests, and the gauges of members, tokens and revocations."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import timedelta

import pytest
from prometheus_client import generate_latest

from mooring.api.view import FixedView, View
from mooring.apimachinery.schema import Obj
from mooring.controlplane import membermetrics
from mooring.controlplane.membermetrics import MemberMetrics
from mooring.server.metrics import Metrics
from tests.support.manualclock import ManualClock
from tests.support.plans import HOUR, NOW, moment, thing, token_secret, views

KUBELET = "kubernetes.io/kube-apiserver-client-kubelet"
K3S_KUBELET = "mooring.io/k3s-kubelet-client"
NEW, BEFORE = moment(HOUR), moment(-HOUR)


def csr(
    name: str = "a",
    *conditions: tuple[str, str],
    username: str = "system:bootstrap:abcdef",
    signer: str = KUBELET,
    issued: bool = False,
    created: str = NEW,
    extra: Obj | None = None,
) -> Obj:
    status: Obj = {"conditions": [{"type": kind, "reason": reason} for kind, reason in conditions]}
    spec = {"signerName": signer, "username": username, "extra": extra or {}, "request": ""}
    if issued:
        status["certificate"] = base64.b64encode(b"x").decode()
    return thing(name, spec=spec, status=status, metadata={"creationTimestamp": created})


class Scraped:
    """Metrics over views that a test replaces."""

    def __init__(self, leads: Callable[[], bool] = lambda: True) -> None:
        self.clock = ManualClock(NOW)
        self.views: dict[str, View] = dict(views())
        self.metrics = Metrics()
        MemberMetrics(self.views, self.clock, leads).add_to(self.metrics)

    def put(self, plural: str, *objects: Obj) -> None:
        self.views[plural] = FixedView(objects)

    def samples(self, name: str) -> dict[str, float]:
        """Return the values of one metric that are not 0, by the text of their labels."""
        text = generate_latest(self.metrics.registry).decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return {labels.removeprefix(name): float(value) for labels, value in lines if float(value)}


APPROVED, AUTOMATIC = ("Approved", "ByHand"), ("Approved", "AutoApproved")


@pytest.mark.parametrize(
    ("request_", "decided", "issued", "joined"),
    [
        pytest.param(csr(), "", "", "", id="one that waits"),
        pytest.param(csr("a", AUTOMATIC), 'decision="approved",reason="AutoApproved"', "", "", id="approved by a rule"),
        pytest.param(csr("a", APPROVED), 'decision="approved",reason="Other"', "", "", id="approved by a person"),
        pytest.param(csr("a", ("Denied", "NodeNameInvalid")), 'decision="denied",reason="NodeNameInvalid"', "", "", id="denied"),
        pytest.param(csr("a", ("Denied", "a b")), 'decision="denied",reason="Other"', "", "", id="denied with any text"),
        pytest.param(csr(issued=True), "", f'proof="token",signer="{KUBELET}"', 'way="kubeadm"', id="a join"),
        pytest.param(
            csr(issued=True, signer=K3S_KUBELET, username="node", extra={"mooring.io/k3s-credential": ["k3s-token"]}),
            "", f'proof="token",signer="{K3S_KUBELET}"', 'way="k3s"', id="a join k3s's way",
        ),
        pytest.param(
            csr(issued=True, username="system:node:n1"), "", f'proof="certificate",signer="{KUBELET}"', "", id="a renewal"
        ),
        pytest.param(
            csr(issued=True, username="system:recovering-node:n1"), "", f'proof="expired-certificate",signer="{KUBELET}"', "",
            id="a machine that comes back",
        ),
        pytest.param(
            csr(issued=True, username="system:joinrule:ci"), "", f'proof="identity-token",signer="{KUBELET}"', 'way="kubeadm"',
            id="a join by an identity token",
        ),
        pytest.param(
            csr(issued=True, username="jane", signer="example.com/any"), "", 'proof="other",signer="Other"', "", id="a user"
        ),
        pytest.param(csr("a", AUTOMATIC, issued=True, created=BEFORE), "", "", "", id="what happened before this process"),
    ],
)  # fmt: skip
def test_what_is_counted_of_a_request(request_: Obj, decided: str, issued: str, joined: str) -> None:
    scraped = Scraped()
    scraped.put("certificatesigningrequests", request_)
    for name, labels in (
        ("mooring_certificate_requests_decided_total", decided),
        ("mooring_certificates_issued_total", issued),
        ("mooring_joins_total", joined),
    ):
        assert scraped.samples(name) == ({f"{{{labels}}}": 1.0} if labels else {})


def test_each_step_is_counted_once() -> None:
    scraped = Scraped()
    for conditions, issued in (((), False), ((AUTOMATIC,), False), ((AUTOMATIC,), True), ((AUTOMATIC,), True)):
        scraped.put("certificatesigningrequests", csr("a", *conditions, issued=issued), csr("b", created=BEFORE))
        scraped.samples("mooring_joins_total")
    assert list(scraped.samples("mooring_certificate_requests_decided_total").values()) == [1.0]
    assert scraped.samples("mooring_joins_total") == {'{way="kubeadm"}': 1.0}
    scraped.put("certificatesigningrequests", csr("b", APPROVED, created=BEFORE))
    assert sum(scraped.samples("mooring_certificate_requests_decided_total").values()) == 2, "seen since it waited"


def test_of_several_servers_the_one_with_the_lease_counts() -> None:
    leads = False
    scraped = Scraped(lambda: leads)
    scraped.put("certificatesigningrequests", csr("a", issued=True))
    assert scraped.samples("mooring_joins_total") == {}
    leads = True
    scraped.put("certificatesigningrequests", csr("a", issued=True), csr("b", issued=True))
    assert scraped.samples("mooring_joins_total") == {'{way="kubeadm"}': 1.0}, "the other server has counted the first"


def test_reasons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membermetrics, "MAX_SERIES", 2)
    scraped = Scraped()
    scraped.put("certificatesigningrequests", *(csr(name, ("Denied", f"Reason{name}")) for name in "abcd"))
    found = scraped.samples("mooring_certificate_requests_decided_total")
    assert sum(found.values()) == 4
    assert len(found) == 3
    assert found['{decision="denied",reason="Other"}'] == 2
    scraped.put(
        "certificatesigningrequests",
        *(csr(f"{name}{n}", ("NeedsApproval", f"Reason{name}")) for n, name in enumerate("aabbcd")),
        csr("e", ("NeedsApproval", "a text")),
    )
    waiting = scraped.samples("mooring_certificate_requests_waiting")
    assert waiting == {'{reason="Reasona"}': 2, '{reason="Reasonb"}': 2, '{reason="Other"}': 3}


def node(name: str, status: str, **metadata: str) -> Obj:
    conditions = [{"type": "Ready", "status": status}] if status else []
    return thing(name, status={"conditions": conditions}, metadata=metadata)


def test_gauges() -> None:
    scraped = Scraped()
    scraped.put(
        "certificatesigningrequests",
        csr("a"),
        csr("b", ("NeedsApproval", "NodeNameTaken")),
        csr("c", APPROVED),
    )
    scraped.put(
        "nodes",
        node("a", "True"),
        node("b", "False"),
        node("c", "Unknown"),
        node("d", ""),
        node("e", "True", deletionTimestamp=NEW),
    )
    ends = {"a": 2 * HOUR, "c": HOUR}
    scraped.put(
        "nodeidentities",
        *(
            thing(name, spec={"keys": [{"notAfter": moment(-HOUR)}, {"notAfter": moment(end)}]})
            for name, end in ends.items()
        ),
        thing("e", spec={"keys": [{"notAfter": "junk"}]}),
    )
    scraped.put(
        "secrets",
        token_secret("live01", expiration=moment(HOUR)),
        token_secret("gone01", expiration=moment(-HOUR)),
        token_secret("ever01"),
        thing("other", "kube-system", type="Opaque"),
    )
    scraped.put("certificaterevocations", thing("x"), thing("y"))
    assert scraped.samples("mooring_certificate_requests_waiting") == {
        '{reason="None"}': 1,
        '{reason="NodeNameTaken"}': 1,
    }
    states = {'{state="Ready"}': 1, '{state="NotReady"}': 2, '{state="Lost"}': 1, '{state="Deleting"}': 1}
    assert scraped.samples("mooring_members") == states
    end = (NOW + 2 * HOUR).timestamp()
    assert scraped.samples("mooring_member_certificate_expiration_timestamp_seconds") == {"": end}, "that of a is Ready"
    assert scraped.samples("mooring_bootstrap_tokens") == {"": 2}
    assert scraped.samples("mooring_certificate_revocations") == {"": 2}
    scraped.clock.set(NOW + timedelta(days=1))
    assert scraped.samples("mooring_bootstrap_tokens") == {"": 1}
    assert scraped.samples("mooring_member_certificate_expiration_timestamp_seconds") == {}
    scraped.put("nodes", node("a", "False"))
    assert scraped.samples("mooring_members") == {'{state="NotReady"}': 1}


def test_a_process_tells_its_version_and_resources() -> None:
    metrics = Metrics()
    metrics.add_process()
    text = generate_latest(metrics.registry).decode()
    assert 'mooring_build_info{version="0.1.0"} 1.0\n' in text
    for name in ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds", "open_fds", "max_fds"):
        assert f"\nprocess_{name} " in text
    assert metrics.combine("process_start_time_seconds") is min
