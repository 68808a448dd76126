"""`mooring node split`: of two machines with one identity one stays, and what the command refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

import pytest

from mooring.apimachinery.schema import Obj
from mooring.errors import NotFoundError, UnauthorizedError
from mooring.trust.bootstraptoken.token import BootstrapToken
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server
from tests.support.nodenames import Machine, conditions

__all__ = ["live_server", "mooring"]


def of(server: LiveServer) -> tuple[str, ...]:
    return ("--kubeconfig", str(server.kubeconfig))


class Copied:
    """A machine whose first certificate P was copied; both requested another with it: C on the machine, D on the copy."""

    def __init__(self, server: LiveServer, name: str) -> None:
        self.server, self.name = server, name
        self.machines = {one: Machine(server, name) for one in "PCD"}
        asyncio.run(self._begin(server.create_token()))

    def key(self, name: str) -> str:
        return self.machines[name].public_key

    async def _begin(self, token: BootstrapToken) -> None:
        await self.machines["P"].join(token)
        await self.machines["P"].register()
        for one in "CD":
            await self.machines[one].receive(await self.machines[one].request_by(self.machines["P"]))
            await self.machines[one].own_node()
        # The server writes the uses of certificates behind the requests.
        while len((await self.identity()).get("status", {}).get("certificates", [])) < len(self.machines):
            await asyncio.sleep(0.1)

    async def identity(self) -> Obj:
        async with self.server.client() as client:
            return await client.get("nodeidentities", self.name)

    def accepted(self) -> str:
        """Return the certificates that the server accepts."""

        async def find() -> str:
            found = ""
            for name, machine in self.machines.items():
                with suppress(UnauthorizedError):
                    await machine.own_node()
                    found += name
            return found

        return asyncio.run(find())

    def split(self, mooring: CommandLine, *words: str) -> Sequence[str]:
        return mooring.done("node", "split", self.name, *words, *of(self.server)).splitlines()


def test_the_machine_that_is_kept_goes_on_and_the_copy_ends(live_server: LiveServer, mooring: CommandLine) -> None:
    copied = Copied(live_server, "split1")
    waiting = asyncio.run(Machine(live_server, "split1").request_by(copied.machines["D"]))
    assert copied.accepted() == "PCD"
    dry = json.loads(
        mooring.done("node", "split", "split1", "--keep", copied.key("C"), "--dry-run", "-o", "json", *of(live_server))
    )
    assert (dry["kind"], dry["dryRun"]) == ("NodeSplit", True)
    assert copied.accepted() == "PCD"
    done = copied.split(mooring, "--keep", copied.key("C"))
    for key in (copied.key("P"), copied.key("D")):
        name = key.removeprefix("sha256:")
        assert f"certificaterevocation.mooring.dev/key-{name} revoked" in done
    assert "nodeidentity.mooring.dev/split1 split" in done
    assert copied.accepted() == "C"
    assert [key["publicKey"] for key in asyncio.run(copied.identity())["spec"]["keys"]] == [copied.key("C")]
    assert copied.split(mooring, "--keep", copied.key("C")) == ["nodeidentity.mooring.dev/split1 unchanged"]

    async def ended() -> Obj:
        async with live_server.client() as admin:
            return dict(await conditions(admin, waiting))

    # It was signed before the split, or it is refused.
    assert asyncio.run(ended()).keys() <= {"Approved", "Failed", "Denied"}
    shown = mooring.done("node", "show", "split1", "-o", "json", *of(live_server))
    assert json.loads(shown)["certificates"][0]["firstUsedFrom"] == "127.0.0.1"


def test_a_finding_by_the_boots_of_the_node_ends_with_the_split(live_server: LiveServer, mooring: CommandLine) -> None:
    copied = Copied(live_server, "split5")

    async def report(boot: str) -> None:
        async with copied.machines["D" if boot == "there" else "C"].client() as client:
            await client.patch("nodes", copied.name, {"status": {"nodeInfo": {"bootID": boot}}}, subresource="status")
        while (await copied.identity())["status"].get("boots", [{"id": ""}])[-1]["id"] != boot:
            await asyncio.sleep(0.1)

    async def condition(wanted: str) -> Obj:
        while not (found := (await copied.identity())["status"].get("conditions")) or found[0]["status"] != wanted:
            await asyncio.sleep(0.1)
        return dict(found[0])

    for boot in ("here", "there") * 2:
        asyncio.run(report(boot))
    assert asyncio.run(condition("True"))["reason"] == "TwoMachinesReport"
    copied.split(mooring, "--keep", copied.key("C"))
    assert asyncio.run(condition("False"))["reason"] == "Resolved"
    asyncio.run(report("here"))
    assert asyncio.run(condition("False"))["reason"] == "Resolved"


def test_a_certificate_may_be_named_in_place_of_its_key(live_server: LiveServer, mooring: CommandLine) -> None:
    copied = Copied(live_server, "split2")
    uses = asyncio.run(copied.identity())["status"]["certificates"]
    (certificate,) = [one["certificate"] for one in uses if one["publicKey"] == copied.key("D")]
    copied.split(mooring, "--keep", certificate, "--message", "the copy")
    assert copied.accepted() == "D"


def test_the_key_with_which_both_were_requested_is_not_kept(live_server: LiveServer, mooring: CommandLine) -> None:
    copied = Copied(live_server, "split3")
    nothing = mooring("node", "split", copied.name, "--keep", copied.key("P"), *of(live_server))
    assert (nothing.code, nothing.out) == (0, "nodeidentity.mooring.dev/split3 unchanged\n")
    assert "The other keys of split3 were requested with the one that you keep" in nothing.err

    async def tell() -> None:
        found = {
            "type": "DuplicateIdentity",
            "status": "True",
            "reason": "TwoCertificatesInUse",
            "message": "two",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        # The evidence that the server judges by, as it writes it.
        status = (await copied.identity())["status"]
        first, second, third = status["certificates"]
        second |= {"returnedAt": "2026-01-01T00:00:01Z", "returnedAfter": third["certificate"]}
        third |= {"returnedAt": "2026-01-01T00:00:02Z", "returnedAfter": second["certificate"]}
        changed = {"status": {"certificates": [first, second, third], "conditions": [found]}}
        async with live_server.client() as admin:
            await admin.patch("nodeidentities", copied.name, changed, subresource="status")

    asyncio.run(tell())
    assert f"{copied.name}: two machines use this identity" in mooring("node", "list", *of(live_server)).err
    shown = mooring.done("node", "show", copied.name, *of(live_server))
    assert "Duplicate:" in shown
    assert f"key {copied.key('C')}, first used" in shown
    status = json.loads(mooring("status", "-o", "json", *of(live_server)).out)
    (found,) = [one for one in status["machines"]["attention"] if one["name"] == copied.name]
    assert f"mooring node show {copied.name}" in found["message"]
    done = mooring("node", "split", copied.name, "--keep", copied.key("P"), *of(live_server))
    assert (done.code, "which is on both machines then: when the machine that you keep" in done.err) == (1, True)
    assert copied.accepted() == "PCD"


def test_of_many_keys_the_one_with_which_all_were_requested_is_not_kept(
    live_server: LiveServer, mooring: CommandLine
) -> None:
    """A copy has filled the list with the key of the machine, before anything tells two machines."""
    copied = Copied(live_server, "split8")

    async def request_more() -> None:
        machine = Machine(live_server, copied.name)
        await machine.receive(await machine.request_by(copied.machines["P"]))

    asyncio.run(request_more())
    done = mooring("node", "split", copied.name, "--keep", copied.key("P"), *of(live_server))
    assert (done.code, "end both, and let the right one join again" in done.err) == (1, True)
    assert copied.accepted() == "PCD"


def test_a_machine_that_the_server_rejects_is_not_kept(live_server: LiveServer, mooring: CommandLine) -> None:
    copied = Copied(live_server, "split6")
    mooring.done("certs", "revoke", "--node", "split6", *of(live_server))
    done = mooring("node", "split", "split6", "--keep", copied.key("C"), *of(live_server))
    assert (done.code, "mooring token create --node-name split6" in done.err) == (1, True)
    assert len(asyncio.run(copied.identity())["spec"]["keys"]) == 3


@pytest.mark.parametrize(
    ("keep", "code", "said"),
    [
        pytest.param("sha256:" + "0" * 64, 1, "split4 does not have the key sha256:", id="a key of another machine"),
        pytest.param("all", 2, "--keep must be sha256: and 64 hexadecimal digits", id="no key"),
    ],
)
def test_a_key_that_the_machine_does_not_have(
    keep: str, code: int, said: str, live_server: LiveServer, mooring: CommandLine
) -> None:
    token = live_server.create_token()
    if code == 1:
        asyncio.run(Machine(live_server, "split4").join(token))
    done = mooring("node", "split", "split4", "--keep", keep, *of(live_server))
    assert (done.code, said in done.err) == (code, True)


def test_a_machine_that_is_not_recorded(live_server: LiveServer, mooring: CommandLine) -> None:
    done = mooring("node", "split", "nowhere", "--keep", "sha256:" + "0" * 64, *of(live_server))
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert 'the cluster does not know a machine "nowhere"' in done.err


def test_a_node_password_of_the_other_machine_goes_on_demand(live_server: LiveServer, mooring: CommandLine) -> None:
    copied = Copied(live_server, "split9")
    secret = {"metadata": {"name": "split9.node-password.k3s", "namespace": "kube-system"}, "data": {"hash": "eA=="}}

    async def set_password() -> None:
        async with live_server.client() as admin:
            made = await admin.create("secrets", {"kind": "Secret", "apiVersion": "v1", **secret})
            await admin.patch("nodeidentities", "split9", {"spec": {"nodePasswordUID": made["metadata"]["uid"]}})

    asyncio.run(set_password())
    first = mooring("node", "split", "split9", "--keep", copied.key("C"), *of(live_server))
    assert first.code == 0, first.err
    assert "Run this again with --remove-node-password." in first.err
    words = ("--keep", copied.key("C"), "--remove-node-password")
    deleted = "secrets/kube-system/split9.node-password.k3s deleted"
    assert f"{deleted} (server dry run)" in copied.split(mooring, *words, "--dry-run")
    assert asyncio.run(copied.identity())["spec"].get("nodePasswordUID")
    done = mooring("node", "split", "split9", *words, *of(live_server))
    assert deleted in done.out.splitlines()
    assert "node password" not in done.err
    assert "nodePasswordUID" not in asyncio.run(copied.identity())["spec"]

    async def read_secret() -> Obj:
        async with live_server.client() as admin:
            return await admin.get("secrets", "split9.node-password.k3s", "kube-system")

    with pytest.raises(NotFoundError):
        asyncio.run(read_secret())
    assert copied.accepted() == "C"
    assert copied.split(mooring, *words) == ["nodeidentity.mooring.dev/split9 unchanged"]
