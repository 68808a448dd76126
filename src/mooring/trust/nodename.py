"""Name of a machine's Node: chosen as kubelet chooses it, and checked before anything is requested.

Rules kept here:
* A given name, else the host name, without blanks around it and in lower case, as in kubelet, kubeadm (`GetHostname`) and k3s.
* It is a DNS subdomain (RFC 1123), because it is the name of an object.
* A Node that this program registers has the name in its label `kubernetes.io/hostname`, whose value has 63 characters at most
  (Kubernetes, `validation.LabelValueMaxLength`). A longer name is refused while no certificate was issued and no token used.
* An error names what gave the name, the flag, and a name that is valid.
"""

from __future__ import annotations

import re

from mooring.apimachinery.names import SUBDOMAIN_MAX, dns1123_subdomain_errors
from mooring.errors import ConfigError
from mooring.settings.nodes import REGISTRATIONS

HOSTNAME_MAX = 63
"""Characters of a label's value."""
_UNREGISTERED = REGISTRATIONS[0]
_FORBIDDEN = re.compile(r"[^a-z0-9.-]+")
_DOTS = re.compile(r"[-.]*\.[-.]*")


def choose_node_name(
    given: str, host_name: str, register_node: str = "", *, suffix: int = 0, longest: int = SUBDOMAIN_MAX
) -> str:
    """Return the name of the Node. Raises ConfigError.

    `register_node`: the setting of that name. `suffix`: characters that are appended later. `longest`: limit of another place.
    """
    name = (given or host_name).strip().lower()
    if not name:
        raise ConfigError("--node-name is needed: the name of this machine could not be found out")
    is_registered = register_node != _UNREGISTERED
    room = (min(longest, HOSTNAME_MAX) if is_registered else min(longest, SUBDOMAIN_MAX)) - suffix
    if problems := dns1123_subdomain_errors(name):
        raise ConfigError(f"{_source(given, host_name)} is invalid: {problems[0]}{_advice(name, room)}")
    if len(name) > room:
        limit = f"the label kubernetes.io/hostname of a Node takes {room}" if is_registered else f"{room} are possible"
        beside = f" beside the {suffix} of --with-node-id" if suffix else ""
        without = ", or register no Node with --register-node none" if is_registered else ""
        raise ConfigError(
            f"{_source(given, host_name)} is too long: it has {len(name)} characters, and {limit}{beside}{_advice(name, room)}"
            f"{without}"
        )
    return name


def name_note(given: str, host_name: str) -> str:
    """Return the line about a name that was written in lower case, or that is the host name of many machines; "" without one."""
    text = (given or host_name).strip()
    if not given and text.lower().partition(".")[0] == "localhost":
        return (
            f"{_source(given, host_name)} is that of every machine without a name, and one Node alone can be called so: give "
            "--node-name, or set the host name before the join"
        )
    return (
        f"{_source(given, host_name)}: the Node is called {text.lower()}, in lower case" if text != text.lower() else ""
    )


def _source(given: str, host_name: str) -> str:
    return f'--node-name "{given.strip()}"' if given else f'the host name "{host_name.strip()}"'


def _advice(name: str, room: int) -> str:
    """Return a valid name to give: the same with other characters, or its first part when it is too long."""
    valid = _DOTS.sub(".", _FORBIDDEN.sub("-", name)).strip("-.")
    if len(valid) > room:
        valid = valid.partition(".")[0][:room].rstrip("-")
    return f"; give another, such as --node-name {valid}" if valid else "; give another with --node-name"
