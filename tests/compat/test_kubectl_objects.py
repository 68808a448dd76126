"""Unmodified kubectl reads, makes, changes, watches and deletes objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import pytest
import yaml

from tests.compat.kubectl import Kubectl

TWO = """
apiVersion: v1
kind: ConfigMap
metadata: {name: %(name)s, labels: {app: %(name)s}}
data: {color: %(color)s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %(name)s}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
"""


@pytest.mark.every_release
@pytest.mark.shows("get, every output and selector")
def test_get_in_every_output(kubectl: Kubectl, namespace: str) -> None:
    tables = kubectl.ok("get", "ns,secrets,cm,sa,nodes,csr,roles", "-A")
    assert "namespace/kube-system" in tables
    assert ["kube-public", "configmap/cluster-info"] in [line.split()[:2] for line in tables.splitlines()]

    kubectl.ok("-n", namespace, "create", "configmap", "got", "--from-literal=color=red")
    get = ("-n", namespace, "get", "configmap", "got")
    plain, wide = kubectl.ok(*get).splitlines(), kubectl.ok(*get, "-o", "wide").splitlines()
    assert plain[0].split() == wide[0].split() == ["NAME", "DATA", "AGE"]
    assert plain[1].split()[:2] == ["got", "1"]
    as_json = kubectl.json(*get)
    assert as_json["data"] == {"color": "red"}
    assert yaml.safe_load(kubectl.ok(*get, "-o", "yaml")) == as_json
    assert kubectl.ok(*get, "-o", "name") == "configmap/got\n"
    assert kubectl.ok(*get, "-o", "jsonpath={.data.color}") == "red"
    assert kubectl.ok(*get, "-o", "custom-columns=N:.metadata.name,C:.data.color").split() == ["N", "C", "got", "red"]
    assert kubectl.ok(*get, "-o", "go-template={{.data.color}}") == "red"

    listed = ("-n", namespace, "get", "configmaps", "-o", "name")
    assert "configmap/got\n" in kubectl.ok(*listed, "--chunk-size=1")
    assert kubectl.ok(*listed, "--field-selector=metadata.name=got") == "configmap/got\n"
    assert kubectl.ok(*listed, "-l", "nobody=has") == ""
    assert "configmap/got" in kubectl.ok(*listed, "-l", "!nobody", "--sort-by=.metadata.name")
    assert kubectl.fails("-n", namespace, "get", "cm", "none") == (
        'Error from server (NotFound): configmaps "none" not found\n'
    )


@pytest.mark.shows("describe")
def test_describe(kubectl: Kubectl, namespace: str) -> None:
    kubectl.ok("-n", namespace, "create", "secret", "generic", "told", "--from-literal=word=sesame")
    said = kubectl.ok("-n", namespace, "describe", "secret", "told")
    assert "word:  6 bytes" in said
    assert "sesame" not in said
    namespace_said = kubectl.ok("describe", "namespace", namespace)
    assert f"kubernetes.io/metadata.name={namespace}" in namespace_said
    assert "Active" in namespace_said
    assert "kubeconfig:\n----" in kubectl.ok("-n", "kube-public", "describe", "configmap", "cluster-info")
    assert "PolicyRule" in kubectl.ok("describe", "clusterrole", "cluster-admin")
    assert "system:masters" in kubectl.ok("describe", "clusterrolebinding", "cluster-admin")
    kubectl.ok("-n", namespace, "create", "serviceaccount", "told")
    assert "Image pull secrets:" in kubectl.ok("-n", namespace, "describe", "sa", "told")
    assert "not found" in kubectl.fails("-n", namespace, "describe", "secret", "none")


@pytest.mark.shows("describe")
def test_describe_a_node(kubectl: Kubectl, namespace: str) -> None:
    """kubectl lists the pods of the node and reads its Lease."""
    name = f"node-{namespace}"
    kubectl.ok("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
    said = kubectl.ok("describe", "node", name)
    assert f"Name:               {name}\n" in said
    assert "Unschedulable:      false" in said
    kubectl.ok("delete", "node", name)


@pytest.mark.shows("create -f", "replace", "diff")
def test_create_diff_and_replace_from_files(kubectl: Kubectl, namespace: str, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO % {"name": "filed", "color": "red"})
    here = ("-n", namespace)
    assert kubectl.ok(*here, "create", "-f", str(file)).splitlines() == [
        "configmap/filed created",
        "role.rbac.authorization.k8s.io/filed created",
    ]
    assert kubectl.fails(*here, "create", "-f", str(file)).splitlines()[0] == (
        f'Error from server (AlreadyExists): error when creating "{file}": configmaps "filed" already exists'
    )
    assert kubectl.ok(*here, "diff", "-f", str(file)) == ""
    file.write_text(TWO % {"name": "filed", "color": "blue"})
    diff = kubectl.run(*here, "diff", "-f", str(file))
    assert diff.returncode == 1, diff.stderr
    assert "-  color: red\n+  color: blue" in diff.stdout
    assert "configmap/filed replaced" in kubectl.ok(*here, "replace", "-f", str(file))
    stored = kubectl.json(*here, "get", "cm", "filed")
    assert stored["data"] == {"color": "blue"}
    stored["metadata"] = {"name": "filed", "namespace": namespace, "resourceVersion": "1"}
    stale = kubectl.fails(*here, "replace", "-f", "-", stdin=json.dumps(stored))
    assert stale.startswith("Error from server (Conflict): ")
    assert "the object has been modified" in stale
    as_json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "any-"}}
    assert kubectl.ok(*here, "create", "-f", "-", stdin=json.dumps(as_json)).startswith("configmap/any-")
    missing = kubectl.fails("-n", "nowhere", "create", "-f", "-", stdin=json.dumps(as_json))
    assert 'namespaces "nowhere" not found' in missing


@pytest.mark.every_release
@pytest.mark.shows("apply -f, creating and changing")
def test_apply(kubectl: Kubectl, namespace: str) -> None:
    apply = ("-n", namespace, "apply", "-f", "-")
    red, blue = (TWO % {"name": "applied", "color": color} for color in ("red", "blue"))
    assert (
        kubectl.ok(*apply, "--dry-run=server", stdin=red).splitlines()[0]
        == "configmap/applied created (server dry run)"
    )
    assert kubectl.ok(*apply, stdin=red).splitlines() == [
        "configmap/applied created",
        "role.rbac.authorization.k8s.io/applied created",
    ]
    assert kubectl.ok(*apply, stdin=red).splitlines()[0] == "configmap/applied unchanged"
    assert kubectl.ok(*apply, stdin=blue).splitlines() == [
        "configmap/applied configured",
        "role.rbac.authorization.k8s.io/applied unchanged",
    ]
    get = ("-n", namespace, "get", "cm", "applied", "-o")
    assert kubectl.ok(*get, "jsonpath={.data.color}") == "blue"
    kubectl.ok(*apply, stdin=blue.replace("color: blue", "taste: sweet"))
    assert json.loads(kubectl.ok(*get, "jsonpath={.data}")) == {"taste": "sweet"}  # a field that is left out is removed


@pytest.mark.shows("apply -f, creating and changing")
def test_apply_and_prune(kubectl: Kubectl, namespace: str) -> None:
    both = "\n---\n".join(TWO % {"name": name, "color": "red"} for name in ("kept", "pruned")).replace(
        "app: pruned", "app: kept"
    )
    apply = ("-n", namespace, "apply", "-l", "app=kept", "--prune", "-f", "-")
    kubectl.ok(*apply, stdin=both)
    assert "configmap/pruned pruned" in kubectl.ok(*apply, stdin=TWO % {"name": "kept", "color": "red"})
    assert kubectl.ok("-n", namespace, "get", "cm", "-l", "app=kept", "-o", "name") == "configmap/kept\n"


@pytest.mark.shows("patch, three types", "label and annotate")
def test_patch_label_and_annotate(kubectl: Kubectl, namespace: str) -> None:
    here = ("-n", namespace)
    kubectl.ok(*here, "create", "configmap", "patched", "--from-literal=a=1")
    patch = (*here, "patch", "configmap", "patched")
    assert kubectl.ok(*patch, "--type=merge", "-p", '{"data":{"b":"2","a":null}}') == "configmap/patched patched\n"
    kubectl.ok(*patch, "--type=json", "-p", '[{"op":"add","path":"/data/c","value":"3"}]')
    kubectl.ok(*patch, "--type=strategic", "-p", '{"metadata":{"finalizers":["x.io/one"]},"data":{"d":"4"}}')
    kubectl.ok(*patch, "-p", '{"metadata":{"finalizers":["x.io/two"]}}')
    stored = kubectl.json(*here, "get", "cm", "patched")
    assert stored["data"] == {"b": "2", "c": "3", "d": "4"}
    metadata = stored["metadata"]
    assert isinstance(metadata, dict)
    assert sorted(metadata["finalizers"]) == ["x.io/one", "x.io/two"]  # a strategic patch merges them
    kubectl.ok(*patch, "-p", '{"metadata":{"$deleteFromPrimitiveList/finalizers":["x.io/one","x.io/two"]}}')
    assert kubectl.ok(*patch, "--type=merge", "-p", '{"data":{"b":"2"}}') == "configmap/patched patched (no change)\n"
    failed = kubectl.fails(*patch, "--type=json", "-p", '[{"op":"test","path":"/data/c","value":"4"}]')
    assert failed.startswith("The request is invalid")

    assert kubectl.ok(*here, "label", "cm", "patched", "k=v") == "configmap/patched labeled\n"
    assert "--overwrite" in kubectl.fails(*here, "label", "cm", "patched", "k=w")
    kubectl.ok(*here, "label", "cm", "patched", "k=w", "--overwrite")
    assert kubectl.ok(*here, "get", "cm", "-l", "k=w", "-o", "name") == "configmap/patched\n"
    kubectl.ok(*here, "label", "cm", "patched", "k-")
    assert kubectl.ok(*here, "annotate", "cm", "patched", "note=hello").startswith("configmap/patched annotate")
    assert kubectl.ok(*here, "get", "cm", "patched", "-o", "jsonpath={.metadata.annotations.note}") == "hello"


@pytest.mark.shows("delete", "wait for deletion")
def test_delete_and_wait_for_it(kubectl: Kubectl, namespace: str) -> None:
    here = ("-n", namespace)
    label = ("-l", "doomed=yes")
    for name in ("one", "two", "three"):
        kubectl.ok(*here, "create", "configmap", name)
    kubectl.ok(*here, "label", "cm", "one", "two", "three", "doomed=yes")
    assert kubectl.ok(*here, "delete", "cm", "one", "--dry-run=server").endswith("(server dry run)\n")
    assert kubectl.ok(*here, "delete", "cm", "one", "--now").startswith('configmap "one" ')
    assert kubectl.ok(*here, "delete", "cm", *label).count("deleted") == 2
    assert kubectl.ok(*here, "get", "cm", *label, "-o", "name") == ""
    assert kubectl.ok(*here, "delete", "cm", "one", "--ignore-not-found") == ""
    assert kubectl.fails(*here, "delete", "cm", "one") == 'Error from server (NotFound): configmaps "one" not found\n'

    kubectl.ok(*here, "create", "secret", "generic", "held")
    kubectl.ok(*here, "patch", "secret", "held", "-p", '{"metadata":{"finalizers":["x.io/hold"]}}')
    kubectl.ok(*here, "delete", "secret", "held", "--wait=false")
    assert kubectl.ok(*here, "get", "secret", "held", "-o", "jsonpath={.metadata.deletionTimestamp}")
    with kubectl.started(*here, "wait", "--for=delete", "secret/held", "--timeout=30s") as waiting:
        kubectl.ok(*here, "patch", "secret", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        assert waiting.wait(30) == 0 or "not found" in _rest(waiting.stdout)
    kubectl.fails(*here, "get", "secret", "held")


def _rest(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.read()


@pytest.mark.every_release
@pytest.mark.shows("get -w")
def test_watch(kubectl: Kubectl, namespace: str) -> None:
    """Read each line before the next change: the test waits for no fixed time."""
    here = ("-n", namespace)
    kubectl.ok(*here, "create", "configmap", "seen")
    watch = ("get", "cm", "-w", "--output-watch-events", "--field-selector=metadata.name=seen", "--no-headers")
    with kubectl.started(*here, *watch) as watching:
        lines = watching.stdout
        assert lines is not None
        assert lines.readline().split()[:3] == ["ADDED", "seen", "0"]
        kubectl.ok(*here, "patch", "cm", "seen", "-p", '{"data":{"a":"1"}}')
        assert lines.readline().split()[:3] == ["MODIFIED", "seen", "1"]
        kubectl.ok(*here, "create", "configmap", "unseen")
        kubectl.ok(*here, "delete", "cm", "seen")
        assert lines.readline().split()[:2] == ["DELETED", "seen"]


@pytest.mark.shows("wait for a value")
def test_wait_for_a_value(kubectl: Kubectl, namespace: str) -> None:
    here = ("-n", namespace)
    kubectl.ok(*here, "create", "configmap", "awaited", "--from-literal=state=new")
    wait = (*here, "wait", "cm/awaited", "--timeout=30s", "--for=jsonpath={.data.state}=done")
    with kubectl.started(*wait) as waiting:
        kubectl.ok(*here, "patch", "cm", "awaited", "-p", '{"data":{"state":"done"}}')
        assert waiting.wait(30) == 0
        assert _rest(waiting.stdout) == "configmap/awaited condition met\n"


@pytest.mark.shows("delete a namespace with what is in it")
def test_delete_a_namespace(kubectl: Kubectl) -> None:
    name = f"doomed-{kubectl.program.version.replace('.', '-')}"
    kubectl.ok("create", "namespace", name)
    kubectl.ok("-n", name, "create", "configmap", "inside")
    assert kubectl.ok("delete", "namespace", name, "--timeout=30s").startswith(f'namespace "{name}" ')
    assert kubectl.fails("get", "namespace", name) == f'Error from server (NotFound): namespaces "{name}" not found\n'
    kubectl.ok("create", "namespace", name)
    assert "inside" not in kubectl.ok("-n", name, "get", "cm", "-o", "name")
    assert "Forbidden" in kubectl.fails("delete", "namespace", "kube-system")
