"""The hash chain of issued certificates: encoding, signatures, verification, and descent from a token."""

from __future__ import annotations

import base64
import copy
import hashlib
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.pki.keys import generate_key, public_key_fingerprint, public_key_pem
from mooring.trust.issuancelog import (
    BEFORE_FIRST,
    START,
    Checkpoint,
    IssuanceLogKey,
    canonical,
    checkpoint_of,
    descendants,
    new_record,
    node_of_user,
    parse_checkpoint,
    record_name,
    sequence_of,
    signer_of,
    unrecorded,
    verify,
)

KEY = IssuanceLogKey(generate_key())
FINGERPRINT = "sha256:" + public_key_fingerprint(KEY.key)


def entry(serial: str = "1", **fields: str) -> Obj:
    return {"time": "2026-01-01T00:00:00Z", "event": "Issued", "serialNumber": serial, **fields}


def chain(count: int, key: IssuanceLogKey | None = KEY) -> list[Obj]:
    records: list[Obj] = []
    head = START
    for number in range(count):
        record, head = new_record(head, [entry(f"{number:x}")], key)
        records.append(record)
    return records


def test_the_encoding_is_sorted_json_without_blanks() -> None:
    text = canonical(7, BEFORE_FIRST, [{"b": 'ü"', "a": "1"}])
    assert text == b'{"entries":[{"a":"1","b":"\xc3\xbc\\""}],"previous":"sha256:' + b"0" * 64 + b'","sequence":7}'
    (record,) = chain(1)
    spec = record["spec"]
    assert spec["hash"] == "sha256:" + hashlib.sha256(canonical(1, BEFORE_FIRST, spec["entries"])).hexdigest()


def test_values_that_are_empty_are_not_recorded() -> None:
    record, _ = new_record(START, [entry(token="")], None)
    assert record["spec"] == {"previous": BEFORE_FIRST, "entries": [entry()], "hash": record["spec"]["hash"]}
    assert record["metadata"]["name"] == "0000000000000001"


@pytest.mark.parametrize("name", ["1", "0000000000000000", "000000000000000x", "00000000000000001"])
def test_names_that_are_no_sequence_numbers(name: str) -> None:
    assert sequence_of(name) is None
    assert checkpoint_of({"metadata": {"name": name}}) is None


def test_a_record_claims_its_checkpoint() -> None:
    (record,) = chain(1)
    assert checkpoint_of(record) == Checkpoint(1, record["spec"]["hash"])
    assert checkpoint_of({"metadata": record["metadata"], "spec": {"hash": "x"}}) is None
    assert sequence_of(record_name(12)) == 12


def test_a_checkpoint_is_read_as_it_is_printed() -> None:
    checkpoint = Checkpoint(12, "sha256:" + "ab" * 32)
    assert parse_checkpoint(str(checkpoint)) == checkpoint
    for text in ("", "12", "sha256:ab@12", str(checkpoint).upper(), f"{checkpoint.hash}@0", f"{checkpoint.hash}@012"):
        with pytest.raises(ConfigError, match="not a checkpoint"):
            parse_checkpoint(text)


def test_the_key_is_not_printed_and_must_be_ecdsa() -> None:
    assert repr(KEY) == "IssuanceLogKey()"
    with pytest.raises(ConfigError, match="not an ECDSA key"):
        new_record(START, [entry()], IssuanceLogKey(generate_key("Ed25519")))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"signature": "!"}, id="a signature that is no base64"),
        pytest.param({"signature": b64(b"x")}, id="a signature that is no signature"),
        pytest.param({"signature": ""}, id="no signature"),
        pytest.param({"publicKey": b64(b"x")}, id="no key"),
        pytest.param(
            {"publicKey": b64(public_key_pem(generate_key("Ed25519").public_key()))}, id="another kind of key"
        ),
        pytest.param({"publicKey": b64(public_key_pem(generate_key().public_key()))}, id="another key"),
        pytest.param({"hash": BEFORE_FIRST}, id="another hash"),
    ],
)
def test_a_signature_that_does_not_verify_has_no_signer(change: Obj) -> None:
    (record,) = chain(1)
    assert signer_of(record["spec"]) == FINGERPRINT
    assert signer_of({**record["spec"], **change}) == ""


def test_a_chain_verifies() -> None:
    records = chain(5)
    result = verify(reversed(records), [Checkpoint(3, records[2]["spec"]["hash"])], {FINGERPRINT})
    assert (result.faults, result.records, len(result.entries)) == ([], 5, 5)
    assert result.head == checkpoint_of(records[-1])
    assert result.signers == {FINGERPRINT: 5}
    assert verify(chain(2, None)).signers == {"": 2}
    assert verify([]).head == START


def rewrite(records: list[Obj]) -> list[Obj]:
    """Write the chain again from the third record on, with another key."""
    other = IssuanceLogKey(generate_key())
    head = checkpoint_of(records[1])
    assert head is not None
    for index in range(2, len(records)):
        records[index], head = new_record(head, [entry("dead")], other)
    return records


