"""Features of each client against Mooring: the table behind the tests of this folder and behind README's.

Rules kept here: data only. A test names every row (`test_matrix.py` checks both directions). Where a client lacks a feature, the
row has the reason, and the test is skipped with that reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KUBECTL = ("1.20", "1.27", "1.28", "1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35")
"""Tested releases of kubectl: of Debian 12, of Google's SDK and of packages of npm. Others are tested where they are installed."""
PYTHON = "kubernetes (Python)"
LIGHTKUBE = "lightkube"
KOPF = "kopf"
OPENSSL = "openssl + curl"
HELM = "Helm 3.17 and 4.1"
NODE = "@kubernetes/client-node"
ANSIBLE = "kubernetes.core (Ansible)"
CLIENTS = (*(f"kubectl {release}" for release in KUBECTL), PYTHON, LIGHTKUBE, NODE, HELM, ANSIBLE, KOPF, OPENSSL)

READ, WATCH, WRITE, DISCOVERY = "read", "watch and wait", "write", "discovery"
ACCESS, KINDS, CREDENTIALS = "access", "kinds", "tokens, certificates"
AREAS = (READ, WATCH, WRITE, DISCOVERY, ACCESS, KINDS, CREDENTIALS)


@dataclass(frozen=True, slots=True)
class Row:
    """One feature of one of the AREAS.

    `kubectl` is the first release with the feature, `why` the reason when that is not the oldest; `others` are further clients with
    tests of it. `limits`: differences between clients that have the feature.
    """

    area: str
    what: str
    kubectl: tuple[int, int] | None = (1, 0)
    why: str = ""
    others: tuple[str, ...] = ()
    limits: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One feature of one client: it works, or the reason why not ("" for a client that the row does not cover)."""

    works: bool
    why: str = field(default="")


_LIBRARIES = (PYTHON, LIGHTKUBE)

ROWS = (
    Row(READ, "get, every output and selector", others=(*_LIBRARIES, NODE, ANSIBLE)),
    Row(READ, "describe"),
    Row(WRITE, "create -f", others=(*_LIBRARIES, NODE, ANSIBLE)),
    Row(WRITE, "apply -f, creating and changing", others=(ANSIBLE,)),
    Row(
        WRITE, "apply --server-side", (1, 22), "server-side apply was a beta until 1.22", others=(*_LIBRARIES, ANSIBLE)
    ),
    Row(
        WRITE,
        "apply --server-side of what apply made",
        (1, 26),
        "taking over the fields of client-side apply came with 1.26",
    ),
    Row(WRITE, "diff"),
    Row(WRITE, "replace", others=(*_LIBRARIES, NODE)),
    Row(WRITE, "patch, three types", others=(*_LIBRARIES, NODE, ANSIBLE)),
    Row(WRITE, "label and annotate"),
    Row(WRITE, "delete", others=(*_LIBRARIES, NODE, ANSIBLE)),
    Row(WATCH, "get -w", others=(*_LIBRARIES, NODE)),
    Row(WATCH, "wait for deletion"),
    Row(WATCH, "wait for a value", (1, 23), "wait --for=jsonpath came with 1.23"),
    Row(DISCOVERY, "api-resources, api-versions, version", others=(PYTHON,)),
    Row(DISCOVERY, "explain"),
    Row(ACCESS, "auth can-i", others=(PYTHON,)),
    Row(ACCESS, "create -f of a review", others=(PYTHON,)),
    Row(ACCESS, "auth whoami", (1, 27), "auth whoami came with 1.27"),
    Row(ACCESS, "auth reconcile"),
    Row(KINDS, "create namespace, secret, configmap, serviceaccount"),
    Row(ACCESS, "create role, clusterrole, rolebinding, clusterrolebinding"),
    Row(CREDENTIALS, "create token", (1, 24), "create token came with 1.24", others=(*_LIBRARIES, NODE)),
    Row(CREDENTIALS, "certificate approve and deny"),
    Row(KINDS, "Pods and Services, which are stored; cluster-info", others=(PYTHON,)),
    Row(KINDS, "get events of both groups", others=(PYTHON,)),
    Row(KINDS, "events", (1, 26), "kubectl events came with 1.26"),
    Row(KINDS, "get all; kinds of which there are none"),
    Row(KINDS, "delete a namespace with what is in it"),
    Row(
        WRITE, "unknown fields are refused", limits="kubectl up to 1.24 refuses them itself, by the OpenAPI v2 document"
    ),
    Row(WRITE, "unknown fields are warned about", (1, 25), "create --validate=warn came with 1.25"),
    Row(ACCESS, "--as, --as-group"),
    Row(WATCH, "an operator: create, update and delete handlers with finalizers", None, others=(KOPF,)),
    Row(WRITE, "install, upgrade, roll back and uninstall a chart of a tenant", None, others=(HELM,)),
    Row(WRITE, "take a release of Helm 3 over to server-side apply", None, others=(HELM,)),
    Row(WRITE, "uninstall a release whose install was refused", None, others=(HELM,)),
    Row(DISCOVERY, "DynamicClient", None, others=(PYTHON,)),
    Row(CREDENTIALS, "join: trust cluster-info by token, ask for a certificate, use it", None, others=(OPENSSL,)),
)
BY_NAME = {row.what: row for row in ROWS}


def cell(row: Row, client: str) -> Cell:
    """Return the cell of `client`, one of CLIENTS."""
    if not client.startswith("kubectl "):
        return Cell(client in row.others)
    if row.kubectl is None:
        return Cell(False)
    major, minor = client.removeprefix("kubectl ").split(".")
    return Cell(True) if (int(major), int(minor)) >= row.kubectl else Cell(False, row.why)


def table() -> dict[str, dict[str, Cell]]:
    """Return the cells of each row by the row's name and the client."""
    return {row.what: {client: cell(row, client) for client in CLIENTS} for row in ROWS}


def shown(area: str, client: str) -> tuple[int, int]:
    """Return the number of an area's features that work with a client, and the number that the client is meant for."""
    kubectl = client.startswith("kubectl ")
    cells = [cell(row, client) for row in ROWS if row.area == area and (row.kubectl if kubectl else row.others)]
    return sum(one.works for one in cells), len(cells)
