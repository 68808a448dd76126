"""An etcd that changes hands: between Mooring and a real kube-apiserver 1.36, in both directions, and both at the same time.

Rules kept here: objects are those of everykind.yaml and foreignkinds.yaml, read by kubectl from either server and compared whole,
managedFields included. What a server sets by itself is named in `CHANGED_BY_KUBERNETES`. Mooring runs with a single
controller there, so that none changes what is compared.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from tests.support.kubeapiserver import MISSING, KubeApiServer, running, running_etcd
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.storedkeys import stored_keys

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "kube-apiserver is here"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
HERE = Path(__file__).parent
FLAGS = (
    "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true,certificates.k8s.io/v1beta1/podcertificaterequests=true",
    "--feature-gates=ClusterTrustBundle=true,PodCertificateRequest=true",
)
RESOURCES = (
    "namespaces,configmaps,secrets,serviceaccounts,nodes,pods,podtemplates,services,endpoints,events,endpointslices,leases,roles,"
    "rolebindings,clusterroles,clusterrolebindings,certificatesigningrequests,csinodes,"
    "clustertrustbundles.v1beta1.certificates.k8s.io,podcertificaterequests.v1beta1.certificates.k8s.io"
)
"""kube-apiserver 1.36 does not have version v1 of the last two, which kubectl prefers."""
FOREIGN_RESOURCES = (
    "replicationcontrollers,persistentvolumes,persistentvolumeclaims,deployments,replicasets,daemonsets,statefulsets,jobs,cronjobs,"
    "ingresses,networkpolicies,poddisruptionbudgets,runtimeclasses,csidrivers,customresourcedefinitions"
)
Place = tuple[str, str, str]
"""Kind, namespace and name."""
CHANGED_BY_KUBERNETES = {
    ("ConfigMap", "kube-system", "extension-apiserver-authentication"),
    ("Endpoints", "default", "kubernetes"),
    ("EndpointSlice", "default", "kubernetes"),
    ("Service", "default", "kubernetes"),
}
"""Objects that a kube-apiserver brings up to date with its own address and CA."""
CLIENT_CAS: Place = ("ConfigMap", "kube-system", "extension-apiserver-authentication")
"""The published CAs: Mooring annotates them with what it wrote last, and changes nothing else."""
HELD = "held"
"""A namespace with an object of a kind that Mooring does not serve."""
THING: Obj = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "one", "namespace": HELD}}
UPDATED: Place = ("Secret", "layout", "updated")
"""An object of kube-apiserver that a test updates through Mooring."""
DEFAULTED: dict[Place, Callable[[Obj], object]] = {
    ("Job", "layout", "every"): lambda obj: obj["metadata"].pop("labels", None),
    ("PodCertificateRequest", "layout", "every"): lambda obj: [
        obj["spec"].pop(name, None) for name in ("pkixPublicKey", "proofOfPossession")
    ],
    ("PersistentVolumeClaim", "layout", "every"): lambda obj: obj["status"].pop("phase", None),
    ("StatefulSet", "layout", "every"): lambda obj: [
        (one.pop("kind", None), one.pop("apiVersion", None)) for one in obj["spec"]["volumeClaimTemplates"]
    ],
}
"""Fields that kube-apiserver has not stored and sets on each read, null included (docs/protocol/storage.md#values)."""


def kubectl(server: KubeApiServer | LiveServer, *arguments: str, stdin: bytes = b"") -> str:
    command = (str(KUBECTL), "--kubeconfig", str(server.kubeconfig), *arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def shown(server: KubeApiServer | LiveServer, resources: str) -> dict[Place, Obj]:
    listed = json.loads(kubectl(server, "get", resources, "-A", "-o", "json", "--show-managed-fields"))["items"]
    return {(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj for obj in listed}


def comparable(place: Place, obj: Obj) -> Obj:
    if place in DEFAULTED:
        DEFAULTED[place](obj)
    return obj


def held(shown: dict[Place, Obj]) -> set[Place]:
    """Return the places of the namespace that a test deletes, and of what is in it."""
    return {place for place in shown if place[1] == HELD or place == ("Namespace", "", HELD)}


def moving(place: Place) -> bool:
    """Return whether the object follows a server's life: its leases and its events."""
    return place[0] in ("Lease", "Event") and place[1] != "layout"


def differences(
    before: dict[Place, Obj], after: dict[Place, Obj], changed: set[Place]
) -> dict[Place, tuple[Obj | None, Obj | None]]:
    return {
        place: (comparable(place, obj), comparable(place, after[place]) if place in after else None)
        for place, obj in before.items()
        if place not in changed
        and not moving(place)
        and (place not in after or comparable(place, obj) != comparable(place, after[place]))
    }


# -- an etcd that kube-apiserver filled ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Handover:
    """One etcd: the objects that the first server showed, and the second server on it."""

    store: str
    before: dict[Place, Obj]
    keys: dict[str, bytes]
    """What the first server left."""
    adopted: dict[str, bytes]
    """What was there when the second server served, before any test wrote."""
    mooring: LiveServer
    kubernetes: Path
    """Directory with the certificates of the kube-apiserver."""


@pytest.fixture(scope="module")
def taken_over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handover]:
    """Fill an etcd by kube-apiserver, stop that, and start Mooring on it."""
    directory = tmp_path_factory.mktemp("kubernetes")
    with running_etcd(directory) as store:
        with running(directory, *FLAGS, store=store) as kubernetes:
            for name in ("everykind.yaml", "foreignkinds.yaml"):
                kubectl(kubernetes, "apply", "--server-side", "-f", str(HERE / name))
            kubectl(kubernetes, "-n", UPDATED[1], "create", "secret", "generic", UPDATED[2], "--from-literal=a=b")
            kubectl(kubernetes, "wait", "--for=condition=established", "crd/things.example.com")
            kubectl(kubernetes, "create", "namespace", HELD)
            kubectl(kubernetes, "apply", "-f", "-", stdin=json.dumps(THING).encode())
            before = shown(kubernetes, f"{RESOURCES},{FOREIGN_RESOURCES}")
        keys = stored_keys(store)
        flags = (
            "--etcd-servers",
            store,
            "--service-cluster-ip-range",
            "10.96.0.0/16",
            "--controllers=csrcleaner,namespace",
        )
        pki = directory / "mooring/pki"
        pki.mkdir(parents=True, mode=0o700)
        (directory / "mooring").chmod(0o700)
        for name in ("ca.crt", "ca.key", "sa.key", "sa.pub"):
            (pki / name).write_bytes((directory / name).read_bytes())
            (pki / name).chmod(0o600)
        mooring = start_server(directory / "mooring", *flags)
        try:
            yield Handover(store, before, keys, stored_keys(store), mooring, directory)
        finally:
            mooring.stop()


def test_a_cluster_of_kube_apiserver_is_adopted_with_its_ca(taken_over: Handover) -> None:
    assert "the store has a cluster and no record of its keys: the CA " in taken_over.mooring.log
    assert "is recorded, which its objects name" in taken_over.mooring.log


def test_mooring_shows_every_object_that_kube_apiserver_stored(taken_over: Handover) -> None:
    after = shown(taken_over.mooring, f"{RESOURCES},{FOREIGN_RESOURCES}")
    assert len({place[0] for place in taken_over.before}) == len(f"{RESOURCES},{FOREIGN_RESOURCES}".split(","))
    assert differences(taken_over.before, after, {CLIENT_CAS, UPDATED, *held(taken_over.before)}) == {}
    assert taken_over.before[CLIENT_CAS]["data"] == after[CLIENT_CAS]["data"]


def test_what_mooring_does_not_know_is_left_as_it_was(taken_over: Handover) -> None:
    left = ("apiregistration.k8s.io", "flowschemas", "priorityclasses", "prioritylevelconfigurations", "ranges", "ipaddresses",
            "servicecidrs")  # fmt: skip
    for key, value in taken_over.keys.items():
        if key.split("/")[2] in left:
            assert taken_over.adopted.get(key) == value, key


def test_values_of_either_encoding_are_updated(taken_over: Handover) -> None:
    assert taken_over.keys["/registry/secrets/layout/updated"].startswith(b"k8s\0")
    kubectl(taken_over.mooring, "-n", "layout", "label", "secret", "updated", "by=mooring")
    after = shown(taken_over.mooring, "secrets")[UPDATED]
    assert after["metadata"]["uid"] == taken_over.before[UPDATED]["metadata"]["uid"]
    assert stored_keys(taken_over.store)["/registry/secrets/layout/updated"].startswith(b'{"kind":"Secret"')


def test_both_serve_side_by_side(taken_over: Handover) -> None:
    """Each sees the other's writes, watches included, and neither grants an address or a port of the other's Services."""
    mooring = taken_over.mooring
    with running(taken_over.kubernetes, *FLAGS, store=taken_over.store) as kubernetes:
        for one, other in ((kubernetes, mooring), (mooring, kubernetes)):
            name = "by-mooring" if one is mooring else "by-kubernetes"
            kubectl(one, "-n", "layout", "create", "configmap", name, "--from-literal=a=b")

            def arrived(other: KubeApiServer | LiveServer = other, name: str = name) -> bool:
                return name in kubectl(other, "-n", "layout", "get", "configmaps", "-o", "name")

            eventually(arrived)
            kubectl(
                one, "-n", "layout", "create", "service", "nodeport", name, "--tcp=80", "--node-port", _port_of(name)
            )
        services = [obj["spec"] for obj in shown(kubernetes, "services").values()]
        addresses = [spec["clusterIP"] for spec in services]
        ports = [port["nodePort"] for spec in services for port in spec["ports"] if "nodePort" in port]
        assert len(set(addresses)) == len(addresses)
        assert len(set(ports)) == len(ports)
        for one, name in ((kubernetes, "by-mooring"), (mooring, "by-kubernetes")):
            command = (
                "-n",
                "layout",
                "create",
                "service",
                "nodeport",
                "again",
                "--tcp=80",
                "--node-port",
                _port_of(name),
            )
            with pytest.raises(AssertionError, match="already allocated"):
                kubectl(one, *command)
            kubectl(one, "-n", "layout", "delete", "service", name)
            kubectl(one, *command)
            kubectl(one, "-n", "layout", "delete", "service", "again")
        assert differences(shown(mooring, RESOURCES), shown(kubernetes, RESOURCES), CHANGED_BY_KUBERNETES) == {}


def test_the_log_names_what_holds_a_namespace(taken_over: Handover) -> None:
    kubectl(taken_over.mooring, "delete", "namespace", HELD, "--wait=false")
    eventually(lambda: f"namespace-controller {HELD} waits: " in taken_over.mooring.log)
    assert "kinds that this server does not serve: example.com/things (1)" in taken_over.mooring.log
    assert kubectl(taken_over.mooring, "get", "namespace", HELD, "-o", "jsonpath={.status.phase}") == "Terminating"


def _port_of(name: str) -> str:
    return "31001" if name == "by-mooring" else "31002"


# -- an etcd that Mooring filled ----------------------------------------------------------------------------------------


def test_kube_apiserver_shows_every_object_that_mooring_stored(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as store:
        mooring = start_server(
            tmp_path / "mooring", "--etcd-servers", store, "--service-cluster-ip-range", "10.96.0.0/16"
        )
        try:
            kubectl(mooring, "apply", "--server-side", "-f", str(HERE / "everykind.yaml"))
            before = shown(mooring, RESOURCES)
        finally:
            mooring.stop()
        keys = stored_keys(store)
        assert len({place[0] for place in before}) == len(RESOURCES.split(","))
        with running(tmp_path, *FLAGS, store=store) as kubernetes:
            assert differences(before, shown(kubernetes, RESOURCES), CHANGED_BY_KUBERNETES) == {}
            kubectl(kubernetes, "-n", "layout", "label", "secret", "every", "by=kubernetes")
        now = stored_keys(store)
        assert now["/registry/secrets/layout/every"].startswith(b"k8s\0")
        assert {key: now.get(key) for key in keys if "/mooring" in key} == {
            key: value for key, value in keys.items() if "/mooring" in key
        }
