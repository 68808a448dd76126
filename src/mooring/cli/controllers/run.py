"""`mooring controllers`: controllers that run against any Kubernetes API server until a signal stops them.

Rules kept here: without --kubeconfig a Pod uses its ServiceAccount; outside of a Pod the usual places of kubeconfigs are looked at.
"""

from __future__ import annotations

from typing import Any

import click

from mooring.cli import serverlogs
from mooring.cli.cluster import selected as selected_cluster
from mooring.cli.options.declared import CommandBySubject, settings_options
from mooring.cli.options.flags import kubeconfig_option, usage
from mooring.client import kubeconfigfiles
from mooring.controlplane.controllersprocess import StandaloneConfig, check, serve
from mooring.settings.controllers import StandaloneSettings
from mooring.settings.signing import ApprovalSettings, SigningSettings
from mooring.trust.kubeconfig import Selected
from mooring.trust.notices import NoticeSettings

SUBJECTS = (StandaloneSettings, ApprovalSettings, SigningSettings, NoticeSettings)


@click.command("controllers", cls=CommandBySubject)
@kubeconfig_option
@settings_options([one for subject in SUBJECTS for one in subject.declared()])
@serverlogs.log_options
def controllers(kubeconfig: str, context_name: str, verbose: int, log_format: str, **values: Any) -> None:
    """Run controllers against any Kubernetes API server until SIGTERM or SIGINT.

    For clusters without kubeadm's controllers of bootstrap tokens, or whose kube-controller-manager has none that approves serving
    certificates. By default those run that do no harm beside kube-controller-manager: bootstrapsigner, serving-approver,
    inventory-approver and node-identity-controller. tokencleaner, csrapprover, csrcleaner, nodelifecycle and revocation-cleaner run
    when they are named; csrsigner also needs a CA, and two signers of different CAs for one cluster are a mistake.

    In a Pod the ServiceAccount is used. `mooring controllers manifests` prints the objects that it needs.
    """
    with usage():
        settings, signing = StandaloneSettings.read(values), SigningSettings.read(values)
        check(settings, signing)
        approval, notices = ApprovalSettings.read(values), NoticeSettings.read(values)
    cluster = _cluster(kubeconfig, context_name)
    serverlogs.configure(verbose, log_format)
    serve(StandaloneConfig(settings=settings, signing=signing, approval=approval, cluster=cluster, notices=notices))


def _cluster(kubeconfig: str, context_name: str) -> Selected:
    in_pod = None if kubeconfig or context_name else kubeconfigfiles.load_in_cluster()
    return in_pod or selected_cluster(kubeconfig, context_name)
