"""Kubeconfig files of a command, and the error without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooring.client.kubeconfigfiles import default_paths, load, load_config
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.kubeconfig import ExecPlugin, KubeconfigUser, user_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig


def written(path: Path, server: str, **user: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    owner = KubeconfigUser("u", token=Secret("t"), **user)  # type: ignore[arg-type] # texts only
    path.write_text(format_kubeconfig(user_kubeconfig(server, b"", owner, server[8:])))
    return path


def chosen(tmp_path: Path, flag: str = "", listed: str = "") -> str:
    defaults = default_paths(tmp_path / "home", tmp_path / "data", tmp_path / "etc/admin.conf")
    return load(flag, environ={"KUBECONFIG": listed}, defaults=defaults).cluster.server


def test_the_flag_alone_counts_when_given(tmp_path: Path) -> None:
    written(tmp_path / "home/.kube/config", "https://home")
    flag, listed = written(tmp_path / "flag", "https://flag"), written(tmp_path / "env", "https://env")
    assert chosen(tmp_path, str(flag), str(listed)) == "https://flag"
    assert chosen(tmp_path, "", str(listed)) == "https://env"
    assert chosen(tmp_path) == "https://home"


def test_the_default_places_are_tried_in_order(tmp_path: Path) -> None:
    written(tmp_path / "data/admin.conf", "https://data")
    assert chosen(tmp_path) == "https://data"
    written(tmp_path / "etc/admin.conf", "https://kubeadm")
    assert chosen(tmp_path) == "https://kubeadm"
    written(tmp_path / "home/.kube/config", "https://home")
    assert chosen(tmp_path) == "https://home"


def test_a_list_is_merged_and_missing_files_of_it_are_skipped(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one", "https://one"), written(tmp_path / "two", "https://two")
    config = load_config(environ={"KUBECONFIG": f"{tmp_path}/none:{one}::{two}"})
    assert [cluster.server for cluster in config.clusters] == ["https://one", "https://two"]
    assert config.current_context == "u@one"
    assert load(context="u@two", environ={"KUBECONFIG": f"{one}:{two}"}).cluster.server == "https://two"


def test_paths_inside_a_file_count_from_its_directory(tmp_path: Path) -> None:
    path = written(tmp_path / "sub/config", "https://one", token_file="here.token")
    assert load(str(path)).user.token_file == str(tmp_path / "sub/here.token")


def test_the_command_of_a_plugin_counts_from_the_directory_of_its_own_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        plugin = ExecPlugin(f"./{name}", "client.authentication.k8s.io/v1", interactive_mode="Never")
        owner = KubeconfigUser(name, exec=plugin)
        path = tmp_path / name / "config"
        path.parent.mkdir()
        path.write_text(format_kubeconfig(user_kubeconfig("https://a", b"", owner, name)))
    config = load_config(environ={"KUBECONFIG": f"{tmp_path}/one/config:{tmp_path}/two/config"})
    commands = [user.exec.command for user in config.users if user.exec is not None]
    assert commands == [str(tmp_path / "one/one"), str(tmp_path / "two/two")]


def test_nothing_found_names_every_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(tmp_path)
    assert str(caught.value) == (
        f"no kubeconfig: looked for {tmp_path}/home/.kube/config, {tmp_path}/etc/admin.conf and "
        f"{tmp_path}/data/admin.conf; give one with --kubeconfig, or set KUBECONFIG"
    )
    with pytest.raises(ConfigError) as caught:
        chosen(tmp_path, "", f"{tmp_path}/a:{tmp_path}/b")
    assert str(caught.value) == (f"no kubeconfig: KUBECONFIG names {tmp_path}/a and {tmp_path}/b, which do not exist")
    with pytest.raises(ConfigError) as caught:
        chosen(tmp_path, "", ":")
    assert str(caught.value) == 'no kubeconfig: KUBECONFIG is ":" and names no file; unset it, or name one'
    with pytest.raises(ConfigError) as caught:
        chosen(tmp_path, f"{tmp_path}/flag")
    assert str(caught.value) == f"{tmp_path}/flag cannot be read: no such file or directory; check the path"


def test_without_default_places_only_the_flag_and_the_variable_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^no kubeconfig: give one with --kubeconfig, or set KUBECONFIG$"):
        load(environ={})


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("kind: Pod")
    with pytest.raises(ConfigError, match=r"broken: this is not a kubeconfig"):
        load(str(tmp_path / "broken"))
