"""May it be dialled? The look-up before a connection, with the answers a test gives."""

import threading
from collections.abc import Sequence

import anyio
import pytest

from app.domain.spec import ServerSpec
from app.toolbox.addresses import Refused
from app.toolbox.admission import Policy
from app.toolbox.egress import Egress, EgressLimits
from tests.fakes.toolboxes import operator, user

pytestmark = pytest.mark.anyio

PUBLIC = "192.175.48.6"
USERS = user("https://mcp.example.com/mcp")
OPERATORS = operator("https://mcp.example.com/mcp")


@pytest.mark.parametrize(
    ("server", "answers", "passes"),
    [
        (USERS, [PUBLIC], True),
        (USERS, [PUBLIC, "10.0.0.5"], False),
        (USERS, ["127.0.0.1"], False),
        (USERS, ["169.254.169.254"], False),
        (USERS, [], False),
        (OPERATORS, ["10.0.0.5"], True),
        (OPERATORS, ["169.254.169.254"], False),
        (operator("http://mcp.example.com/mcp"), [PUBLIC], False),
    ],
)
async def test_all_answers_of_one_look_up_decide(server: ServerSpec, answers: Sequence[str], *, passes: bool) -> None:
    asked: list[tuple[str, int]] = []

    def resolve(name: str, port: int) -> Sequence[str]:
        asked.append((name, port))
        return answers

    refused = await Egress(Policy(), EgressLimits(), resolve).vet(server)
    assert (refused is None) == passes
    assert len(asked) == 1


@pytest.mark.parametrize("server", [user("https://10.0.0.1/mcp"), user("ftp://a.example"), user("https://[::1]/mcp")])
async def test_what_the_text_tells_is_never_looked_up(server: ServerSpec) -> None:
    def resolve(name: str, port: int) -> Sequence[str]:
        raise AssertionError(name, port)

    assert isinstance(await Egress(Policy(), EgressLimits(), resolve).vet(server), Refused)


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
async def test_name_that_leads_nowhere_is_refused(error: Exception) -> None:
    def resolve(name: str, port: int) -> Sequence[str]:
        del name, port
        raise error

    refused = await Egress(Policy(), EgressLimits(), resolve).vet(USERS)
    assert refused == Refused("no_address", "The host has no address.")


async def test_slow_names_hold_a_bounded_number_of_threads_and_nobody_waits_for_them() -> None:
    release = threading.Event()
    asked: list[str] = []

    def resolve(name: str, port: int) -> Sequence[str]:
        del port
        asked.append(name)
        release.wait(10)
        return [PUBLIC]

    egress = Egress(Policy(), EgressLimits(dns_seconds=0.1, dns_threads=2), resolve)
    refusals: list[Refused | None] = []

    async def vet() -> None:
        refusals.append(await egress.vet(USERS))

    try:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(vet)
    finally:
        release.set()
    assert len(asked) == 2
    assert sorted(refused.reason for refused in refusals if refused is not None) == [
        *["The host has no address."] * 2,
        *["Too many names are being looked up."] * 4,
    ]