def edit(records: list[Obj]) -> list[Obj]:
    records[2]["spec"]["entries"][0]["serialNumber"] = "beef"
    return records


def swap(records: list[Obj]) -> list[Obj]:
    records[2]["metadata"], records[3]["metadata"] = records[3]["metadata"], records[2]["metadata"]
    return records


def unsign(records: list[Obj]) -> list[Obj]:
    del records[2]["spec"]["signature"]
    return records


def missign(records: list[Obj]) -> list[Obj]:
    records[2]["spec"]["signature"] = records[1]["spec"]["signature"]
    return records


def misname(records: list[Obj]) -> list[Obj]:
    records[2]["metadata"]["name"] = "0000000000000002x"
    return records


@pytest.mark.parametrize(
    ("damage", "record", "message"),
    [
        pytest.param(edit, 3, "content was changed", id="an edit"),
        pytest.param(lambda records: records[:2] + records[3:], 4, "are missing, from 0000000000000003", id="a cut"),
        pytest.param(lambda records: records[1:], 2, "are missing, from 0000000000000001", id="a cut of the first"),
        pytest.param(swap, 3, "does not follow", id="a reorder"),
        pytest.param(rewrite, 3, "not one of the trusted keys", id="a chain rewritten"),
        pytest.param(unsign, 3, "it has no signature: someone removed it", id="a signature removed"),
        pytest.param(missign, 3, "signature does not verify", id="a signature of another record"),
        pytest.param(lambda records: records[:4], 5, "there were 5 records, and there are 4", id="a cut of the last"),
    ],
)
def test_the_first_bad_record_is_named(damage: Callable[[list[Obj]], list[Obj]], record: int, message: str) -> None:
    records = chain(5)
    head = checkpoint_of(records[-1])
    assert head is not None
    (fault,) = verify(damage(copy.deepcopy(records)), [head], {FINGERPRINT}).faults
    assert fault.record == record_name(record)
    assert message in fault.message


def test_a_chain_written_anew_with_the_key_meets_the_checkpoint() -> None:
    records = chain(3)
    head = checkpoint_of(records[-1])
    assert head is not None
    again, _ = new_record(Checkpoint(2, records[1]["spec"]["hash"]), [entry("dead")], KEY)
    (fault,) = verify([*records[:2], again], [head]).faults
    assert fault.record == record_name(3)
    assert "rewritten" in fault.message


def trim(to: Checkpoint | str, until: str = "2025-01-01T00:00:00Z") -> Obj:
    return {"time": "2026-01-01T00:00:00Z", "event": "Trimmed", "checkpoint": str(to), "notAfter": until}


def trimmed(count: int, to: Checkpoint | str | None = None) -> list[Obj]:
    """Return a chain whose fifth record allows the first `count` to be missing, or those up to `to`, and which still has them."""
    records = chain(4)
    head, mark = checkpoint_of(records[-1]), checkpoint_of(records[count - 1])
    assert head is not None
    fifth, head = new_record(head, [trim(to or mark or "")], KEY)
    return [*records, fifth, new_record(head, [entry("6")], KEY)[0]]


@pytest.mark.parametrize("missing", [0, 1, 2], ids=["before the first deletion", "half-way", "after the last"])
def test_a_chain_that_was_trimmed_verifies(missing: int) -> None:
    records = trimmed(2)
    result = verify(records[missing:], [Checkpoint(3, records[2]["spec"]["hash"])], {FINGERPRINT})
    assert result.faults == []
    assert (result.records, len(result.entries)) == (6 - missing, 5 - missing), "a trim is no certificate"
    assert result.start == (checkpoint_of(records[missing - 1]) if missing else START)
    assert result.trimmed_until == "2025-01-01T00:00:00Z"
    assert verify(chain(1)).trimmed_until == ""


def test_of_several_trims_the_latest_end_counts() -> None:
    records = trimmed(2)
    head = checkpoint_of(records[-1])
    mark = checkpoint_of(records[2])
    assert head is not None
    assert mark is not None
    again, _ = new_record(head, [trim(mark, "2024-01-01T00:00:00Z")], KEY)
    result = verify([*records[3:], again])
    assert (result.faults, result.start, result.trimmed_until) == ([], mark, "2025-01-01T00:00:00Z")


def test_a_trim_that_names_no_record_allows_nothing_and_is_no_certificate() -> None:
    result = verify(trimmed(2, "x"))
    assert (result.faults, result.start, result.trimmed_until, len(result.entries)) == ([], START, "", 5)


OTHER = "sha256:" + "f" * 64


