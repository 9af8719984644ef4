import base64
import json
import sys
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.messages import ToolOutcome
from app.toolbox.cleaning import clean_text, shown_name
from app.toolbox.results import ResultLimits, outcome_from_result

LIMITS = ResultLimits()
PNG = base64.b64encode(b"x" * 1500).decode()


def outcome(*content: Any, limits: ResultLimits = LIMITS, **rest: Any) -> ToolOutcome:
    got = outcome_from_result({"content": list(content), **rest}, limits)
    assert got is not None
    return got


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
    ("nothing but unseen characters", [text("\u200b\x1b")], None, "The tool ran and returned no visible text."),
    ("an empty text", [text("")], None, "The tool ran and returned no visible text."),
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


@pytest.mark.parametrize(
    ("block", "read"),
    [
        ({"type": "tool_use", "id": "1", "input": {"a": 1}}, '{"type":"tool_use","id":"1","input":{"a":1}}'),
        ({"type": ["text"], "text": "x"}, '{"type":["text"],"text":"x"}'),
        ({}, "{}"),
        (5, "5"),
        ("plain", '"plain"'),
        (
            {"type": "video", "uri": "x:1", "mimeType": "video/mp4", "data": PNG},
            '{"type":"video","uri":"x:1","mimeType":"video/mp4","data":"[data: 1.5 KiB]"}',
        ),
        ({"type": "wide", "all": [0] * 300}, f'{{"type":"wide","all":[{"0," * 197}"[103 more left out]"]}}'),
    ],
)
def test_a_block_of_an_unknown_kind_is_shown_as_json_without_its_bytes(block: Any, read: str) -> None:
    got = outcome(block)
    assert got.text == read
    assert got.outputs[0]["content"] == [text(read)]


LINK = {"type": "resource_link", "uri": "x:1", "name": "r"}
TRIMMINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("annotations out of range", text("good", annotations={"audience": ["user"], "priority": 7}), text("good")),
    ("annotations that are none", text("good", annotations=5), text("good")),
    ("metadata that is none", text("good", _meta="x"), text("good")),
    ("metadata without end", text("good", _meta={str(number): number for number in range(1000)}), text("good")),
    ("nulls", text("good", annotations=None, _meta=None), text("good")),
    ("link with an odd size", {**LINK, "size": "large", "title": "R"}, {**LINK, "title": "R"}),
    ("link with odd icons", {**LINK, "icons": 5, "mimeType": "a/b"}, {**LINK, "mimeType": "a/b"}),
    (
        "resource with odd fields",
        {"type": "resource", "resource": {"uri": "x:1", "text": "t", "_meta": 5, "mimeType": 5}, "annotations": 5},
        {"type": "resource", "resource": {"uri": "x:1", "text": "t"}},
    ),
    (
        "picture with odd annotations",
        {"type": "image", "data": "eHg=", "mimeType": "image/png", "annotations": [1]},
        {"type": "image", "data": "eHg=", "mimeType": "image/png"},
    ),
]


@pytest.mark.parametrize(("block", "kept"), [row[1:] for row in TRIMMINGS], ids=[row[0] for row in TRIMMINGS])
def test_odd_trimmings_do_not_cost_their_block(block: dict[str, Any], kept: dict[str, Any]) -> None:
    got = outcome(block)
    assert got.outputs == outcome(kept).outputs
    assert got.outputs[0]["content"] == [kept]
    assert got.text == outcome(kept).text


UNREADABLE: list[dict[str, Any]] = [
    {"type": "text", "text": 5},
    {"type": "text"},
    {"type": "image", "data": "eHg="},
    {"type": "audio", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "x:1"}},
    {"type": "resource", "resource": "x"},
    {"type": "resource_link", "name": "x"},
]


@pytest.mark.parametrize("block", UNREADABLE)
def test_a_block_that_cannot_be_read_is_named_and_does_not_hide_the_structure(block: dict[str, Any]) -> None:
    note = f"[unreadable block of type {block['type']}]"
    got = outcome(block)
    assert got.text == note
    assert got.outputs[0]["content"] == [text(note)]
    assert outcome(block, text("good")).text == f"{note}\ngood"
    assert outcome(block, structuredContent={"a": 1}).text == f'{note}\n{{"a":1}}'


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ({"content": None, "structuredContent": {"a": 1}}, '{"a":1}'),
        ({"content": None, "isError": None}, "The tool ran and returned nothing."),
        ({"content": [text("good")], "isError": None, "structuredContent": None}, "good"),
        ({"structuredContent": "good"}, '"good"'),
        ({}, None),
        ({"structuredContents": {}}, None),
        ({"content": "good"}, "good"),
        ({"content": text("good")}, None),
    ],
)
def test_null_is_absent_and_what_has_neither_content_nor_structure_is_no_result(raw: Any, read: str | None) -> None:
    got = outcome_from_result(raw, LIMITS)
    assert (got and got.text) == read
    assert got is None or got.error_code is None


