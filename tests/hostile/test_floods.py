"""MCP servers that answer a call with more than anyone can take."""

from typing import Final

import pytest

from tests.fakes.hostile import MIB, Tally, Victim, open_siege, pouring
from tests.fakes.raw_mcp import open_raw_mcp
from tests.hostile.floods import FLOODS

pytestmark = [pytest.mark.anyio, pytest.mark.soak]

MOST_GROWN: Final = 96 * MIB
MOST_TAKEN: Final = 40 * MIB
"""Of one answer: the 16 MiB of an event stream, in chunks that are half overhead, and the buffers of two sockets."""


LONG: Final = ("requests to ask a person", "answers to others", "changes of its tools")
"""Their 65,536 messages take seconds, and as long as those of `requests`."""


@pytest.mark.parametrize(
    "flood", [pytest.param(flood, marks=pytest.mark.soak if flood in LONG else ()) for flood in FLOODS]
)
async def test_call_that_is_answered_without_end_fails_while_others_go_on(victim: Victim, flood: str) -> None:
    tally = Tally()
    reply = pouring(tally, *FLOODS[flood])
    async with open_siege(victim) as siege, open_raw_mcp({"tools/call": reply}) as server:
        with victim.growth() as growth:
            outcomes = await siege.withstand(lambda: siege.strike(server.url))
    code, _ = outcomes[0]
    assert code in ("tool_outcome_unknown", "tool_failed", "tool_timeout", "server_unreachable"), outcomes
    assert tally.most < MOST_TAKEN
    assert growth.bytes < MOST_GROWN
