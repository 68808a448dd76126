"""Kubeconfig model: build, select, merge, flatten, validate.

Source: docs/protocol/discovery-and-join.md, docs/protocol/kubeadm-init.md, docs/protocol/kubelet-certificates.md#kubeconfig.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mooring.apimachinery.schema import Obj
from mooring.secret import Secret
from mooring.trust.kubeconfig import (
    CLIENT_CA,
    AuthProvider,
    Cluster,
    ExecPlugin,
    Kubeconfig,
    KubeconfigContext,
    KubeconfigError,
    KubeconfigUser,
    Selected,
    address_of,
    client_cas,
    cluster_info_kubeconfig,
    discovery_cluster,
    flatten_cluster,
    flatten_user,
    kubeconfig_problems,
    kubelet_kubeconfig,
    merge_kubeconfigs,
    other_addresses,
    refuse_relative_commands,
    resolve_paths,
    select_context,
    user_kubeconfig,
    validate_kubeconfig,
)

ADMIN = user_kubeconfig("https://c.test:6443", b"CA", KubeconfigUser("admin", certificate_pem=b"C", key=Secret("K")))


def test_cluster_info_is_one_cluster_without_a_name() -> None:
    assert cluster_info_kubeconfig("https://c", b"CA") == Kubeconfig(clusters=(Cluster("", "https://c", b"CA"),))


def test_a_users_kubeconfig_has_the_context_user_at_cluster() -> None:
    assert ADMIN.current_context == "admin@kubernetes"
    assert ADMIN.contexts == (KubeconfigContext("admin@kubernetes", "kubernetes", "admin"),)


def test_the_kubelets_kubeconfig_names_one_file_for_certificate_and_key() -> None:
    made = kubelet_kubeconfig("https://c", "/pki/current.pem", ca_file="/ca.crt")
    assert made == Kubeconfig(
        (Cluster("default-cluster", "https://c", ca_file="/ca.crt"),),
        (KubeconfigUser("default-auth", certificate_file="/pki/current.pem", key_file="/pki/current.pem"),),
        (KubeconfigContext("default-context", "default-cluster", "default-auth", "default"),),
        "default-context",
    )
    assert kubeconfig_problems(made) == []


@pytest.mark.parametrize(
    ("user", "kinds"),
    [
        (KubeconfigUser("u"), ()),
        (KubeconfigUser("u", impersonate="x"), ()),
        (KubeconfigUser("u", certificate_pem=b"C", key=Secret("K")), ("clientCertificate",)),
        (KubeconfigUser("u", certificate_file="/c"), ("clientCertificate",)),
        (KubeconfigUser("u", key_file="/k"), ("clientCertificate",)),
        (KubeconfigUser("u", token=Secret("t"), token_file="/t"), ("token", "tokenFile")),
        (KubeconfigUser("u", username="n"), ("basic",)),
        (KubeconfigUser("u", password=Secret("p")), ("basic",)),
        (KubeconfigUser("u", exec=ExecPlugin("x")), ("exec",)),
        (KubeconfigUser("u", auth_provider=AuthProvider("oidc")), ("authProvider",)),
    ],
)
def test_the_kinds_of_credential_of(user: KubeconfigUser, kinds: tuple[str, ...]) -> None:
    assert user.credentials == kinds


NAMED = Cluster("named", "https://named")
UNNAMED = Cluster("", "https://unnamed")


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        pytest.param(Kubeconfig((UNNAMED,)), UNNAMED, id="without a name"),
        pytest.param(
            Kubeconfig((NAMED,), (), (KubeconfigContext("c", "named"),), "c"), NAMED, id="of the current context"
        ),
        pytest.param(
            Kubeconfig((NAMED, UNNAMED), (), (KubeconfigContext("c", "named"),), "c"),
            UNNAMED,
            id="without a name, before the other",
        ),
    ],
)
def test_a_discovery_document_means_the_cluster(config: Kubeconfig, wanted: Cluster) -> None:
    assert discovery_cluster(config) is wanted


@pytest.mark.parametrize(
    "config",
    [
        Kubeconfig(),
        Kubeconfig((NAMED,)),
        Kubeconfig((NAMED,), current_context="c"),
        Kubeconfig((NAMED,), (), (KubeconfigContext("c", "other"),), "c"),
    ],
    ids=["nothing", "no context", "a missing context", "a context with a missing cluster"],
)
def test_a_discovery_document_means_no_cluster_with(config: Kubeconfig) -> None:
    with pytest.raises(KubeconfigError, match="neither a cluster without a name"):
        discovery_cluster(config)


def test_selecting_gives_cluster_user_and_namespace_of_the_context() -> None:
    other = KubeconfigContext("other", "kubernetes", "admin", "team")
    config = replace(ADMIN, contexts=(*ADMIN.contexts, other))
    assert select_context(config) == Selected(ADMIN.clusters[0], ADMIN.users[0], "")
    assert select_context(config, "other").namespace == "team"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(ADMIN, current_context=""), "no current context: name one with --context, or set it"),
        (replace(ADMIN, current_context="x"), 'has no context "x"'),
        (
            replace(ADMIN, clusters=()),
            'context "admin@kubernetes" names the cluster "kubernetes", which does not exist',
        ),
        (replace(ADMIN, users=()), 'context "admin@kubernetes" names the user "admin", which does not exist'),
        (replace(ADMIN, clusters=(Cluster("kubernetes"),)), 'cluster "kubernetes" has no server'),
    ],
    ids=["no current context", "a missing context", "a missing cluster", "a missing user", "no server"],
)
def test_nothing_is_selected_with(config: Kubeconfig, message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        select_context(config)


def test_faults_of_entries_that_the_context_does_not_use_do_not_matter() -> None:
    config = replace(ADMIN, clusters=(*ADMIN.clusters, Cluster("broken")))
    assert select_context(config).cluster == ADMIN.clusters[0]
    with pytest.raises(KubeconfigError):
        validate_kubeconfig(config)


def test_merging_takes_whole_entries_from_the_first_that_has_them() -> None:
    first = Kubeconfig((Cluster("a", "https://first"),), (), (), "", {}, ({"name": "x", "extension": 1},))
    second = Kubeconfig(
        (Cluster("a", "https://second", b"CA"), Cluster("b", "https://b")),
        (KubeconfigUser("u"),),
        (KubeconfigContext("c", "a", "u"),),
        "c",
        {"colors": True},
        ({"name": "x", "extension": 2}, {"name": "y", "extension": 3}),
    )
    third = Kubeconfig(current_context="d", preferences={"colors": False})
    assert merge_kubeconfigs([first, second, third]) == Kubeconfig(
        (Cluster("a", "https://first"), Cluster("b", "https://b")),
        (KubeconfigUser("u"),),
        (KubeconfigContext("c", "a", "u"),),
        "c",
        {"colors": True},
        ({"name": "x", "extension": 1}, {"name": "y", "extension": 3}),
    )


def test_merging_nothing_gives_the_empty_kubeconfig() -> None:
    assert merge_kubeconfigs([]) == Kubeconfig()


FILES = {"/ca": b"CA", "/c": b"CERT", "/k": b"KEY", "/t": b"token\n", "/bin": b"\xff"}


def read(path: str) -> bytes:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


def test_flattening_inlines_every_file() -> None:
    cluster = Cluster("c", "https://c", ca_file="/ca")
    assert flatten_cluster(cluster, read) == Cluster("c", "https://c", b"CA")
    user = KubeconfigUser("u", certificate_file="/c", key_file="/k", token_file="/t")
    assert flatten_user(user, read) == KubeconfigUser(
        "u", certificate_pem=b"CERT", key=Secret("KEY"), token=Secret("token")
    )


def test_what_names_no_file_is_flat_already() -> None:
    cluster, user = Cluster("d", "https://d"), KubeconfigUser("v", username="n")
    assert flatten_cluster(cluster, read) is cluster
    assert flatten_user(user, read) is user


def test_inline_values_override_files_which_are_then_not_read() -> None:
    cluster = Cluster("c", "https://c", b"inline", "/no")
    user = KubeconfigUser(
        "u",
        certificate_pem=b"inline", certificate_file="/no",
        key=Secret("inline"), key_file="/no",
        token=Secret("inline"),
    )  # fmt: skip
    assert flatten_cluster(cluster, read) == Cluster("c", "https://c", b"inline")
    flat = KubeconfigUser("u", certificate_pem=b"inline", key=Secret("inline"), token=Secret("inline"))
    assert flatten_user(user, read) == flat


@pytest.mark.parametrize(
    ("user", "message"),
    [
        (
            KubeconfigUser("u", certificate_file="/no"),
            'client-certificate "/no" cannot be read: No such file or directory',
        ),
        (KubeconfigUser("u", key_file="/no"), 'client-key "/no" cannot be read: No such file or directory'),
        (KubeconfigUser("u", token_file="/no"), 'tokenFile "/no" cannot be read: No such file or directory'),
        (KubeconfigUser("u", token_file="/bin"), 'tokenFile "/bin" does not hold a token: it is not ASCII text'),
    ],
)
def test_flattening_fails_with(user: KubeconfigUser, message: str) -> None:
    with pytest.raises(KubeconfigError) as caught:
        flatten_user(user, read)
    assert str(caught.value) == message


def test_an_unexplained_failure_to_read_is_told_as_such() -> None:
    def broken(path: str) -> bytes:
        raise OSError

    with pytest.raises(KubeconfigError, match='certificate-authority "/x" cannot be read: input or output error'):
        flatten_cluster(Cluster("c", ca_file="/x"), broken)


def test_a_token_file_wins_over_a_token_as_in_client_go() -> None:
    user = KubeconfigUser("u", token=Secret("old"), token_file="/t")
    assert flatten_user(user, read) == KubeconfigUser("u", token=Secret("token"))


def test_relative_files_count_from_the_directory_of_the_kubeconfig() -> None:
    config = Kubeconfig(
        (Cluster("c", ca_file="ca"), Cluster("d")),
        (KubeconfigUser("u", certificate_file="pki/c", key_file="/k", token_file="t"),),
    )
    assert resolve_paths(config, "/etc/x/") == Kubeconfig(
        (Cluster("c", ca_file="/etc/x/ca"), Cluster("d")),
        (KubeconfigUser("u", certificate_file="/etc/x/pki/c", key_file="/k", token_file="/etc/x/t"),),
    )


@pytest.mark.parametrize(
    ("command", "program"),
    [
        pytest.param("./bin/plug", "/etc/x/bin/plug", id="beside the kubeconfig"),
        pytest.param("bin/plug", "/etc/x/bin/plug", id="below it"),
        pytest.param("../x/get-token", "/etc/x/get-token", id="above it"),
        pytest.param("bin//../plug", "/etc/x/plug", id="by a way round, cleaned as by filepath.Join"),
        pytest.param("plug/", "/etc/x/plug", id="with a slash at its end"),
        pytest.param("/opt/plug", "/opt/plug", id="absolute"),
        pytest.param("plug", "plug", id="of PATH"),
        pytest.param("~/plug", "/etc/x/~/plug", id="no home directory, as in client-go"),
        pytest.param("", "", id="none"),
    ],
)
def test_an_exec_command_with_a_slash_counts_from_the_kubeconfig(command: str, program: str) -> None:
    """client-go `GetAuthInfoFileReferences`, `ResolvePaths`."""
    config = Kubeconfig(users=(KubeconfigUser("u", exec=ExecPlugin(command, args=("a/b",))),))
    plugin = resolve_paths(config, "/etc/x").users[0].exec
    assert plugin == ExecPlugin(program, args=("a/b",))


@pytest.mark.parametrize("command", ["./plug", "bin/plug", "../plug"])
def test_a_relative_command_of_a_kubeconfig_that_is_not_in_a_file_is_refused(command: str) -> None:
    with pytest.raises(KubeconfigError, match="relative to a kubeconfig file"):
        refuse_relative_commands(Kubeconfig(users=(KubeconfigUser("u", exec=ExecPlugin(command)),)))


@pytest.mark.parametrize("plugin", [None, ExecPlugin("plug"), ExecPlugin("/bin/plug")])
def test_other_commands_are_as_good_there(plugin: ExecPlugin | None) -> None:
    refuse_relative_commands(Kubeconfig(users=(KubeconfigUser("u", exec=plugin),)))


def with_user(**fields: object) -> Kubeconfig:
    user = replace(KubeconfigUser("admin"), **fields)  # type: ignore[arg-type]  # fields of every type, by name
    return replace(ADMIN, users=(user,))


EXEC = ExecPlugin("cmd", "client.authentication.k8s.io/v1", interactive_mode="Never")


@pytest.mark.parametrize(
    "config",
    [
        ADMIN,
        cluster_info_kubeconfig("https://c", b""),
        with_user(token=Secret("t"), token_file="/t"),
        with_user(exec=EXEC),
        with_user(exec=ExecPlugin("cmd", "client.authentication.k8s.io/v1beta1")),
        with_user(impersonate="x", impersonate_uid="1"),
        replace(ADMIN, clusters=(Cluster("kubernetes", "https://c", proxy_url="socks5://p"),)),
    ],
)
def test_nothing_is_wrong_with(config: Kubeconfig) -> None:
    assert validate_kubeconfig(config) is config


INSECURE = Cluster("kubernetes", "https://c", insecure_skip_tls_verify=True)
BOTH = 'cluster "kubernetes" has both a certificate authority and insecure-skip-tls-verify'


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        pytest.param(replace(ADMIN, clusters=(replace(INSECURE, ca_file="ca.crt"),)), BOTH, id="a CA file"),
        pytest.param(replace(ADMIN, clusters=(replace(INSECURE, ca_pem=b"CA"),)), BOTH, id="a CA"),
        pytest.param(
            replace(ADMIN, clusters=(replace(INSECURE, ca_pem=b"CA", tls_server_name="c"),)), BOTH, id="a CA and a name"
        ),
        pytest.param(
            with_user(token_file="/t", username="n"),
            'user "admin" has both a tokenFile and a username or password',
            id="a token file and a username",
        ),
        pytest.param(
            with_user(token_file="/t", password=Secret("p")),
            'user "admin" has both a tokenFile and a username or password',
            id="a token file and a password",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused_where_they_would_be_used(
    config: Kubeconfig, problem: str
) -> None:
    """client-go `transport.TLSConfigFor` and `HTTPWrappersForConfig`: kubectl refuses the context in use, and no other."""
    with pytest.raises(KubeconfigError) as caught:
        select_context(config)
    assert str(caught.value).startswith(f"invalid configuration: {problem}")
    assert kubeconfig_problems(config) == []


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(ADMIN, clusters=(INSECURE,)), id="the flag alone"),
        pytest.param(
            replace(ADMIN, clusters=(replace(INSECURE, tls_server_name="c"),)), id="a name, which is sent alone"
        ),
        pytest.param(with_user(token=Secret("t"), token_file="/t"), id="a token and its file"),
        pytest.param(with_user(token=Secret("t"), exec=EXEC), id="a token and a plugin"),
    ],
)
def test_what_client_go_takes_together_is_taken(config: Kubeconfig) -> None:
    assert select_context(config).user == config.users[0]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (Kubeconfig(), "the kubeconfig is empty"),
        (replace(ADMIN, current_context="x"), 'the current context "x" does not exist'),
        (
            replace(ADMIN, contexts=(KubeconfigContext("", "kubernetes", "admin"),), current_context=""),
            "a context has no name",
        ),
        (
            replace(ADMIN, contexts=(KubeconfigContext("c", "kubernetes"),), current_context="c"),
            'context "c" names no user',
        ),
        (
            replace(ADMIN, contexts=(KubeconfigContext("c", "", "admin"),), current_context="c"),
            'context "c" names no cluster',
        ),
        (
            replace(ADMIN, contexts=(KubeconfigContext("c", "kubernetes", "admin", "A_B"),), current_context="c"),
            'context "c" has the namespace "A_B", which is not a DNS label',
        ),
        (
            replace(ADMIN, clusters=(Cluster("kubernetes", "https://c", proxy_url="ftp://p"),)),
            'cluster "kubernetes" has a proxy-url that cannot be used: it is not an http, https or socks5 URL',
        ),
        (
            replace(ADMIN, clusters=(Cluster("kubernetes", "https://c", b"CA", "/ca"),)),
            'cluster "kubernetes" has both certificate-authority and certificate-authority-data',
        ),
        (
            with_user(certificate_pem=b"C", certificate_file="/c", key_file="/k"),
            'user "admin" has both client-certificate and client-certificate-data',
        ),
        (
            with_user(certificate_pem=b"C", key=Secret("K"), key_file="/k"),
            'user "admin" has both client-key and client-key-data',
        ),
        (
            with_user(certificate_file="/c"),
            'user "admin" has a client certificate without client-key or client-key-data',
        ),
        (with_user(exec=EXEC, auth_provider=AuthProvider("x")), 'user "admin" has both auth-provider and exec'),
        (with_user(token=Secret("t"), username="n"), 'user "admin" has both a token and a username or password'),
        (
            with_user(token=Secret("t"), password=Secret("p")),
            'user "admin" has both a token and a username or password',
        ),
        (with_user(impersonate_uid="1"), 'user "admin" has as-uid, as-groups or as-user-extra without as'),
        (with_user(exec=replace(EXEC, command="")), 'user "admin" has an exec plugin without command'),
        (
            with_user(exec=replace(EXEC, env=(("", Secret("v")),))),
            'user "admin" has an exec plugin with an unnamed env variable',
        ),
        (
            with_user(exec=replace(EXEC, interactive_mode="")),
            'user "admin" has an exec plugin without interactiveMode',
        ),
        (
            with_user(exec=replace(EXEC, interactive_mode="Often")),
            'user "admin" has an exec plugin whose interactiveMode is none of Never, IfAvailable, Always',
        ),
        (with_user(exec=replace(EXEC, api_version="")), 'user "admin" has an exec plugin without apiVersion'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_this_is_wrong(config: Kubeconfig, problem: str) -> None:
    assert kubeconfig_problems(config) == [problem]
    with pytest.raises(KubeconfigError) as caught:
        validate_kubeconfig(config)
    assert str(caught.value) == f"invalid configuration: {problem}"


def test_several_problems_are_listed_in_brackets() -> None:
    with pytest.raises(KubeconfigError) as caught:
        validate_kubeconfig(Kubeconfig((Cluster(""), Cluster("b"))))
    assert str(caught.value) == (
        'invalid configuration: [the cluster without a name has no server, cluster "b" has no server]'
    )


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        pytest.param(Cluster("b.test:1", "https://b.test:1", b"CA"), True, id="named by its address"),
        pytest.param(Cluster("b.test:1", "https://b.test:1", b"other"), False, id="under another CA"),
        pytest.param(Cluster("b.test:1", "https://b.test:1", b"CA", ca_file="/ca"), False, id="with a CA in a file"),
        pytest.param(
            Cluster("b.test:1", "https://b.test:1", b"CA", insecure_skip_tls_verify=True), False, id="not verified"
        ),
        pytest.param(Cluster(address_of("http://b.test:1"), "http://b.test:1", b"CA"), False, id="without TLS"),
        pytest.param(Cluster("production", "https://b.test:1", b"CA"), False, id="named otherwise"),
        pytest.param(Cluster("b.test:1", "HTTPS://b.test:1", b"CA"), True, id="with the scheme in capitals"),
    ],
)
def test_further_addresses_of_a_cluster_are_told_from_other_clusters(entry: Cluster, wanted: bool) -> None:
    named = Cluster("kubernetes", "https://a.test:1", b"CA")
    found = other_addresses(Kubeconfig(clusters=(named, entry)), named)
    assert found == ((entry,) if wanted else ())


def test_the_cluster_of_another_context_is_no_further_address() -> None:
    one, other = (Cluster(f"{name}.test:1", f"https://{name}.test:1", b"CA") for name in "ab")
    contexts = tuple(KubeconfigContext(cluster.name, cluster.name, "admin") for cluster in (one, other))
    assert other_addresses(Kubeconfig(clusters=(one, other), contexts=contexts), one) == ()
    assert other_addresses(Kubeconfig(clusters=(one, other), contexts=contexts[:1]), one) == (other,)


def test_beside_a_cluster_without_a_name_every_entry_is_an_address_of_it() -> None:
    unnamed, entry = Cluster("", "https://a.test:1", b"CA"), Cluster("backup", "https://b.test:1", b"CA")
    assert other_addresses(Kubeconfig(clusters=(entry, unnamed)), unnamed) == (entry,)


def test_a_cluster_info_names_the_ca_of_clients_only_where_it_is_another() -> None:
    apart = cluster_info_kubeconfig("https://a.test:1", b"S", client_ca_pem=b"C").clusters[0]
    assert client_cas(apart) == b"C"
    assert cluster_info_kubeconfig("https://a.test:1", b"S", client_ca_pem=b"S").clusters[0].extensions == ()


@pytest.mark.parametrize(
    "extension",
    [
        pytest.param({"name": "another", "extension": {"certificate-authority-data": "Qw=="}}, id="another extension"),
        pytest.param({"name": CLIENT_CA, "extension": "Qw=="}, id="no object"),
        pytest.param({"name": CLIENT_CA, "extension": {"certificate-authority-data": 1}}, id="no text"),
    ],
)
def test_what_is_no_ca_of_clients_names_none(extension: Obj) -> None:
    assert client_cas(Cluster("", extensions=(extension,))) == b""


def test_a_ca_of_clients_that_is_not_base64_is_refused() -> None:
    broken = {"name": CLIENT_CA, "extension": {"certificate-authority-data": "?"}}
    with pytest.raises(KubeconfigError, match=r"the extension mooring\.dev/client-ca is not base64"):
        client_cas(Cluster("", extensions=(broken,)))


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("https://a.test:6443", "a.test:6443"),
        ("https://a.test", "a.test:443"),
        ("https://[2001:db8::1]/", "[2001:db8::1]:443"),
        ("https://a.test/cluster/1", "a.test:443/cluster/1"),
    ],
)
def test_an_address_always_has_its_port(server: str, address: str) -> None:
    assert address_of(server) == address
