"""`mooring controllers manifests`: the Kubernetes objects that the controllers need, for kubectl apply."""

from __future__ import annotations

import click

from mooring import __version__
from mooring.apimachinery.names import dns1123_label_errors
from mooring.apimachinery.schema import Obj
from mooring.cli.options.flags import output_option, usage
from mooring.cli.printing import as_yaml, echo, print_document
from mooring.controllers.standalonetable import Installation, selected, watched_kinds
from mooring.controllers.standalonetable import manifests as build
from mooring.errors import ArgumentError
from mooring.settings.declaration import split_commas


@click.command("manifests")
@click.option(
    "--controllers",
    "items",
    multiple=True,
    default=("*",),
    show_default=True,
    metavar="NAME,...",
    help="Controllers to run, as in mooring controllers.",
)
@click.option("--namespace", default="mooring-system", show_default=True, metavar="NAME", help="Namespace to create.")
@click.option(
    "--image",
    default=f"mooring:{__version__}",
    show_default=True,
    metavar="IMAGE",
    help="Container image whose entry point is mooring.",
)
@output_option("yaml", "json", "name")
def manifests(items: tuple[str, ...], namespace: str, image: str, output: str) -> None:
    """Print the objects with which a cluster runs mooring controllers.

    They are the CustomResourceDefinitions of mooring.dev that the controllers use, a namespace, a ServiceAccount with the least
    rights that the chosen controllers need, and a Deployment of two Pods, one of which works.

    csrsigner also needs a Secret mooring-signing-ca in that namespace, with the CA as tls.crt and tls.key.
    """
    with usage():
        names = selected(split_commas(items))
    if dns1123_label_errors(namespace):
        raise ArgumentError(f'--namespace: "{namespace}" is no name of a namespace')
    objects = build(Installation(controllers=names, namespace=namespace, image=image), watched_kinds(names))
    if output == "yaml":
        echo(*"\n---\n".join(map(as_yaml, objects)).split("\n"))
    elif output == "json":
        print_document({"kind": "List", "apiVersion": "v1", "items": list(objects)}, "json")
    else:
        echo(*map(_name, objects))


def _name(obj: Obj) -> str:
    """Return the name as `kubectl -o name` prints it."""
    group = obj["apiVersion"].rpartition("/")[0]
    return f"{obj['kind'].lower()}{'.' if group else ''}{group}/{obj['metadata']['name']}"
