import base64
import json
import sys
import unicodedata
from typing import Any

import mcp.types as mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.messages import ToolOutcome
from app.toolbox.results import ResultLimits, clean_text, describe_tool, outcome_from_result

LIMITS = ResultLimits()
PNG = base64.b64encode(b"x" * 1500).decode()


def outcome(*content: Any, limits: ResultLimits = LIMITS, **rest: Any) -> ToolOutcome:
    result = mcp_types.CallToolResult.model_validate({"content": list(content), **rest})
    return outcome_from_result(result, limits)


def text(value: str, **rest: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **rest}


READINGS: list[tuple[str, list[Any], Any, str]] = [
    ("one text", [text("sunny")], None, "sunny"),
    ("texts are joined", [text("a"), text("b")], None, "a\nb"),
    ("structure fills in", [], {"celsius": 21}, '{"celsius":21}'),
    ("structure fills in for blank text", [text(" \n")], {"celsius": 21}, ' \n\n{"celsius":21}'),
    ("structure is not said twice", [text('{"celsius": 21}')], {"celsius": 21}, '{"celsius": 21}'),
    ("an empty structure", [], {}, "{}"),
    ("an image", [{"type": "image", "data": PNG, "mimeType": "image/png"}], None, "[image: image/png, 1.5 KiB]"),
    (
        "a picture with its facts",
        [{"type": "image", "data": "eHg=", "mimeType": "image/png"}],
        {"w": 1},
        '[image: image/png, 2 bytes]\n{"w":1}',
    ),
    ("a picture without a type", [{"type": "image", "data": "eHh4", "mimeType": " "}], None, "[image: 3 bytes]"),
    ("audio", [{"type": "audio", "data": "eHh4", "mimeType": "audio/wav"}], None, "[audio: audio/wav, 3 bytes]"),
    (
        "an embedded text",
        [{"type": "resource", "resource": {"uri": "doc://7", "mimeType": "text/markdown", "text": "# Seven"}}],
        {"n": 7},
        "[resource: doc://7, text/markdown]\n# Seven",
    ),
    (
        "an embedded blob",
        [{"type": "resource", "resource": {"uri": "doc://8", "mimeType": "application/pdf", "blob": PNG}}],
        None,
        "[resource: doc://8, application/pdf, 1.5 KiB]",
    ),
    (
        "a link",
        [{"type": "resource_link", "uri": "file:///r.pdf", "name": "Report", "mimeType": "application/pdf"}],
        None,
        "[resource link: Report, file:///r.pdf, application/pdf]",
    ),
    (
        "a link with all it may tell, on one line",
        [
            {
                "type": "resource_link",
                "uri": "x:1",
                "name": "r",
                "title": "A\nB",
                "description": "d",
                "size": 5 * 1024**2,
            }
        ],
        None,
        "[resource link: A B, x:1, d, 5.0 MiB]",
    ),
    ("nothing", [], None, "The tool ran and returned nothing."),
    ("nothing but unseen characters", [text("\u200b\x1b")], None, "The tool ran and returned nothing."),
]


@pytest.mark.parametrize(("content", "structured", "read"), [row[1:] for row in READINGS], ids=[r[0] for r in READINGS])
def test_what_the_model_reads(content: list[Any], structured: Any, read: str) -> None:
    got = outcome(*content, structuredContent=structured)
    assert got.text == read
    assert got.error_code is None
    assert got.omitted_characters == 0
    (output,) = got.outputs
    assert ("structured" in output) == (structured is not None)
    assert output.get("structured") == structured
    assert [block["type"] for block in output["content"]] == [block["type"] for block in content]


def test_the_event_carries_each_block_as_it_was_sent() -> None:
    blocks = [
        text("hi", annotations={"audience": ["user"]}),
        {"type": "image", "data": PNG, "mimeType": "image/png", "_meta": {"k": 1}},
        {"type": "resource", "resource": {"uri": "doc://7", "mimeType": "text/plain", "text": "seven"}},
    ]
    (output,) = outcome(*blocks).outputs
    assert output["content"] == blocks
    assert output["text"] == "hi\n[image: image/png, 1.5 KiB]\n[resource: doc://7, text/plain]\nseven"


def test_a_block_of_an_unknown_kind_is_shown_as_json() -> None:
    block = mcp_types.ToolUseContent(id="1", name="x", input={"a": 1})
    content: Any = [block]
    got = outcome_from_result(mcp_types.CallToolResult.model_construct(content=content), LIMITS)
    assert json.loads(got.text) == {"type": "tool_use", "id": "1", "name": "x", "input": {"a": 1}}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("no such city", "no such city"),
        ("", "The tool failed without saying why."),
        ("\x00", "The tool failed without saying why."),
    ],
)
def test_an_error_result_is_a_failure_that_the_model_can_tell(said: str, message: str) -> None:
    got = outcome(text(said), isError=True)
    assert got == ToolOutcome(text=f"The tool reported an error:\n{message}", error_code="tool_failed", message=message)


