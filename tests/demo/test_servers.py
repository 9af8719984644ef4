"""Every tool of the demo's MCP server, through the SDK's client, in both protocol eras."""

import base64
import struct
import zlib
from collections.abc import AsyncGenerator
from fractions import Fraction
from typing import Literal

import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ImageContent, TextContent

from app.demo.listen import open_demo_server
from app.demo.picture import HEIGHT_PIXELS, WIDTH_PIXELS, png_from_values
from app.demo.servers import TOOL_NAMES
from app.domain.jsontypes import JsonObject

pytestmark = pytest.mark.anyio

Era = Literal["legacy", "auto"]
Action = Literal["accept", "decline", "cancel"]


@pytest.fixture(params=["legacy", "auto"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def url() -> AsyncGenerator[str]:
    async with open_demo_server() as address:
        yield address


@pytest.fixture
async def client(url: str, era: Era) -> AsyncGenerator[Client]:
    async with Client(url, mode=era) as connected:
        yield connected


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


async def test_all_tools_are_listed_with_titles_descriptions_and_hints(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert tuple(tool.name for tool in tools) == TOOL_NAMES
    for tool in tools:
        assert tool.title
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        for schema in tool.input_schema.get("properties", {}).values():
            assert schema["description"]


async def test_the_eras_differ(url: str) -> None:
    async with Client(url, mode="legacy") as old, Client(url, mode="auto") as new:
        assert old.protocol_version < "2026" <= new.protocol_version


@pytest.mark.parametrize(
    ("zone", "told"),
    [("Asia/Tokyo", "in Asia/Tokyo (UTC+09:00)"), ("UTC", "in UTC (UTC+00:00)"), ("Asia/Kolkata", "(UTC+05:30)")],
)
async def test_the_clock_tells_the_time_of_a_zone(client: Client, zone: str, told: str) -> None:
    result = await client.call_tool("clock", {"zone": zone})
    assert not result.is_error
    assert told in text_of(result)


@pytest.mark.parametrize("zone", ["Mars/Base", "Europe", "../etc/passwd", "", "\x00", "Tokyo"])
async def test_an_unknown_zone_is_a_clear_error(client: Client, zone: str) -> None:
    result = await client.call_tool("clock", {"zone": zone})
    assert result.is_error
    assert "is no IANA time zone" in text_of(result)


async def test_dice_give_text_and_structure_that_agree(client: Client) -> None:
    result = await client.call_tool("dice", {"count": 5, "sides": 8})
    roll = result.structured_content
    assert roll is not None
    assert len(roll["rolls"]) == 5
    assert all(1 <= number <= 8 for number in roll["rolls"])
    assert roll["total"] == sum(roll["rolls"])
    assert text_of(result).endswith(f": {', '.join(map(str, roll['rolls']))} (total {roll['total']})")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dice", {"count": 0}),
        ("dice", {"sides": 1}),
        ("dice", {"count": 101}),
        ("countdown", {"seconds": 61}),
        ("chart", {"values": []}),
        ("chart", {"values": [0] * 51}),
        ("chart", {"values": ["tall"]}),
        ("chart", {}),
        ("ask", {"question": ""}),
    ],
)
async def test_arguments_out_of_range_are_tool_errors(client: Client, name: str, arguments: JsonObject) -> None:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    assert "validation error" in text_of(result)


async def test_the_countdown_reports_each_step(client: Client) -> None:
    steps: list[tuple[float, float | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert message
        steps.append((progress, total))

    result = await client.call_tool("countdown", {"seconds": 2}, progress_callback=note)
    assert text_of(result) == "Counted down from 2 to 0"
    assert sorted(steps) == [(0, 2), (1, 2), (2, 2)]


async def test_the_chart_is_a_small_png(client: Client) -> None:
    result = await client.call_tool("chart", {"values": [3, 5, 8]})
    (image,) = (block for block in result.content if isinstance(block, ImageContent))
    assert image.mime_type == "image/png"
    assert base64.b64decode(image.data) == png_from_values([3, 5, 8])
    assert len(image.data) < 2000
    assert text_of(result) == "A bar chart of 3, 5, 8"


async def test_the_failing_tool_fails_and_says_why(client: Client) -> None:
    result = await client.call_tool("fail", {})
    assert result.is_error
    assert "always fails" in text_of(result)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("accept", "Asked 'Which colour?', the user answered: blue"),
        ("decline", "Asked 'Which colour?', the user declined to answer"),
        ("cancel", "Asked 'Which colour?', the user gave no answer"),
    ],
)
async def test_the_user_is_asked_and_any_answer_is_a_result(url: str, era: Era, action: Action, told: str) -> None:
    asked: list[str] = []

    async def reply(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert context.session
        asked.append(params.message)
        return ElicitResult(action=action, content={"answer": "blue"} if action == "accept" else None)

    async with Client(url, mode=era, elicitation_callback=reply) as client:
        result = await client.call_tool("ask", {"question": "Which colour?"})
    assert asked == ["Which colour?"]
    assert not result.is_error
    assert text_of(result) == told


async def test_without_anyone_to_ask_the_call_is_a_clear_error(client: Client) -> None:
    result = await client.call_tool("ask", {"question": "Which colour?"})
    assert result.is_error
    assert "there is nobody to ask" in text_of(result)


def pixel_rows(png: bytes) -> list[bytes]:
    """Decode what our own writer writes: palette indexes, filter 0; checks each chunk's sum on the way."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks: dict[bytes, bytes] = {}
    rest = png[8:]
    while rest:
        length, kind = struct.unpack(">I4s", rest[:8])
        chunks[kind] = rest[8 : 8 + length]
        assert zlib.crc32(kind + chunks[kind]) == struct.unpack(">I", rest[8 + length : 12 + length])[0]
        rest = rest[12 + length :]
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (WIDTH_PIXELS, HEIGHT_PIXELS, 8, 3, 0, 0, 0)
    data = zlib.decompress(chunks[b"IDAT"])
    rows = [data[start : start + WIDTH_PIXELS + 1] for start in range(0, len(data), WIDTH_PIXELS + 1)]
    assert len(rows) == HEIGHT_PIXELS
    assert {row[0] for row in rows} == {0}
    return [row[1:] for row in rows]


def bar_heights(values: list[float]) -> list[int]:
    """Pixels of each value's bar, counted in the middle of the bar; negative for bars that hang down."""
    rows = pixel_rows(png_from_values(values))
    place = (WIDTH_PIXELS - 16) / len(values)
    columns = [8 + int((index + 0.4) * place) for index in range(len(values))]
    return [sum({2: 1, 3: -1}.get(row[column], 0) for row in rows) for column in columns]


@pytest.mark.parametrize(
    "values",
    [
        [3, 5, 8],
        [8, 4, -8, -4, 0],
        [-1, -2],
        [1e308, -1e308],
        [0, 0],
        [7],
        [5e-324],
        [index / 7 for index in range(50)],
    ],
)
def test_bars_are_as_high_as_their_values(values: list[float]) -> None:
    heights = bar_heights(values)
    span = Fraction(max(*values, 0)) - Fraction(min(*values, 0))  # floats would overflow or vanish
    for value, height in zip(values, heights, strict=True):
        expected = Fraction(value) / (span or 1) * (HEIGHT_PIXELS - 16)
        assert abs(height - expected) <= 2
