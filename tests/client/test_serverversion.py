"""Which program a server is, by its answer or by the lack of one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import other_program
from mooring.errors import ForbiddenError, MooringError, NotFoundError, PeerError, ServiceUnavailableError
from mooring.trust.discovery.errors import NotKubernetesError

UNKNOWN = "a server that does not say its version"


class Answering(ClusterClient):
    """A client whose server answers `/version`, or fails to."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def get_path(self, path: str, **options: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        pytest.param({"gitVersion": "v1.34.1+mooring-0.1.0"}, "", id="Mooring"),
        pytest.param({"gitVersion": "v1.34.1"}, "Kubernetes v1.34.1", id="Kubernetes"),
        pytest.param({}, UNKNOWN, id="no version"),
        pytest.param(ForbiddenError("no"), UNKNOWN, id="a version that is not for everybody"),
        pytest.param(NotFoundError("no"), UNKNOWN, id="no such path"),
        pytest.param(NotKubernetesError("s", "an HTML page"), UNKNOWN, id="a page of a balancer"),
    ],
)
def test_the_program_of_a_server_that_answers(answer: Any, program: str) -> None:
    assert asyncio.run(other_program(Answering(answer))) == program


@pytest.mark.parametrize("error", [PeerError("no answer in time"), ServiceUnavailableError("later")], ids=str)
def test_a_server_that_does_not_answer_is_no_other_program(error: MooringError) -> None:
    """It may be Mooring: a revocation that fails for this reason is worth another try."""
    with pytest.raises(type(error)):
        asyncio.run(other_program(Answering(error)))