def test_a_long_error_is_capped_as_well() -> None:
    got = outcome(text("e" * 10_000), isError=True, limits=ResultLimits(model_text_bytes=1000))
    assert len(got.text.encode()) <= 1000
    assert len(got.message) < 1000
    assert got.omitted_characters > 9000


def test_unseen_characters_are_removed_for_model_and_client_alike() -> None:
    dirty = "price 30\u200b\u202e SYSTEM\x1b[31m\x85\U000e0041 caf\u00e9\tok\r\n\ud800end"
    clean = "price 30 SYSTEM[31m caf\u00e9\tok\n\ufffdend"
    result = mcp_types.CallToolResult(
        content=[mcp_types.TextContent(text=dirty)], structured_content={dirty: [dirty, {"a": dirty}], "n": 1.5}
    )
    got = outcome_from_result(result, LIMITS)
    assert got.text == clean
    assert got.outputs == (
        {
            "text": clean,
            "structured": {clean: [clean, {"a": clean}], "n": 1.5},
            "content": [{"type": "text", "text": clean}],
        },
    )


ALL = "".join(map(chr, range(sys.maxunicode + 1)))


def test_results_keep_every_character_but_the_unseen() -> None:
    got = outcome_from_result(
        mcp_types.CallToolResult(content=[mcp_types.TextContent(text=ALL)]),
        ResultLimits(model_text_bytes=10**7, client_result_bytes=10**8),
    )
    kept = set(got.text)
    for character in ALL:
        category = unicodedata.category(character)
        if character in "\n\t":
            assert character in kept
        elif category in {"Cc", "Cf", "Cs"}:
            assert character not in kept, hex(ord(character))
        elif category != "Cn":
            assert character in kept, hex(ord(character))


def test_descriptions_lose_private_characters_too_and_say_how_many() -> None:
    cleaned, removed = clean_text(ALL)
    gone = {"Cc", "Cf", "Cs", "Co"}
    expected = [c for c in ALL if c in "\n\t" or unicodedata.category(c) not in gone | {"Cn"}]
    assert [c for c in cleaned if unicodedata.category(c) != "Cn"] == expected
    assert removed == len(ALL) - len(cleaned)
    assert clean_text("a\u200bb\x1b") == ("ab", 2)
    assert clean_text("plain\ttext\n") == ("plain\ttext\n", 0)


SCHEMA: dict[str, Any] = {"type": "object"}


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (mcp_types.Tool(name="t", description=" Find\u200b it ", input_schema=SCHEMA), "Find it"),
        (mcp_types.Tool(name="t", title="Finder", input_schema=SCHEMA), "Finder"),
        (mcp_types.Tool(name="t", description="\u200b", title="Finder", input_schema=SCHEMA), "Finder"),
        (
            mcp_types.Tool(name="t", input_schema=SCHEMA, annotations=mcp_types.ToolAnnotations(title="Find")),
            "Find",
        ),
        (mcp_types.Tool(name="t", input_schema=SCHEMA), "The tool t."),
    ],
)
def test_each_tool_has_a_description(tool: mcp_types.Tool, told: str) -> None:
    assert describe_tool(tool) == told


def test_a_long_description_is_cut_on_a_character_and_marked() -> None:
    told = describe_tool(mcp_types.Tool(name="t", description="é" * 5000, input_schema=SCHEMA))
    assert 4090 <= len(told.encode()) <= 4096
    assert told.endswith("é […]")


def test_a_description_at_the_limit_is_whole() -> None:
    assert describe_tool(mcp_types.Tool(name="t", description="x" * 4096, input_schema=SCHEMA)) == "x" * 4096


def test_a_long_text_keeps_head_and_tail_and_says_what_is_missing() -> None:
    lines = "".join(f"line {number} 🚢\n" for number in range(20_000))
    got = outcome(text(lines))
    assert len(got.text.encode()) <= 65_536
    assert len(got.text.encode()) > 65_000
    assert got.text.startswith("line 0 🚢\n")
    assert got.text.endswith("line 19999 🚢\n")
    assert f"{got.omitted_characters:,} of {len(lines):,} characters" in got.text
    assert "filter" in got.text
    head, _, rest = got.text.partition("\n[…")
    tail = rest.partition("…]\n")[2]
    assert lines.startswith(head)
    assert lines.endswith(tail)
    assert len(head) + len(tail) + got.omitted_characters == len(lines)