BYTES = base64.b64encode(bytes(range(256)) * 40).decode()
PICTURE = {"type": "image", "data": BYTES, "mimeType": "image/png"}


@pytest.mark.parametrize(
    "block",
    [
        PICTURE,
        {"type": "audio", "data": BYTES, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "x:1", "blob": BYTES}},
    ],
)
def test_structure_that_repeats_a_picture_is_not_told_to_the_model(block: dict[str, Any]) -> None:
    got = outcome(block, structuredContent={"content": [block]})
    assert got.text == outcome(block).text
    assert len(got.text) < 60
    assert got.outputs[0]["structured"] == {"content": [block]}
    assert BYTES not in got.outputs[0]["text"]


@pytest.mark.parametrize(
    ("structure", "read"),
    [
        (PICTURE, {**PICTURE, "data": "[data: 10.0 KiB]"}),
        ({"a": [{"type": "audio", "data": "eHg="}]}, {"a": [{"type": "audio", "data": "[data: 2 bytes]"}]}),
        ({"uri": "x:1", "blob": "eHg="}, {"uri": "x:1", "blob": "[data: 2 bytes]"}),
        ({"mimeType": "a/b", "data": ""}, {"mimeType": "a/b", "data": "[data: 0 bytes]"}),
        ({"png": BYTES}, {"png": "[data: 10.0 KiB]"}),
        ([BYTES.replace("+", "-").replace("/", "_")], ["[data: 10.0 KiB]"]),
        ({"png": "\n".join([BYTES[:76]] * 100)}, {"png": "[data: 5.6 KiB]"}),
        ({"png": f"data:image/png;base64,{BYTES}"}, {"png": "[data: 10.0 KiB]"}),
        ({"blob": "main", "data": "x"}, {"blob": "main", "data": "x"}),
        ({"genome": "ACGT" * 1000, "sha": "0a" * 2000}, {"genome": "ACGT" * 1000, "sha": "0a" * 2000}),
        ({"files": "Read-me\n" * 1000}, {"files": "Read-me\n" * 1000}),
        ({"cursor": BYTES[:2000]}, {"cursor": BYTES[:2000]}),
        ({"prose": "Some words. " * 500}, {"prose": "Some words. " * 500}),
    ],
)
def test_bytes_in_a_structure_are_notes_for_the_model(structure: Any, read: Any) -> None:
    got = outcome(structuredContent=structure)
    assert json.loads(got.text) == read
    assert got.outputs[0]["structured"] == structure


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
    expected = ToolOutcome(text=f"The tool reported an error:\n{message}", error_code="tool_failed", message=message)
    assert replace(got, hidden_characters=0) == expected


def test_a_long_error_is_capped_as_well() -> None:
    got = outcome(text("e" * 10_000), isError=True, limits=ResultLimits(model_text_bytes=1000))
    assert len(got.text.encode()) <= 1000
    assert len(got.message) < 1000
    assert got.omitted_characters > 9000


def test_unseen_characters_are_removed_for_model_and_client_alike() -> None:
    dirty = "price 30\u200b\u202e SYSTEM\x1b[31m\x85\U000e0041 caf\u00e9\tok\r\n\ud800end"
    clean = "price 30 SYSTEM[31m caf\u00e9\tok\n\ufffdend"
    got = outcome(text(dirty), structuredContent={dirty: [dirty, {"a": dirty}], "n": 1.5})
    assert got.text == clean
    assert got.outputs == (
        {
            "text": clean,
            "structured": {clean: [clean, {"a": clean}], "n": 1.5},
            "content": [{"type": "text", "text": clean}],
        },
    )


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("a\u200bb", 1),
        ("\x1b[31mred\x1b[0m", 2),
        ("\u202eno\u202c", 2),
        ("x" + "".join(chr(0xE0000 + ord(letter)) for letter in "do evil"), 7),
        ("family \U0001f468\u200d\U0001f469\u200d\U0001f467, mi\u200cxed, so\u00adft, \u200fright\r\n\ufeff", 0),
        ("plain \u00e9\t\n", 0),
    ],
)
def test_characters_that_hide_something_are_counted_and_ordinary_ones_are_not(said: str, count: int) -> None:
    assert outcome(text(said)).hidden_characters == count
    assert outcome(structuredContent={"a": [said]}).hidden_characters == count
    assert outcome(text(said), structuredContent={"a": said}).hidden_characters == count, "said twice, counted once"
    assert outcome(text(said), isError=True).hidden_characters == count


ALL = "".join(map(chr, range(sys.maxunicode + 1)))
VARIANTS = set(map(chr, range(0xE0100, 0xE01F0)))
"""Of ideographs; they carry a byte each to whoever does not look."""