@pytest.mark.parametrize(
    ("records", "record", "message"),
    [
        pytest.param(trimmed(2)[3:], 4, "are missing, from 0000000000000001", id="more are missing than it allows"),
        pytest.param(trimmed(2, f"{OTHER}@2")[2:], 2, "rewritten", id="it names another record"),
        pytest.param(trimmed(2, f"{OTHER}@2"), 2, "rewritten", id="and all are still there"),
        pytest.param(trimmed(2, "x")[2:], 3, "are missing, from 0000000000000001", id="it names none"),
        pytest.param(trimmed(2, f"{OTHER}@9"), 7, "there were 9 records, and there are 6", id="it names a later one"),
        pytest.param(
            [trimmed(2)[1], *trimmed(2)[3:]],
            4,
            "are missing, from 0000000000000003",
            id="a gap after those that are still there",
        ),
    ],
)
def test_a_chain_with_a_trim_has_a_fault_where(records: list[Obj], record: int, message: str) -> None:
    (fault,) = verify(records).faults
    assert message in fault.message
    assert fault.record == record_name(record)


def test_a_checkpoint_of_a_record_that_was_trimmed_cannot_be_compared() -> None:
    records = trimmed(2)
    (fault,) = verify(records[2:], [Checkpoint(1, records[0]["spec"]["hash"])]).faults
    assert fault.record == record_name(1)
    assert "it was trimmed" in fault.message


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        pytest.param([{"event": "Issued", "checkpoint": f"{OTHER}@1"}], "are missing", id="an entry of another event"),
        pytest.param([], "are missing", id="a record without entries"),
    ],
)
def test_what_allows_no_record_to_be_missing(entries: list[Obj], message: str) -> None:
    record, _ = new_record(Checkpoint(1, OTHER), entries, KEY)
    (fault,) = verify([record]).faults
    assert (fault.record, fault.message[:27]) == (record_name(2), "the records before it are m")
    assert message in fault.message


def test_the_first_record_follows_none() -> None:
    (fault,) = verify([new_record(Checkpoint(0, OTHER), [entry()], KEY)[0]]).faults
    assert "does not follow" in fault.message


@pytest.mark.parametrize(
    "spec",
    [pytest.param({}, id="without a spec"), pytest.param({"spec": {}}, id="with an empty one")],
)
def test_a_record_that_was_emptied_is_a_fault(spec: Obj) -> None:
    (fault,) = verify([{"metadata": {"name": record_name(3)}, **spec}]).faults
    assert "are missing" in fault.message
    records = trimmed(3)
    (fault,) = verify([{"metadata": records[2]["metadata"], **spec}, *records[3:]]).faults
    assert "does not follow" in fault.message


def test_a_record_without_entries_is_in_order() -> None:
    record, head = new_record(START, [], KEY)
    del record["spec"]["entries"]
    assert (verify([record]).faults, verify([record]).head) == ([], head)


def test_a_name_that_is_no_number_is_a_fault() -> None:
    (fault,) = verify(misname(chain(3))).faults
    assert fault.message == "the name is no sequence number"
    (fault,) = verify([{"metadata": {"name": record_name(1)}}]).faults
    assert "does not follow" in fault.message


def test_certificates_without_an_entry_are_found() -> None:
    (fault,) = unrecorded([entry("1")], [("1", "a"), ("2", "the certificate of n2")])
    assert (fault.record, fault.message[:21]) == ("", "the certificate of n2")


def issued(certificate: str, requester: str = "", credential: str = "", token: str = "", node: str = "") -> Obj:
    hashed = "X509SHA256=" + credential if credential else ""
    return entry(
        certificate, certificate="sha256:" + certificate, requester=requester, credential=hashed, token=token, node=node
    )


def test_certificates_descend_from_a_token_through_renewals() -> None:
    user, other = "system:node:n1", "system:node:n2"
    entries = [
        issued("a1", token="abcdef", node="n1"),
        issued("b1", token="fedcba", node="n2"),
        issued("a2", user, "a1", node="n1"),
        issued("b2", other, "b1", node="n2"),
        issued("a3", "system:recovering-node:n1", "a2", node="n1"),
        issued("serving", user, "a3"),
        issued("c1", token="fedcba", node="n1"),  # the Node was deleted, and another machine took the name
        issued("c2", user, "c1", node="n1"),
        issued("a4", user, "unknown", node="n1"),
        issued("d1", "jane", "unknown"),
    ]
    assert [one["serialNumber"] for one in descendants(entries, "abcdef")] == ["a1", "a2", "a3", "serving", "a4"]
    assert [one["serialNumber"] for one in descendants(entries, "fedcba")] == ["b1", "b2", "c1", "c2", "a4"]
    assert descendants(entries, "nobody") == []
    assert [one["serialNumber"] for one in descendants(entries[3:], "fedcba", {"n2"})] == ["b2", "c1", "c2", "a4"], (
        "of a log that was trimmed, with the names that the token obtained"
    )


def test_users_and_their_nodes() -> None:
    assert node_of_user("system:node:n1") == "n1"
    assert node_of_user("system:recovering-node:n1") == "n1"
    assert node_of_user("jane") == ""


def test_the_key_of_the_chain_is_that_of_a_server() -> None:
    assert isinstance(KEY.key, ec.EllipticCurvePrivateKey)