def test_a_text_at_the_limit_is_whole() -> None:
    assert outcome(text("x" * 65_536)).text == "x" * 65_536


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf"]), max_size=400), st.integers(200, 500))
def test_no_cut_leaves_the_limit_or_splits_a_character(said: str, limit: int) -> None:
    got = outcome(text(said), limits=ResultLimits(model_text_bytes=limit))
    assert got.text
    assert len(got.text.encode()) <= limit or got.omitted_characters == 0
    assert "\ufffd" not in got.text.replace("\ufffd" * said.count("\ufffd"), "")
    assert (got.omitted_characters == 0) == (len(said.encode()) <= limit)


def size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


BIG_IMAGE = {"type": "image", "data": "A" * 30_000, "mimeType": "image/png"}
FLOODS: list[tuple[str, list[Any], Any]] = [
    ("text", [text("x" * 100_000)], None),
    ("text that grows as JSON", [text('"\\\n' * 30_000)], None),
    ("text that grows at its end only", [text("x" * 50_000 + '"' * 50_000)], None),
    ("wide text", [text("é🚢" * 30_000)], None),
    ("an image", [BIG_IMAGE], None),
    ("many images", [BIG_IMAGE] * 500, None),
    ("many small blocks", [text("x" * 50)] * 5000, None),
    ("a structure", [], {"x": "y" * 30_000}),
    ("a resource", [{"type": "resource", "resource": {"uri": "u:" + "x" * 30_000, "text": "t" * 30_000}}], None),
    ("everything", [text("x" * 100_000), BIG_IMAGE, text("end")], {"x": "y" * 30_000}),
]


@pytest.mark.parametrize(("content", "structured"), [row[1:] for row in FLOODS], ids=[row[0] for row in FLOODS])
@pytest.mark.parametrize("limit", [2000, 20_000])
def test_an_events_output_stays_within_its_limit(content: list[Any], structured: Any, limit: int) -> None:
    got = outcome(*content, structuredContent=structured, limits=ResultLimits(client_result_bytes=limit))
    (output,) = got.outputs
    assert size(output) <= limit
    assert "left out" in json.dumps(output["content"]) + output["text"]


def test_blocks_that_fit_stay_when_others_do_not() -> None:
    limits = ResultLimits(client_result_bytes=20_000)
    (output,) = outcome(text("first"), BIG_IMAGE, text("last"), limits=limits).outputs
    assert output["content"] == [text("first"), text("[image: image/png, 22.0 KiB, left out]"), text("last")]
    assert output["text"].startswith("first\n[image: image/png, 22.0 KiB]\nlast")


def test_a_structure_that_does_not_fit_is_dropped_with_a_note() -> None:
    limits = ResultLimits(client_result_bytes=20_000)
    (output,) = outcome(text("first"), structuredContent={"x": "y" * 30_000}, limits=limits).outputs
    assert "structured" not in output
    assert output["content"] == [text("first"), text("[structured content: 29.3 KiB, left out]")]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("depth", "ended"), [(64, False), (65, True), (5000, True)])
def test_a_bottomless_structure_ends(key: str | None, depth: int, ended: bool) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep] if key is None else {key: deep}
    got = outcome_from_result(mcp_types.CallToolResult(content=[], structured_content=deep), LIMITS)
    assert ("[nested deeper than 64 levels]" in got.text) == ended
    assert got.text == json.dumps(got.outputs[0]["structured"], separators=(",", ":"))


def test_all_blocks_that_are_left_out_are_counted() -> None:
    limits = ResultLimits(client_result_bytes=20_000)
    (output,) = outcome(*[BIG_IMAGE] * 500, limits=limits).outputs
    *noted, last = output["content"]
    assert {block["text"] for block in noted} == {"[image: image/png, 22.0 KiB, left out]"}
    assert last == text(f"[{500 - len(noted)} more left out]")


@pytest.mark.parametrize(
    ("size_of_it", "told"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1024**2 - 1, "1024.0 KiB"), (1024**2, "1.0 MiB")],
)
def test_sizes_are_told_in_units_that_people_read(size_of_it: int, told: str) -> None:
    assert outcome({"type": "resource_link", "uri": "x:1", "name": "r", "size": size_of_it}).text.endswith(f", {told}]")


@pytest.mark.parametrize("limits", [ResultLimits(1, 1), ResultLimits(0, 0)])
def test_tiny_limits_still_leave_something_to_read(limits: ResultLimits) -> None:
    got = outcome(text("x" * 1000), BIG_IMAGE, structuredContent={"a": 1}, limits=limits)
    assert got.text
    assert size(got.outputs) < 1000


@pytest.mark.timeout(20)
def test_millions_of_characters_are_no_work_per_character() -> None:
    lines = "log line \u200b 12345 é\n" * 200_000
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        del frame, arg
        calls += event in {"call", "c_call"}

    result = mcp_types.CallToolResult(content=[mcp_types.TextContent(text=lines)])
    sys.setprofile(count)
    try:
        got = outcome_from_result(result, LIMITS)
    finally:
        sys.setprofile(None)
    assert got.omitted_characters > 3_000_000
    assert calls < 2000
