"""kubectl and the kinds of workloads: Pods, Services and their endpoints are stored and printed, without being run."""

from __future__ import annotations

import re

import pytest

from tests.compat.kubectl import Kubectl
from tests.support.polling import eventually

WEB = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, type: NodePort, ports: [{name: http, port: 80, targetPort: web}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {containers: [{name: c, image: example/web}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: web}
subsets: [{addresses: [{ip: 192.0.2.1}, {ip: 192.0.2.2}], ports: [{name: http, port: 8080}]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [192.0.2.1], conditions: {ready: true}}, {addresses: [192.0.2.2]}]
"""


def cells(table: str) -> list[list[str]]:
    """Return the rows of a table, without its headings and without ages."""
    return [line.split()[:-1] for line in table.splitlines()[1:]]


@pytest.mark.shows("Pods and Services, which are stored; cluster-info")
def test_the_api_servers_are_behind_a_service(kubectl: Kubectl) -> None:
    row = ["kubernetes", "ClusterIP", "10.96.0.1", "<none>", "443/TCP"]
    eventually(lambda: row in cells(kubectl.ok("get", "service")))  # its controller makes it when the server runs
    assert "is running at" in kubectl.ok("cluster-info")
    output = kubectl.ok("describe", "service", "kubernetes")
    assert re.search(r"^IP: +10\.96\.0\.1$", output, re.M)
    assert re.search(r"^Port: +https +443/TCP$", output, re.M)


@pytest.mark.shows("Pods and Services, which are stored; cluster-info")
def test_services_and_their_endpoints(kubectl: Kubectl, namespace: str) -> None:
    here = ("-n", namespace)
    assert "service/web created" in kubectl.ok(*here, "create", "-f", "-", stdin=WEB)
    ((name, kind, address, outside, port),) = cells(kubectl.ok(*here, "get", "svc", "web"))
    assert (name, kind, outside) == ("web", "NodePort", "<none>")
    assert re.fullmatch(r"80:3\d{4}/TCP", port)
    assert cells(kubectl.ok(*here, "get", "ep", "web")) == [["web", "192.0.2.1:8080,192.0.2.2:8080"]]
    assert cells(kubectl.ok(*here, "get", "endpointslices")) == [["web-1", "IPv4", "8080", "192.0.2.1,192.0.2.2"]]
    assert cells(kubectl.ok(*here, "get", "pods", "web")) == [["web", "0/1", "Pending", "0"]]
    both = kubectl.ok(*here, "get", "all")
    assert "pod/web" in both
    assert "service/web" in both
    output = kubectl.ok(*here, "describe", "svc", "web")
    assert re.search(rf"^IP: +{re.escape(address)}$", output, re.M)
    assert re.search(r"^Endpoints: +192\.0\.2\.1:8080,192\.0\.2\.2:8080$", output, re.M)
    assert "kube-api-access-" in kubectl.ok(*here, "describe", "pod", "web")
    kubectl.ok(*here, "expose", "pod", "web", "--port=81", "--name=exposed")
    assert cells(kubectl.ok(*here, "get", "svc", "exposed"))[0][4] == "81/TCP"
    kubectl.ok(*here, "create", "service", "clusterip", "made", "--clusterip=None")
    assert cells(kubectl.ok(*here, "get", "svc", "made"))[0][2] == "None"
    taken = kubectl.fails(*here, "create", "service", "clusterip", "second", f"--clusterip={address}", "--tcp=80")
    assert "provided IP is already allocated" in taken
    kubectl.ok(*here, "delete", "svc", "web", "exposed", "made")
    assert 'endpoints "web" not found' in kubectl.fails(*here, "get", "endpoints", "web"), (
        "they went with their Service"
    )
    kubectl.ok(*here, "delete", "pod/web", "endpointslice/web-1")
