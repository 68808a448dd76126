"""Events as kubectl prints them, from either group, and the kinds of workloads, which have no objects (docs/adr/0015)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.compat.kubectl import Kubectl

EVENTS = """
apiVersion: events.k8s.io/v1
kind: Event
metadata: {{name: newer, namespace: {space}}}
eventTime: "{when}"
reportingController: example.com/joiner
reportingInstance: joiner-1
action: Joining
reason: Joined
regarding: {{kind: Pod, namespace: {space}, name: p, apiVersion: v1}}
note: it joined
type: Normal
---
apiVersion: v1
kind: Event
metadata: {{name: older, namespace: {space}}}
involvedObject: {{kind: Pod, namespace: {space}, name: p, apiVersion: v1}}
reason: Pulled
message: image pulled
source: {{component: kubelet, host: n1}}
firstTimestamp: "{second}"
lastTimestamp: "{second}"
count: 3
type: Warning
"""
GROUPS = ("events", "events.events.k8s.io", "ev")


def manifest(space: str) -> str:
    now = datetime.now(UTC)
    return EVENTS.format(
        space=space, when=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), second=now.strftime("%Y-%m-%dT%H:%M:%SZ")
    )


def made(kubectl: Kubectl, namespace: str) -> None:
    kubectl.ok("create", "-f", "-", stdin=manifest(namespace))


@pytest.mark.shows("get events of both groups")
def test_both_groups_show_the_same(kubectl: Kubectl, namespace: str) -> None:
    here = ("-n", namespace)
    made(kubectl, namespace)
    printed = {plural: kubectl.ok(*here, "get", plural, "--no-headers") for plural in GROUPS}
    for table in printed.values():
        rows = sorted(line.split()[1:] for line in table.splitlines())
        assert rows == [
            ["Normal", "Joined", "pod/p", "it", "joined"],
            ["Warning", "Pulled", "pod/p", "image", "pulled"],
        ]
    wide = kubectl.ok(*here, "get", "events.events.k8s.io", "-o", "wide")
    assert "kubelet, n1" in wide
    assert "example.com/joiner, joiner-1" in wide
    about = kubectl.ok(
        *here, "get", "events.events.k8s.io", "--field-selector=regarding.name=p,type=Warning", "-o", "name"
    )
    assert about == "event.events.k8s.io/older\n"
    assert (
        kubectl.ok(*here, "get", "events", "--field-selector=involvedObject.name=p,type=Normal", "-o", "name")
        == "event/newer\n"
    )
    kubectl.ok(*here, "label", "events.events.k8s.io", "older", "a=b")
    assert "a=b" in kubectl.ok(*here, "get", "event", "older", "--show-labels")
    assert "it joined" in kubectl.ok(*here, "describe", "event", "newer")
    kubectl.ok(*here, "delete", "events.events.k8s.io", "--all")
    assert kubectl.ok(*here, "get", "events", "-o", "name") == ""


@pytest.mark.shows("events")
def test_events_prints_both_styles(kubectl: Kubectl, namespace: str) -> None:
    here = ("-n", namespace)
    made(kubectl, namespace)
    printed = kubectl.ok("events", *here, "--for=pod/p", "--no-headers")
    assert "it joined" in printed
    assert "(x3 over" in printed
    assert "it joined" not in kubectl.ok("events", *here, "--types=Warning")
    kubectl.ok(*here, "delete", "events", "--all")


@pytest.mark.shows("get all; kinds of which there are none")
def test_workloads_are_listed_as_empty(kubectl: Kubectl) -> None:
    space = f"empty-{kubectl.program.release[1]}"
    here = ("-n", space)
    kubectl.ok("create", "namespace", space)
    kinds = "rc,deploy,rs,ds,sts"
    for args in (
        ("get", "all"),
        ("get", kinds),
        ("describe", "deployments"),
        ("delete", "deploy", "--all", "--ignore-not-found"),
    ):
        done = kubectl.run(*here, *args)
        assert (done.returncode, done.stdout.replace("No resources found\n", "")) == (0, ""), done.stderr
    for plural in ("csidrivers", "runtimeclasses", "crd"):
        assert "No resources found" in kubectl.run("get", plural).stderr
    refused = kubectl.fails(*here, "create", "deployment", "d", "--image=example/i")
    assert 'create is not supported on resources of kind "deployments.apps": this server runs no workloads' in refused
    assert 'deployments.apps "d" not found' in kubectl.fails(*here, "get", "deploy", "d")
