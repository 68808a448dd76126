"""An edited cluster-info: the CAs in it that follow, the steps of a rollover that wait for it, and the credentials in it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import pytest
import yaml

from mooring.apimachinery.schema import Obj
from mooring.pki.x509.certificate import Certificate
from mooring.trust.discovery.clusterinfo import config_map
from mooring.trust.discovery.editedclusterinfo import (
    LAST_KEPT,
    LAST_WRITTEN,
    MAX_CREDENTIALS,
    MAX_PINS,
    PUBLISHED_CAS,
    PublishedCas,
    credentials_in,
    is_edited,
    is_new_edit,
    join_problem,
    misses,
    published_id,
    published_pins,
    rollover_obstacle,
    usable_problem,
    value_digest,
)
from mooring.trust.discovery.pins import pin_of
from tests.support.manualclock import EPOCH
from tests.support.testca import ThrowawayCA

OLD, NEW, FORMER, MINE, SIGNER = (ThrowawayCA(name, EPOCH) for name in ("old", "new", "former", "mine", "signer"))
URL = "https://192.0.2.1:6443"


def pem(*cas: ThrowawayCA) -> bytes:
    return b"".join(ca.certificate_pem for ca in cas)


def b64(*cas: ThrowawayCA) -> str:
    return base64.b64encode(pem(*cas)).decode()


def pin(ca: ThrowawayCA) -> str:
    return str(pin_of(ca.certificate))


def text_of(*cas: ThrowawayCA, clients: Sequence[ThrowawayCA] = (), others: Sequence[str] = ()) -> str:
    text: str = config_map(URL, pem(*cas), client_ca_pem=pem(*clients), others=others)["data"]["kubeconfig"]
    return text


def stored(text: str | None, **annotations: str) -> Obj:
    data = {} if text is None else {"kubeconfig": text}
    return {"kind": "ConfigMap", "metadata": {"name": "cluster-info", "annotations": annotations}, "data": data}


def cas(
    servers: Sequence[ThrowawayCA],
    clients: Sequence[ThrowawayCA] | None = None,
    ended: Sequence[ThrowawayCA] = (),
    record: Obj | None = None,
) -> PublishedCas:
    before = None if record is None else stored("", **{PUBLISHED_CAS: json.dumps(record)})
    issuing = [ca.certificate for ca in (servers if clients is None else clients)]
    return PublishedCas.of(before, pem(*servers), issuing, [ca.certificate for ca in ended])


BOTH = cas([OLD, NEW])
HALF = b"see -----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("before", "published", "after"),
    [
        pytest.param(text_of(OLD) + "# mine\n", BOTH, text_of(OLD, NEW) + "# mine\n", id="a comment"),
        pytest.param("# mine\n" + text_of(OLD, NEW), cas([NEW, OLD]), "# mine\n" + text_of(NEW, OLD), id="another order"),
        pytest.param(
            text_of(OLD).replace("192.0.2.1", "lb.example"), BOTH, text_of(OLD, NEW).replace("192.0.2.1", "lb.example"),
            id="another address",
        ),
        pytest.param(
            text_of(OLD, others=["https://192.0.2.2:6443"]) + "# mine\n", BOTH,
            text_of(OLD, NEW, others=["https://192.0.2.2:6443"]) + "# mine\n", id="further addresses",
        ),
        pytest.param(text_of(MINE, OLD), BOTH, text_of(MINE, OLD, NEW), id="a CA of the administrator in front"),
        pytest.param(text_of(OLD, MINE), BOTH, text_of(OLD, NEW, MINE), id="a CA of the administrator behind"),
        pytest.param(text_of(OLD, MINE, NEW), BOTH, text_of(OLD, MINE, NEW), id="all are there"),
        pytest.param(text_of(OLD, MINE, NEW), cas([NEW], ended=[OLD]), text_of(NEW, MINE), id="one was retired"),
        pytest.param(text_of(OLD), cas([NEW], ended=[OLD]), text_of(NEW), id="only the retired one, without a record"),
        pytest.param(text_of(OLD), cas([NEW], record={"servers": [pin(OLD)]}), text_of(NEW), id="one of the record"),
        pytest.param(text_of(OLD), cas([NEW]), text_of(OLD), id="one that is not known"),
        pytest.param(text_of(OLD), cas([NEW], record={"servers": 7}), text_of(OLD), id="a record that no server wrote"),
        pytest.param(text_of(OLD), cas([NEW], record={"servers": [7]}), text_of(OLD), id="a record of something else"),
        pytest.param(text_of(MINE), BOTH, text_of(MINE), id="only CAs of the administrator"),
        pytest.param(text_of(), BOTH, text_of(), id="no CA"),
        pytest.param(text_of(OLD), cas([], [NEW], [OLD]), text_of(OLD), id="none is known to verify the server"),
        pytest.param(
            text_of(MINE, clients=[OLD]), cas([MINE], [OLD, NEW]), text_of(MINE, clients=[OLD, NEW]), id="CAs of clients"
        ),
        pytest.param(
            text_of(MINE, OLD, clients=[OLD]), cas([MINE], [NEW], [OLD]), text_of(MINE, OLD, clients=[NEW]),
            id="servers have another CA, and the cluster's stands beside it by hand",
        ),
        pytest.param(
            text_of(SIGNER, clients=[OLD, SIGNER]) + "# mine\n", cas([MINE], [NEW, OLD, SIGNER], record={"servers": [pin(SIGNER)]}),
            text_of(MINE, clients=[NEW, OLD, SIGNER]) + "# mine\n", id="both change",
        ),
        pytest.param("not: [yaml", BOTH, "not: [yaml", id="not readable"),
        pytest.param("", BOTH, "", id="empty"),
        pytest.param("# nothing\n", BOTH, "# nothing\n", id="a comment alone"),
        pytest.param("clusters: [null, {name: a}]\n", BOTH, "clusters: [null, {name: a}]\n", id="empty entries"),
        pytest.param(
            '{"clusters": [{"name": "", "cluster": {"server": "s", "certificate-authority-data": "' + b64(OLD) + '"}}]}', BOTH,
            '{"clusters": [{"name": "", "cluster": {"server": "s", "certificate-authority-data": "' + b64(OLD, NEW) + '"}}]}',
            id="JSON",
        ),
        pytest.param(
            "clusters: [{cluster: {certificate-authority-data: aGVsbG8=}}]", BOTH,
            "clusters: [{cluster: {certificate-authority-data: aGVsbG8=}}]", id="not a certificate",
        ),
        pytest.param(
            text_of(OLD).replace(b64(OLD), base64.b64encode(pem(OLD) + HALF).decode()), BOTH,
            text_of(OLD).replace(b64(OLD), base64.b64encode(pem(OLD) + HALF).decode()), id="half a certificate in a comment",
        ),
        pytest.param(
            "clusters: [{cluster: {extensions: [null, {name: a, extension: {}}, {name: mooring.dev/client-ca, extension: {}}, "
            "{name: mooring.dev/client-ca, extension: {certificate-authority-data: '!'}}]}}]", BOTH,
            "clusters: [{cluster: {extensions: [null, {name: a, extension: {}}, {name: mooring.dev/client-ca, extension: {}}, "
            "{name: mooring.dev/client-ca, extension: {certificate-authority-data: '!'}}]}}]", id="odd extensions",
        ),
    ],
)  # fmt: skip
def test_the_clusters_own_cas_follow_and_all_else_stays(before: str, published: PublishedCas, after: str) -> None:
    followed = published.follow(before)
    assert followed == after
    assert published.follow(followed) == after, "it settles"


def test_text_around_certificates_stays() -> None:
    mine = b"subject=mine\n" + pem(MINE) + b"subject=old\n" + pem(OLD) + b"end"
    text = text_of(OLD).replace(b64(OLD), base64.b64encode(mine).decode())
    then = b"subject=mine\n" + pem(MINE) + b"subject=old\n" + pem(OLD, NEW) + b"end"
    assert BOTH.follow(text) == text_of(OLD).replace(b64(OLD), base64.b64encode(then).decode())


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(lambda data: f"|-\n      {data[:64]}\n      {data[64:]}", id="over lines"),
        pytest.param(lambda data: f'"{data[:64]}\\\n      {data[64:]}"', id="folded"),
        pytest.param(lambda data: f'"\\u{ord(data[0]):04x}{data[1:]}"', id="escaped"),
    ],
)
def test_a_bundle_that_is_written_otherwise_follows_without_comments(written: object) -> None:
    assert callable(written)
    text = "# mine\nextra: 1\n" + text_of(OLD).replace(b64(OLD), written(b64(OLD)))
    followed = BOTH.follow(text)
    assert yaml.safe_load(followed) == {**yaml.safe_load(text_of(OLD, NEW)), "extra": 1}
    assert BOTH.follow(followed) == followed


def test_one_bundle_with_two_meanings_follows_both() -> None:
    text = text_of(OLD, clients=[OLD, NEW]).replace(b64(OLD, NEW), b64(OLD))
    split = cas([MINE], [NEW], [OLD], record={"servers": [pin(OLD)]})
    assert yaml.safe_load(split.follow(text)) == yaml.safe_load(text_of(MINE, clients=[NEW]))


def test_the_record_names_what_was_published_the_newest_first_and_is_bounded() -> None:
    record = {
        "servers": [pin(OLD), *(f"sha256:{number:064x}" for number in range(2 * MAX_PINS))],
        "clients": [pin(OLD)],
    }
    written = json.loads(cas([NEW], record=record).annotation())
    assert written["servers"][:2] == [pin(NEW), pin(OLD)]
    assert len(written["servers"]) == MAX_PINS
    assert written["clients"] == [pin(NEW), pin(OLD)]


def test_an_edit_is_new_until_a_server_kept_it() -> None:
    text, digest = text_of(OLD), value_digest(text_of(OLD))
    own = stored(text, **{LAST_WRITTEN: json.dumps({"kubeconfig": digest})})
    assert not is_edited(own)
    edited = {**own, "data": {"kubeconfig": text + "#"}}
    assert is_edited(edited)
    assert is_new_edit(edited)
    kept = json.dumps({"kubeconfig": value_digest(text + "#")})
    kept_obj = {**edited, "metadata": {"annotations": {**own["metadata"]["annotations"], LAST_KEPT: kept}}}
    assert is_edited(kept_obj)
    assert not is_new_edit(kept_obj)
    for annotation in ("not JSON", "[]", "[" * 100_000, '{"kubeconfig": 1}'):
        assert is_edited(stored(text, **{LAST_WRITTEN: annotation}))


NOT_USABLE = "the ConfigMap kube-public/cluster-info cannot be used: "
LACKS = "the ConfigMap kube-public/cluster-info does not hold the new CA "


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(text_of(OLD, NEW), "", id="both"),
        pytest.param(text_of(NEW), "", id="only the CA that stays"),
        pytest.param(text_of(OLD), LACKS, id="only the CA that leaves"),
        pytest.param(text_of(OLD, MINE), LACKS, id="beside one of the administrator"),
        pytest.param(text_of(FORMER), LACKS, id="one that left earlier"),
        pytest.param(text_of(MINE), "", id="another CA verifies servers"),
        pytest.param(text_of(), "", id="roots of the machines verify servers"),
        pytest.param(text_of(MINE, clients=[OLD]), LACKS, id="of clients, only the CA that leaves"),
        pytest.param(text_of(MINE, clients=[OLD, NEW]), "", id="of clients, both"),
        pytest.param(None, NOT_USABLE + "it has no key kubeconfig", id="no kubeconfig"),
        pytest.param("not: [yaml", NOT_USABLE + "the kubeconfig is neither YAML nor JSON", id="not readable"),
        pytest.param("", NOT_USABLE + "the kubeconfig has neither", id="empty"),
        pytest.param(text_of(OLD).replace("https", "http"), NOT_USABLE + "its server is not an https URL", id="not https"),
        pytest.param(
            text_of(OLD).replace(b64(OLD), "aGVsbG8="), NOT_USABLE + "its CA cannot be read", id="not a certificate"
        ),
        pytest.param(
            text_of(MINE, clients=[OLD]).replace(b64(OLD), "aGVsbG8="), NOT_USABLE + "its CA of client certificates",
            id="of clients, not a certificate",
        ),
        pytest.param(
            text_of(OLD).replace("certificate-authority-data: " + b64(OLD), "certificate-authority: /ca.crt"),
            NOT_USABLE + "it names a file", id="a file",
        ),
    ],
)  # fmt: skip
def test_an_obstacle_names_the_configmap_and_what_to_do(text: str | None, sentence: str) -> None:
    said = rollover_obstacle(stored(text), OLD.certificate, NEW.certificate, [pin(FORMER)], "new")
    assert said.startswith(sentence)
    assert bool(said) == bool(sentence)
    assert ("kubectl -n kube-public delete configmap cluster-info" in said) == bool(sentence)
    assert ("pki/rollover/new.crt" in said) == (sentence == LACKS)
    assert bool(usable_problem(stored(text))) == (NOT_USABLE in sentence)


def test_a_missing_and_an_immutable_cluster_info_are_obstacles() -> None:
    assert "is missing" in rollover_obstacle(None, OLD.certificate, NEW.certificate, (), "new")
    fixed = {**stored(text_of(NEW)), "immutable": True}
    said = rollover_obstacle(fixed, NEW.certificate, OLD.certificate, (), "old")
    assert f"does not hold the old CA {pin(OLD)}" in said
    assert "it is immutable: delete it" in said
    assert "append" not in said


@pytest.mark.parametrize(
    ("config_map", "known", "sentence"),
    [
        (stored(text_of(OLD)), pem(OLD), ""),
        (stored(text_of(OLD)), b"", ""),
        (stored(text_of(OLD)), pem(NEW), "it names no CA of this kubeconfig"),
        (stored("[]"), pem(OLD), "this is not a kubeconfig"),
        (None, pem(OLD), "it is missing, and no machine can join by token"),
        ({**stored(text_of(OLD)), "immutable": True}, pem(OLD), "it is immutable: it cannot be signed for new tokens"),
    ],
)
def test_why_a_join_line_that_is_printed_now_would_fail(config_map: Obj | None, known: bytes, sentence: str) -> None:
    said = join_problem(config_map, known)
    assert said.startswith(sentence)
    assert bool(said) == bool(sentence)


def test_a_ca_stands_for_those_that_it_issued() -> None:
    root = ThrowawayCA("company", EPOCH)
    below = [Certificate(root.intermediate(f"cluster {number}").der) for number in (1, 2)]
    assert not misses([root.certificate], below[0], below[1])
    assert misses([root.certificate], below[0], NEW.certificate)
    assert not misses([MINE.certificate], below[0], NEW.certificate)


def test_published_pins_are_those_of_servers() -> None:
    assert published_pins(stored(text_of(OLD, MINE, clients=[NEW]))) == (pin(OLD), pin(MINE))
    assert published_pins(stored(text_of())) == ()
    assert published_pins(stored("not: [yaml")) == ()
    assert published_pins(stored(None)) == ()


KEY = base64.b64encode(b"private").decode()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param("", (), id="nothing"),
        pytest.param("users: [{name: a, user: {token: hush}}]", ('user "a" has a token',), id="a token"),
        pytest.param("users: [{name: a, user: {tokenFile: /hush}}]", ('user "a" has a token file',), id="a token file"),
        pytest.param(
            "users: [{name: a, user: {username: a, password: hush}}]", ('user "a" has a user name or password',), id="a password"
        ),
        pytest.param(
            "users: [{name: a, user: {client-key-data: " + KEY + "}}]", ('user "a" has a client certificate or its key',),
            id="a key",
        ),
        pytest.param(
            "users: [{name: a, user: {exec: {command: hush, env: [{name: P, value: hush}]}}}]", ('user "a" has an exec plugin',),
            id="a plugin",
        ),
        pytest.param(
            "users: [{name: a, user: {auth-provider: {name: oidc, config: {refresh-token: hush}}}}]",
            ('user "a" has an auth-provider',), id="a provider",
        ),
        pytest.param("users: [{name: a, user: {as: b}}]", (), id="no credential"),
        pytest.param(
            "users: [{name: a, user: {token: hush}}, {name: \"b\\n\", user: {token: hush, exec: {command: x}}}]",
            ('user "a" has a token', 'user "b\\n" has a token', 'user "b\\n" has an exec plugin'), id="several",
        ),
        pytest.param("not: [yaml", (), id="not readable"),
        pytest.param(
            "a: &a 1\nusers: [{name: a, user: {\"token\": hush, exec: {}, token: hush}}]",
            ("it cannot be read, and has a field token", "it cannot be read, and has a field exec"), id="not readable here",
        ),
    ],
)  # fmt: skip
def test_credentials_are_named_without_the_secret(more: str, said: tuple[str, ...]) -> None:
    found = credentials_in(stored(text_of(OLD).replace("users: null\n", "") + more))
    assert found == said
    assert "hush" not in repr(found)
    assert KEY not in repr(found)


@pytest.mark.parametrize("url", ["https://me:hush@a:1", "https://hush@a", "me:hush@a:1", "socks5://me:hush@a/x"])
@pytest.mark.parametrize("key", ["server", "proxy-url"])
def test_credentials_in_an_address_are_named(key: str, url: str) -> None:
    text = f"clusters: [{{name: a, cluster: {{{key}: '{url}'}}}}, {{name: b, cluster: {{{key}: 'https://b/x?y=a@b'}}}}]"
    assert credentials_in(stored(text)) == (f'cluster "a" has a user name or password in its {key}',)
    assert credentials_in(stored(None)) == ()


def test_a_bounded_number_of_credentials_is_named() -> None:
    users = [{"name": f"u{number}", "user": {"token": "hush"}} for number in range(3 * MAX_CREDENTIALS)]
    assert len(credentials_in(stored(json.dumps({"users": users})))) == MAX_CREDENTIALS


def test_a_ca_whose_key_cannot_be_pinned_is_not_the_clusters_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from mooring.trust.discovery import editedclusterinfo
    from mooring.trust.discovery.pins import PinError

    def refuse(certificate: Certificate) -> None:
        raise PinError("unknown")

    monkeypatch.setattr(editedclusterinfo, "pin_of", refuse)
    assert cas([NEW], ended=[OLD]).follow(text_of(OLD)) == text_of(OLD)


def test_the_published_id_is_that_of_the_extension() -> None:
    info = config_map("https://a.test:6443", OLD.certificate_pem, cluster_id="a-b-c")
    assert published_id(info) == "a-b-c"
    assert published_id({"data": {}}) == ""
