"""Files of a member, and their repair after a crash."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import disk, leave
from mooring.agent.k3s.files import DATA_DIR, AgentFiles
from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.pairfiles import Pair, PairFiles
from mooring.agent.state import LOAD_BALANCER, NodeState
from mooring.client import kubeconfigfiles
from mooring.errors import ConfigError
from mooring.pki.keys import generate_key, public_key_der
from mooring.pki.x509.certificate import Certificate
from mooring.secret import Secret
from mooring.trust.discovery.refresh import BASE, MergeBase, digest
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, select_context, user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig, parse_kubeconfig
from tests.support.manualclock import ManualClock
from tests.support.testca import ThrowawayCA

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CA = ThrowawayCA()
OTHER = ThrowawayCA("somebody else")
JOINER = KubeconfigUser("joiner", token=Secret("abcdef.0123456789abcdef"))


def pair(name: str = "m1") -> Pair:
    made = CA.node(name)
    return Pair((made.certificate,), made.key)


def leaf_of(files: PairFiles) -> Certificate | None:
    found = files.read_pair()
    return None if found is None else found.leaf


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    return NodeState(tmp_path)


def test_a_pair_is_kept_under_its_time_and_linked(state: NodeState) -> None:
    kept = pair()
    path = state.client.write_pair(kept, NOW)
    assert path == state.certificates / "kubelet-client-2026-01-02-03-04-05.pem"
    assert state.client.current.readlink() == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.certificates.stat().st_mode) == 0o755
    text = path.read_text()
    assert text.index("BEGIN CERTIFICATE") < text.index("BEGIN PRIVATE KEY")
    read = state.client.read_pair()
    assert read is not None
    assert read.leaf == kept.leaf
    assert not state.client.updated.is_symlink()


def test_a_second_pair_becomes_the_current_one_and_the_first_stays(state: NodeState) -> None:
    first = state.client.write_pair(pair(), NOW)
    newer = pair()
    state.client.write_pair(newer, NOW.replace(minute=9))
    read = state.client.read_pair()
    assert read is not None
    assert read.leaf == newer.leaf
    assert first.exists()


@pytest.mark.parametrize("moment", ["symlink", "rename"])
def test_a_crash_in_the_swap_leaves_a_current_pair(
    state: NodeState, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    old, new = pair(), pair()
    state.client.write_pair(old, NOW)

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "symlink":
            patch.setattr(Path, "symlink_to", crash)
        else:
            patch.setattr(disk, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            state.client.write_pair(new, NOW.replace(minute=9))
    read = NodeState(state.root).client.read_pair()
    assert read is not None
    assert read.leaf == (old.leaf if moment == "symlink" else new.leaf)
    assert not state.client.updated.is_symlink()


def test_another_process_that_reads_while_a_pair_is_placed_may_finish_it(
    state: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.client.write_pair(pair(), NOW)
    new, link, reader = pair(), disk.link, NodeState(state.root).client

    def link_and_be_read(path: Path, target: Path) -> None:
        link(path, target)
        assert leaf_of(reader) == new.leaf

    with monkeypatch.context() as patch:
        patch.setattr(disk, "link", link_and_be_read)
        state.client.write_pair(new, NOW.replace(minute=9))
    assert leaf_of(state.client) == new.leaf


def test_another_process_may_finish_a_replacement_before_the_one_that_reads(
    state: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.client.write_pair(pair(), NOW)
    new, rename = pair(), disk.rename
    path = state.client.write_pair(new, NOW.replace(minute=9))
    state.client.updated.symlink_to(path)

    def rename_after_another(old: Path, new: Path) -> None:
        rename(old, new)
        rename(old, new)

    monkeypatch.setattr(disk, "rename", rename_after_another)
    assert leaf_of(state.client) == new.leaf


def test_a_pair_that_another_process_replaced_is_not_taken_for_placed(
    state: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.client.write_pair(pair(), NOW)
    link = disk.link

    def link_and_lose(path: Path, target: Path) -> None:
        link(path, target)
        path.unlink()

    monkeypatch.setattr(disk, "link", link_and_lose)
    with pytest.raises(ConfigError, match="cannot be written"):
        state.client.write_pair(pair(), NOW.replace(minute=9))


def test_a_leftover_link_to_nowhere_is_removed(state: NodeState) -> None:
    kept = pair()
    state.client.write_pair(kept, NOW)
    state.client.updated.symlink_to(state.certificates / "never-written.pem")
    read = state.client.read_pair()
    assert read is not None
    assert read.leaf == kept.leaf
    assert not state.client.updated.is_symlink()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="an empty file"),
        pytest.param(b"junk", id="junk"),
        pytest.param(pair().certificate_pem, id="a certificate without a key"),
        pytest.param(pair().key_pem.reveal(), id="a key without a certificate"),
        pytest.param(pair().certificate_pem + pair().key_pem.reveal(), id="the key of another certificate"),
    ],
)
def test_an_unusable_pair_reads_as_none(state: NodeState, content: bytes) -> None:
    path = state.client.write_pair(pair(), NOW)
    path.write_bytes(content)
    assert state.client.read_pair() is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "the text holds no CERTIFICATE PEM block", id="an empty file, as after a loss of power"),
        pytest.param(pair().certificate_pem, "the text holds no private key in PEM form", id="a certificate alone"),
        pytest.param(
            pair().certificate_pem + pair().key_pem.reveal(),
            "the key is that of another certificate",
            id="the key of another certificate",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_the_pair_of_before_is_used(
    state: NodeState, content: bytes, reason: str
) -> None:
    first = pair()
    state.client.write_pair(first, NOW)
    state.client.write_pair(pair(), NOW.replace(minute=9)).write_bytes(content)
    assert state.problems() == (f"{state.client.current}: {reason}",)
    assert leaf_of(state.client) == first.leaf
    state.client.set_aside()
    assert leaf_of(state.client) is None, "a rejected certificate is followed by none of before"


def test_a_link_to_nowhere_and_an_empty_kubeconfig_are_named(state: NodeState) -> None:
    assert state.problems() == ()
    state.client.write_pair(pair(), NOW).unlink()
    disk.write(state.kubeconfig, b"")
    certificate, kubeconfig = state.problems()
    assert certificate == f"{state.client.current} cannot be read: no such file or directory; check the path"
    assert kubeconfig.startswith(f"{state.kubeconfig}: ")


def test_the_pending_key_outlives_a_crash_and_goes_when_dropped(state: NodeState) -> None:
    key = generate_key()
    state.write_pending_key(key)
    assert stat.S_IMODE(state.pending_key.stat().st_mode) == 0o600
    read = NodeState(state.root).read_pending_key()
    assert read is not None
    assert public_key_der(read) == public_key_der(key)
    state.drop_pending_key()
    state.drop_pending_key()
    assert state.read_pending_key() is None


def test_ca_crt_is_written_once(state: NodeState) -> None:
    assert state.write_ca(CA.certificate_pem)
    assert not state.write_ca(CA.certificate_pem + OTHER.certificate_pem)
    assert state.read_ca() == CA.certificate_pem


def test_ca_crt_of_another_cluster_is_never_replaced(state: NodeState) -> None:
    state.write_ca(OTHER.certificate_pem)
    with pytest.raises(ConfigError, match="holds the CA of another cluster"):
        state.write_ca(CA.certificate_pem)
    assert state.read_ca() == OTHER.certificate_pem


def test_ca_crt_that_cannot_be_read_is_told(state: NodeState) -> None:
    state.write_ca(CA.certificate_pem)
    state.ca.write_bytes(b"junk")
    with pytest.raises(ConfigError, match=r"cannot be used: .*; move it away and join again"):
        state.check_ca(CA.certificate_pem)


def test_kubelet_conf_is_kubelets_own(state: NodeState) -> None:
    state.write_kubeconfig([Cluster("c", "https://api.test:6443", CA.certificate_pem, tls_server_name="api")])
    config = parse_kubeconfig(state.kubeconfig.read_bytes())
    selected = select_context(config)
    assert (config.current_context, selected.namespace) == ("default-context", "default")
    assert selected.user.certificate_file == selected.user.key_file == str(state.client.current)
    assert state.read_cluster() == selected.cluster
    assert selected.cluster.tls_server_name == "api"
    assert stat.S_IMODE(state.kubeconfig.stat().st_mode) == 0o600


BOTH = CA.certificate_pem + OTHER.certificate_pem
FIRST = Cluster("a.test:6443", "https://a.test:6443", CA.certificate_pem)
SECOND = Cluster("b.test:6443", "https://b.test:6443", CA.certificate_pem)
PUBLISHED = MergeBase((FIRST.server, SECOND.server), digest(CA.certificate_pem), digest(CA.certificate_pem))


def test_every_address_is_kept_and_the_first_is_the_one_of_the_context(state: NodeState) -> None:
    assert state.write_kubeconfig([FIRST, SECOND], PUBLISHED)
    found = state.read_clusters()
    assert [(one.server, one.ca_pem) for one in found] == [(one.server, one.ca_pem) for one in (FIRST, SECOND)]
    assert state.read_base() == PUBLISHED
    config = parse_kubeconfig(state.kubeconfig.read_bytes())
    assert select_context(config).cluster.server == FIRST.server


def test_kubelet_conf_is_written_only_when_it_changes(state: NodeState) -> None:
    state.write_kubeconfig([FIRST, SECOND], PUBLISHED)
    inode = state.kubeconfig.stat().st_ino
    assert not state.write_kubeconfig([FIRST, SECOND], PUBLISHED)
    assert state.kubeconfig.stat().st_ino == inode
    assert state.write_kubeconfig([SECOND], PUBLISHED)
    assert [one.server for one in state.read_clusters()] == [SECOND.server]


def test_what_others_wrote_into_kubelet_conf_stays(state: NodeState) -> None:
    config = user_kubeconfig(
        FIRST.server, CA.certificate_pem, KubeconfigUser("system:node:m1", certificate_file="/x", key_file="/x")
    )
    state.write_ca(CA.certificate_pem)
    theirs = {"name": "theirs", "extension": {"note": "kept"}}
    first = replace(config.clusters[0], extensions=(theirs,), ca_pem=b"", ca_file=str(state.ca))
    config = replace(config, clusters=(first, Cluster("another", "https://other.test", CA.certificate_pem)))
    state.kubeconfig.write_text(format_kubeconfig(config))

    assert state.write_kubeconfig([SECOND, FIRST], PUBLISHED)
    after = parse_kubeconfig(state.kubeconfig.read_bytes())
    assert (after.users, after.contexts) == (config.users, config.contexts)
    assert [one.name for one in after.clusters] == ["kubernetes", FIRST.name, "another"]
    assert [one["name"] for one in after.clusters[0].extensions] == ["theirs", BASE]
    assert state.write_kubeconfig([SECOND], from_scratch=True)
    assert parse_kubeconfig(state.kubeconfig.read_bytes()).users[0].certificate_file == str(state.client.current)


# ── the load balancer ────────────────────────────────────────────────────────────────────────────────────────────────


def balanced(root: Path, port: int = 6444, *seeds: str) -> NodeState:
    """Return the files for a run with a load balancer, which need not listen for them."""
    return NodeState(root, LoadBalancer(port, [f"https://{one}" for one in seeds], ManualClock()))


def used(state: NodeState) -> Cluster:
    """Return the cluster that a kubelet uses."""
    return select_context(parse_kubeconfig(state.kubeconfig.read_bytes())).cluster


def test_kubelet_conf_names_the_load_balancer_and_beside_it_the_servers(tmp_path: Path) -> None:
    state = balanced(tmp_path, 6444, "a.test:6443", "c.test:6443")
    assert state.write_kubeconfig([FIRST, SECOND], PUBLISHED, balanced=True)
    found = used(state)
    assert (found.server, found.tls_server_name, found.ca_pem) == (
        "https://127.0.0.1:6444",
        "kubernetes.default.svc",
        CA.certificate_pem,
    )
    again = NodeState(tmp_path)
    assert again.is_balanced()
    assert again.read_clusters() == (FIRST, SECOND)
    assert again.read_base() == PUBLISHED
    assert again.read_seeds() == ("a.test:6443", "c.test:6443")
    assert not state.write_kubeconfig([FIRST, SECOND], PUBLISHED, balanced=True), "nothing has changed"


def test_a_name_by_which_the_servers_are_verified_stays_their_name_behind_the_load_balancer(tmp_path: Path) -> None:
    named = replace(FIRST, tls_server_name="api", proxy_url="http://proxy.test:3128")
    state = balanced(tmp_path)
    state.write_kubeconfig([named], balanced=True)
    assert (used(state).tls_server_name, used(state).proxy_url) == ("api", "")
    assert state.read_clusters() == (named,)


@pytest.mark.parametrize(
    ("port", "server", "name"),
    [
        pytest.param(6444, "https://127.0.0.1:6444", "kubernetes.default.svc", id="the same port"),
        pytest.param(7444, "https://127.0.0.1:7444", "kubernetes.default.svc", id="another port"),
        pytest.param(None, FIRST.server, "", id="switched off"),
    ],
)
def test_the_load_balancer_of_an_earlier_run_is_replaced_without_a_server(
    tmp_path: Path, port: int | None, server: str, name: str
) -> None:
    before = balanced(tmp_path, 6444, "seed.test:6443")
    before.write_kubeconfig([FIRST, SECOND], PUBLISHED, balanced=True)
    state = NodeState(tmp_path) if port is None else balanced(tmp_path, port, *before.read_seeds())
    assert state.settle_address() is (port != 6444)
    assert (used(state).server, used(state).tls_server_name) == (server, name)
    assert [one.server for one in state.read_clusters()] == [FIRST.server, SECOND.server]
    assert state.read_base() == PUBLISHED
    assert state.is_balanced() is (port is not None)
    assert state.read_seeds() == (() if port is None else ("seed.test:6443",))
    assert not state.settle_address()


def test_a_load_balancer_is_not_named_before_it_has_proved_itself(tmp_path: Path) -> None:
    NodeState(tmp_path).write_kubeconfig([FIRST], PUBLISHED)
    state = balanced(tmp_path)
    assert not state.settle_address()
    assert used(state).server == FIRST.server


def test_a_ca_that_is_set_by_hand_for_the_load_balancer_is_that_of_the_servers(tmp_path: Path) -> None:
    """None of the servers was found any more, so that the machine was no member of a cluster."""
    state, both = balanced(tmp_path), CA.certificate_pem + OTHER.certificate_pem
    state.write_kubeconfig([FIRST, SECOND], PUBLISHED, balanced=True)
    config = parse_kubeconfig(state.kubeconfig.read_bytes())
    changed = (replace(config.clusters[0], ca_pem=both), *config.clusters[1:])
    state.kubeconfig.write_text(format_kubeconfig(replace(config, clusters=changed)))
    known = state.read_clusters()
    assert [(one.server, one.ca_pem) for one in known] == [(FIRST.server, both), (SECOND.server, both)]
    assert state.write_kubeconfig(known, PUBLISHED, balanced=True)
    assert state.read_clusters() == known
    assert used(state).ca_pem == both


@pytest.mark.parametrize(
    "content", [None, {}, {"servers": "a.test:6443"}, {"servers": [7, "no address/", {}]}], ids=str
)
def test_seeds_that_cannot_be_read_are_none(tmp_path: Path, content: object) -> None:
    state = balanced(tmp_path, 6444, "a.test:6443")
    state.write_kubeconfig([FIRST], PUBLISHED, balanced=True)
    config = parse_kubeconfig(state.kubeconfig.read_bytes())
    damaged = replace(config.clusters[0], extensions=({"name": LOAD_BALANCER, "extension": content},))
    state.kubeconfig.write_text(format_kubeconfig(replace(config, clusters=(damaged, *config.clusters[1:]))))
    assert state.read_seeds() == ()
    assert state.is_balanced()
    assert state.read_clusters() == (FIRST,)


def test_an_address_in_the_place_of_the_load_balancer_is_that_of_a_server(tmp_path: Path) -> None:
    state = balanced(tmp_path, 6444, "a.test:6443")
    state.write_kubeconfig([FIRST], PUBLISHED, balanced=True)
    config = parse_kubeconfig(state.kubeconfig.read_bytes())
    by_hand = replace(config.clusters[0], server="https://c.test:6443")
    state.kubeconfig.write_text(format_kubeconfig(replace(config, clusters=(by_hand, *config.clusters[1:]))))
    after = NodeState(tmp_path)
    assert not after.is_balanced()
    assert not after.settle_address()
    assert [one.server for one in after.read_clusters()] == ["https://c.test:6443", FIRST.server]
    assert after.read_seeds() == ("a.test:6443",)


def test_a_machine_without_kubelet_conf_has_no_load_balancer(state: NodeState) -> None:
    assert not state.is_balanced()
    assert state.read_seeds() == ()
    assert not state.settle_address()


@pytest.mark.parametrize(
    ("kept", "base", "found", "after"),
    [
        pytest.param(CA.certificate_pem, PUBLISHED, BOTH, BOTH, id="a CA was added"),
        pytest.param(CA.certificate_pem, PUBLISHED, OTHER.certificate_pem, OTHER.certificate_pem, id="it was replaced"),
        pytest.param(BOTH, PUBLISHED, CA.certificate_pem, BOTH, id="somebody else added one here"),
        pytest.param(CA.certificate_pem, None, BOTH, CA.certificate_pem, id="nothing is known of what was published"),
        pytest.param(CA.certificate_pem, PUBLISHED, b"", CA.certificate_pem, id="none is published any more"),
    ],
)
def test_ca_crt_follows_from_what_was_published_before(
    state: NodeState, kept: bytes, base: MergeBase | None, found: bytes, after: bytes
) -> None:
    state.write_ca(kept)
    assert state.write_ca(found, base) is (kept != after)
    assert state.read_ca() == after


def test_the_bootstrap_kubeconfig_holds_the_token_until_it_is_dropped(state: NodeState) -> None:
    reached = Cluster(
        "any",
        "https://api.test:6443",
        CA.certificate_pem,
        tls_server_name="api",
        proxy_url="http://proxy.test:3128",
        disable_compression=True,
        extensions=({"name": "x"},),
    )
    state.write_bootstrap(reached, JOINER)
    assert kubeconfigfiles.load(str(state.bootstrap)).cluster == replace(reached, name="kubernetes", extensions=())
    assert stat.S_IMODE(state.bootstrap.stat().st_mode) == 0o600
    assert "abcdef.0123456789abcdef" in state.bootstrap.read_text()
    state.drop_bootstrap()
    assert not state.bootstrap.exists()


def test_a_root_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("a file is in the way")
    with pytest.raises(ConfigError, match=r"the directory .* cannot be made"):
        NodeState(tmp_path).write_pending_key(generate_key())


def test_keys_that_others_reach_are_told_with_the_command_that_mends_them(state: NodeState) -> None:
    assert state.exposures() == []
    state.write_bootstrap(FIRST, JOINER)
    state.write_pending_key(generate_key())
    assert state.exposures() == []
    state.pending_key.chmod(0o644)
    state.bootstrap.chmod(0o660)
    assert state.exposures() == [
        f"{state.pending_key} can be read by other users of this machine: run chmod 600 {state.pending_key}",
        f"{state.bootstrap} can be changed by other users of this machine: run chmod 600 {state.bootstrap}",
    ]
    state.certificates.chmod(0o777)
    assert f"run chmod 700 {state.certificates}" in state.exposures()[0]


@pytest.mark.parametrize("proxy", ["ftp://proxy.test", "proxy.test:3128", "http://[::1", "http://proxy.test/\x1b"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_further_address_whose_proxy_cannot_be_used_does_not_make_the_file_unusable(
    state: NodeState, proxy: str, is_new: bool
) -> None:
    """cluster-info may name it. The file was refused as a whole, so that the machine was a member no more."""
    used, good = Cluster("a", "https://a:6443", CA.certificate_pem), Cluster("c", "https://c:6443", CA.certificate_pem)
    bad = Cluster("b", "https://b:6443", CA.certificate_pem, proxy_url=proxy)
    if not is_new:
        state.write_kubeconfig((used, good))
    state.write_kubeconfig((used, bad, good), from_scratch=is_new)
    assert [one.server for one in state.read_clusters()] == [used.server, good.server]
    assert not any(str(state.kubeconfig) in one for one in state.problems())


def test_one_address_in_two_spellings_is_one_entry(state: NodeState) -> None:
    urls = ("https://a:6443", "https://b:6443", "HTTPS://b:6443/", "https://c:6443", "https://b:6443/")
    state.write_kubeconfig([Cluster("x", url, CA.certificate_pem) for url in urls], from_scratch=True)
    assert [one.server for one in state.read_clusters()] == ["https://a:6443", "https://b:6443", "https://c:6443"]


@pytest.mark.parametrize(
    ("name", "by_hand", "after"),
    [
        pytest.param("b:6443", {"ca_pem": OTHER.certificate_pem}, ["a", "b", "c"], id="another CA"),
        pytest.param("b:6443", {"ca_pem": b"", "ca_file": "/x/ca.crt"}, ["a", "b", "c"], id="a file as its CA"),
        pytest.param(
            "b:6443", {"ca_pem": b"", "insecure_skip_tls_verify": True}, ["a", "b", "c"], id="no verification"
        ),
        pytest.param("b:6443", {"server": "https://balancer:6443"}, ["a", "c"], id="another address"),
    ],
)
def test_a_further_entry_that_was_changed_by_hand_keeps_no_refresh_from_being_written(
    state: NodeState, name: str, by_hand: dict[str, Any], after: list[str]
) -> None:
    """It was written a second time beside it, so that no program could read the file, and then not at all any more."""
    clusters = [Cluster("", f"https://{host}:6443", CA.certificate_pem) for host in ("a", "b", "c")]
    state.write_kubeconfig(clusters)
    config = parse_kubeconfig(state.kubeconfig.read_bytes())
    changed = (replace(one, **by_hand) if one.name == name else one for one in config.clusters)
    state.kubeconfig.write_text(format_kubeconfig(replace(config, clusters=tuple(changed))))
    assert state.write_kubeconfig(clusters, PUBLISHED)
    assert [one.server for one in state.read_clusters()] == [f"https://{host}:6443" for host in after]
    assert not any(str(state.kubeconfig) in one for one in state.problems())


def test_a_cluster_in_use_that_is_named_by_an_address_stays_the_one_in_use(state: NodeState) -> None:
    clusters = [Cluster("", f"https://{host}:6443", CA.certificate_pem) for host in ("a", "b", "c")]
    user = KubeconfigUser("system:node:m1", certificate_file="/x", key_file="/x")
    state.kubeconfig.parent.mkdir(parents=True)
    state.kubeconfig.write_text(
        format_kubeconfig(user_kubeconfig(clusters[0].server, CA.certificate_pem, user, "a:6443"))
    )
    assert state.write_kubeconfig([clusters[1], clusters[0], clusters[2]], PUBLISHED)
    assert [one.server for one in state.read_clusters()] == [clusters[1].server, clusters[2].server]


def test_a_kubelet_conf_that_could_not_be_read_again_is_not_written(state: NodeState) -> None:
    used = Cluster("a", "https://a:6443", CA.certificate_pem)
    state.write_kubeconfig((used,), from_scratch=True)
    with pytest.raises(ConfigError, match=r"kubelet\.conf is not written, as it could not be read again: "):
        state.write_kubeconfig((used, Cluster("b", "https://b:6443/\udc80", CA.certificate_pem)))
    assert [one.server for one in state.read_clusters()] == [used.server]


@pytest.mark.parametrize("way", ["kubeadm", "k3s"])
def test_the_record_of_the_machine_goes_last_and_alone_is_no_membership(tmp_path: Path, way: str) -> None:
    member = NodeState(tmp_path) if way == "kubeadm" else AgentFiles(tmp_path, DATA_DIR)
    certificate = member.client.current
    for path in (certificate, member.record.path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = leave.find(tmp_path, DATA_DIR)
    assert found is not None
    assert found.files == (certificate, member.record.path), (
        "the rest of copied files counts as copied until it is gone"
    )
    certificate.unlink()
    assert leave.find(tmp_path, DATA_DIR) is None