def test_results_keep_every_character_but_the_unseen() -> None:
    got = outcome(text(ALL), limits=ResultLimits(model_text_bytes=10**7, client_result_bytes=10**8))
    kept = set(got.text)
    for character in ALL:
        category = unicodedata.category(character)
        if character in "\n\t":
            assert character in kept
        elif category in {"Cc", "Cf", "Cs"} or character in VARIANTS:
            assert character not in kept, hex(ord(character))
        elif category != "Cn":
            assert character in kept, hex(ord(character))


def test_descriptions_lose_private_characters_too() -> None:
    cleaned = clean_text(ALL)
    gone = {"Cc", "Cf", "Cs", "Co"}
    blank = VARIANTS | set("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | set(map(chr, range(0xFE00, 0xFE0F)))
    expected = [c for c in ALL if c in "\n\t" or (unicodedata.category(c) not in gone | {"Cn"} and c not in blank)]
    assert [c for c in cleaned if unicodedata.category(c) != "Cn"] == expected
    assert clean_text("a\u200bb\x1b") == "ab"
    assert clean_text("plain\ttext\n") == "plain\ttext\n"
    assert clean_text("x" * 70_000 + "\u200b") == "x" * 70_000


def test_names_are_shown_on_one_line_and_end_somewhere() -> None:
    assert shown_name(" a\n\tb\u200b ", 20) == "a b"
    assert shown_name("abcdef", 3) == "abc…"
    assert shown_name("\u200b", 3) == ""


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
    assert got.is_cut_for_reader
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
    got = outcome(structuredContent=deep)
    assert ("[nested deeper than 64 levels]" in got.text) == ended
    assert got.text == json.dumps(got.outputs[0]["structured"], separators=(",", ":"))


def test_all_blocks_that_are_left_out_are_counted() -> None:
    limits = ResultLimits(client_result_bytes=20_000)
    (output,) = outcome(*[BIG_IMAGE] * 500, limits=limits).outputs
    *noted, last = output["content"]
    assert {block["text"] for block in noted} == {"[image: image/png, 22.0 KiB, left out]"}
    assert last == text(f"[{500 - len(noted)} more left out]")


def test_blocks_beyond_a_few_hundred_are_counted_and_not_read() -> None:
    got = outcome(*[text("ab")] * 256, *[BIG_IMAGE] * 1000, *[text("four")] * 1000)
    assert got.text == "ab\n" * 256 + "[2,000 more blocks left out]"
    assert got.omitted_characters == 4000
    assert got.is_cut_for_reader
    assert got.outputs[0]["content"] == [text("ab")] * 256 + [text("[2000 more left out]")]


def test_a_structure_with_too_many_parts_is_told_up_to_there_and_not_shown() -> None:
    got = outcome(structuredContent={"rows": [{"n": number} for number in range(100_000)], "total": 100_000})
    assert got.text.startswith('{"rows":[{"n":0},{"n":1},')
    assert got.text.endswith('more left out]"],"…":"[1 more left out]"}')
    assert got.is_cut_for_reader
    assert "structured" not in got.outputs[0]
    assert got.outputs[0]["content"] == [text("[structured content: more than 20,000 parts, left out]")]


@pytest.mark.parametrize(
    ("content", "omitted"), [([text("short")], False), ([BIG_IMAGE], False), ([BIG_IMAGE, text("x" * 30_000)], True)]
)
def test_what_only_the_reader_misses_is_told_apart(content: list[Any], *, omitted: bool) -> None:
    limits = ResultLimits(model_text_bytes=25_000, client_result_bytes=20_000)
    got = outcome(*content, limits=limits)
    assert got.is_cut_for_reader == (BIG_IMAGE in content)
    assert (got.omitted_characters > 0) == omitted
    assert not outcome(*content).is_cut_for_reader


HEAVY: list[tuple[str, dict[str, Any]]] = [
    ("blocks", {"content": [text("ab")] * 100_000}),
    ("parts", {"structuredContent": {str(number): [number] for number in range(250_000)}}),
    ("leaves", {"structuredContent": [0] * 500_000}),
    ("metadata", {"content": [text("a", _meta={"all": [0] * 1000})] * 500}),
    ("unknown kinds", {"content": [{"type": "x", "all": [0] * 1000}] * 500}),
]


@pytest.mark.parametrize("raw", [row[1] for row in HEAVY], ids=[row[0] for row in HEAVY])
def test_work_for_a_result_does_not_grow_with_its_parts(raw: dict[str, Any]) -> None:
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        del frame, arg
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert outcome_from_result(raw, LIMITS) is not None
    finally:
        sys.setprofile(None)
    assert calls < 600_000


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

    sys.setprofile(count)
    try:
        got = outcome(text(lines))
    finally:
        sys.setprofile(None)
    assert got.omitted_characters > 3_000_000
    assert calls < 2000


def test_failure_without_content_is_a_failure() -> None:
    failed = outcome_from_result({"isError": True}, ResultLimits())
    assert failed is not None
    assert failed.error_code == "tool_failed"
