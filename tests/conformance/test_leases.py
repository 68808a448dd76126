"""[sig-node] Lease of test/e2e/common/node/lease.go: the API, without a kubelet.

Its times are counted from Go's zero time, so they lie in the year 1. They are kept as they are; the zero time itself is absence.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj
from tests.support.typedclient import Client


def spec(holder: str, duration: int, acquired: int, renewed: int, transitions: int) -> Obj:
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": duration,
        "acquireTime": f"0001-01-01T00:00:{acquired:02}.000000Z",
        "renewTime": f"0001-01-01T00:01:{renewed:02}.000000Z",
        "leaseTransitions": transitions,
    }


def test_lease_api_should_be_available(client: Client, space: str) -> None:
    first = spec("holder", 30, 2, 5, 0)
    created = client.create("leases", space, {"metadata": {"name": "lease"}, "spec": first})
    assert client.get("leases", space, "lease")["spec"] == first

    second = spec("holder2", 30, 20, 50, 1)
    client.update("leases", space, created | {"spec": second})
    assert client.get("leases", space, "lease")["spec"] == second

    third = spec("holder3", 60, 50, 10, 2)
    client.patch("leases", space, "lease", {"spec": third})
    assert client.get("leases", space, "lease")["spec"] == third

    labels = {"deletecollection": "true"}
    client.create("leases", space, {"metadata": {"name": "lease2", "labels": labels}, "spec": first})
    assert len(client.list("leases", space)["items"]) == 2
    client.delete_collection("leases", space, labelSelector="deletecollection=true")
    (left,) = client.list("leases", space)["items"]
    assert left["metadata"]["name"] == "lease"

    client.delete("leases", space, "lease")
    assert client.refusal("GET", f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases/lease") == 404


def test_the_zero_time_is_no_time_in_any_form(client: Client, space: str) -> None:
    never = {"holderIdentity": "holder", "acquireTime": "0001-01-01T00:00:00.000000Z"}
    made = client.create("leases", space, {"metadata": {"name": "never"}, "spec": never})
    assert made["spec"] == {"holderIdentity": "holder"}
