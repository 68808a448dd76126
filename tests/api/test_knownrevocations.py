"""Which was first: a request for a certificate, or the revocation of its node."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.certificates.requestrecords import (
    KNOWN_REVOCATIONS,
    keep_known_revocations,
    precedes,
    record_known_revocations,
)

EARLY, MIDDLE, LATE = (f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3))


def request(created: str, known: str = "") -> dict[str, Any]:
    annotations = {KNOWN_REVOCATIONS: known} if known else {}
    return {"metadata": {"creationTimestamp": created, "annotations": annotations}}


def entry(before: str, created: str = MIDDLE, revision: str = "7") -> dict[str, Any]:
    metadata = {"creationTimestamp": created, "resourceVersion": revision}
    return {"metadata": metadata, "spec": {"nodeName": "n1", "issuedBefore": before}}


@pytest.mark.parametrize(
    ("csr", "revocation", "is_first"),
    [
        pytest.param(request(EARLY), entry(MIDDLE), True, id="made earlier"),
        pytest.param(request(LATE), entry(MIDDLE), False, id="made later"),
        pytest.param(request(LATE, "6"), entry(MIDDLE), True, id="made by a clock that ran ahead"),
        pytest.param(request(LATE, "7"), entry(MIDDLE), False, id="made when the entry was known"),
        pytest.param(
            request(EARLY, "7"), entry(MIDDLE), True, id="made by a clock that was behind, or before a change"
        ),
        pytest.param(
            request(LATE, "6"), entry(EARLY), False, id="the entry revokes up to an earlier moment on purpose"
        ),
        pytest.param(request(EARLY, "9"), entry(""), True, id="the entry has no moment, and was made later"),
        pytest.param(request(LATE, "junk"), entry(MIDDLE), False, id="another API server guards no annotation"),
        pytest.param(request(LATE, "6"), {"metadata": {}, "spec": {"nodeName": "n1"}}, True, id="no moment at all"),
    ],
)
def test_a_request_precedes_a_revocation(csr: dict[str, Any], revocation: dict[str, Any], is_first: bool) -> None:
    assert precedes(csr, revocation) is is_first


def test_the_recorded_revision_is_the_servers() -> None:
    made = request(EARLY, "999")
    record_known_revocations(made, 5)
    assert made["metadata"]["annotations"] == {KNOWN_REVOCATIONS: "5"}
    changed = request(EARLY, "999")
    keep_known_revocations(changed, made)
    assert changed["metadata"]["annotations"] == {KNOWN_REVOCATIONS: "5"}
