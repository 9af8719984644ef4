"""What providers stream back: failures that users of such products met, each with the bytes that caused it.

Rows are named by the number of the report. Each is sent over a real socket; checked is what the reader sees, what the
tools were asked to do, and what the model is asked next.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.service import Run
from tests.fakes.upstream import CUT, DONE, Answer, chunk, end, frame, json_answer, stream, text
from tests.field.serving import Field, echoed_calls, is_valid_history, open_field, tool_messages

pytestmark = pytest.mark.anyio

TIN, ZINC = '{"q":"tin"}', '{"q":"zinc"}'


def delta(**fields: Any) -> Any:
    return chunk(fields)


def tc(*calls: dict[str, Any]) -> Any:
    return chunk({"tool_calls": list(calls)})


def fn(name: Any = None, arguments: Any = None, **call: Any) -> dict[str, Any]:
    """One entry of `tool_calls`; a None that was given stays null."""
    return {**call, "function": {"name": name, "arguments": arguments}}


def args(arguments: Any, **call: Any) -> dict[str, Any]:
    return {**call, "function": {"arguments": arguments}}


@dataclass
class Row:
    """One report: the chunks of the first answer, and what must come of it."""

    chunks: list[Any]
    executed: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    text: str = "Done."
    status: str = "finished"
    code: str | None = None
    also: Callable[[Run, Field], bool] = lambda _run, _field: True


LOOK = [("look_up", {"q": "tin"})]
BOTH = [*LOOK, ("look_up", {"q": "zinc"})]
CLOCK: list[tuple[str, Any]] = [("clock", {})]
END = end("tool_calls")

ROWS: dict[str, Row] = {
    "FR-001": Row([tc(fn("look_up", "", id="c1", type="function")), tc(args(TIN)), END], LOOK),
    "FR-002": Row([tc(fn("look_up", TIN, id="c1")), tc(fn("look_up", ZINC, id="c2")), END], BOTH),
    "FR-003": Row(
        [tc(fn("look_up", TIN, index=0, id="c1")), tc(fn("clock", "{}", index=0, id="c2")), END], [*LOOK, *CLOCK]
    ),
    "FR-004": Row(
        [tc(fn("clock", "", index=0)), tc(args("{}", index=0)), END],
        CLOCK,
        also=lambda run, it: (
            echoed_calls(it.request(1))[0]["id"] == tool_messages(it.request(1))[0]["tool_call_id"]
            and bool(echoed_calls(it.request(1))[0]["id"])
            and run.named("tool/call")[0]["originalId"] is None
        ),
    ),
    "FR-005": Row(
        [
            tc(fn("look_up", "", index=0, id="c1", type="function")),
            tc(fn(None, '{"q":', index=0, id="", type=None)),
            tc(fn("", '"tin"}', index=0, id=None)),
            END,
        ],
        LOOK,
    ),
    "FR-006": Row(
        [tc(fn("look_up", '{"q":', index=0, id="c1")), tc(fn("look_up", '"tin"}', index=0, id="c1")), END], LOOK
    ),
    "FR-007": Row(
        [text("Checking."), tc(fn("look_up", TIN, index=1, id="c1")), tc(fn("clock", "{}", index=4, id="c2")), END],
        [*LOOK, *CLOCK],
    ),
    "FR-008": Row(
        [
            tc(fn("look_up", '{"q":', index=0, id="c1"), fn("look_up", '{"q":', index=1, id="c2")),
            tc(args('"tin"}', index=0)),
            tc(args('"zinc"}', index=1)),
            END,
        ],
        BOTH,
    ),
    "FR-009": Row(
        [tc(fn("look_up", {"q": "tin"}, index=0, id="c1")), END],
        LOOK,
        also=lambda _run, it: isinstance(echoed_calls(it.request(1))[0]["function"]["arguments"], str),
    ),
    "FR-010": Row([tc(fn("clock", None, index=0, id="c1")), END], CLOCK),
    "FR-011": Row(
        [tc(fn("clock", " ", index=0, id="c1")), END],
        CLOCK,
        also=lambda _run, it: echoed_calls(it.request(1))[0]["function"]["arguments"] == "{}",
    ),
    "FR-012": Row([tc(fn("clock", "{}", index=0, id="c1")), end("stop")], CLOCK),
    "FR-013": Row(
        [
            tc(fn("look_up", '{"q":"t', index=0, id="c1")),
            chunk({"tool_calls": [args('in"}', index=0)]}, "tool_calls"),
        ],
        LOOK,
    ),
    "FR-014": Row([tc(fn("look_up", TIN, index=0, id="c1")), tc(args(TIN, index=0)), END], LOOK),
    "FR-015": Row(
        [text("Hi"), chunk(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5})],
        text="Hi",
        also=lambda run, _field: run.named("usage")[0]["total_tokens"] == 5,
    ),
    "FR-016": Row(
        [
            chunk(choices=[], prompt_filter_results=[{}]),
            text("Hi"),
            end("stop"),
            {"id": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]},
        ],
        text="Hi",
    ),
    "FR-017": Row(
        [text("So "), {"error": {"message": "quota used up", "code": 429}}],
        text="So ",
        status="error",
        code="upstream_rate_limited",
        also=lambda run, _field: "quota used up" in run.last["message"],
    ),
    "FR-020": Row([b": PROCESSING\n\n", b":\n", text("Hi"), b": x\n\n", end("stop")], text="Hi"),
    "FR-021": Row(
        [b'data:{"choices":[{"delta":{"content":"caf\xc3', b'\xa9"}}]}\r\n\r\n', end("stop")], text="caf\u00e9"
    ),
    "FR-022": Row(
        [
            delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}]),
            delta(content=[{"type": "text", "text": "42"}]),
            end("stop"),
        ],
        text="42",
        also=lambda run, _field: [data["token"] for data in run.named("reasoning")] == ["hmm"],
    ),
    "FR-023": Row(
        [
            delta(reasoning="so", reasoning_details=[{"type": "reasoning.text", "text": "so"}]),
            delta(reasoning_content="then"),
            text("42"),
            end("stop"),
        ],
        text="42",
        also=lambda run, _field: [data["token"] for data in run.named("reasoning")] == ["so", "then"],
    ),
    "FR-024": Row(
        [text("<th"), text("ink>hm</thi"), text("nk>42"), end("stop")],
        text="42",
        also=lambda run, _field: "".join(data["token"] for data in run.named("reasoning")) == "hm",
    ),
    "FR-024 not closed": Row(
        [text("<think>so far"), end("stop")],
        also=lambda run, it: len(it.upstream.asks) == 2 and run.named("reasoning")[0]["token"] == "so far",
    ),
    "FR-024 in prose": Row(
        [text("The tag <think> opens"), text("<think>"), end("stop")], text="The tag <think> opens<think>"
    ),
    "FR-024 half a tag": Row([text(" <thi"), end("stop")], text=" <thi"),
    "FR-024 before a call": Row(
        [text("<think>hm"), text("</think>\n\nOne moment."), tc(fn("clock", "{}", index=0, id="c1")), END],
        CLOCK,
        also=lambda run, _field: run.named("tool/call")[0]["content"] == "One moment.",
    ),
    **{
        f"FR-025 {name}": Row(
            [text("I will look.\n"), text(written[:9]), text(written[9:]), end("stop")],
            CLOCK,
            also=lambda run, it: (
                run.text == "I will look.\nDone."
                and run.named("tool/call")[0]["content"] == "I will look.\n"
                and run.named("tool/call")[0]["originalId"] is None
                and echoed_calls(it.request(1))[0]["function"] == {"name": "clock", "arguments": "{}"}
                and run.named("notice") == []
            ),
        )
        for name, written in {
            "in a tag": '<tool_call>{"name":"clock","arguments":{}}</tool_call>',
            "in another tag": '<function_call>\n{"name":"clock","parameters":{}}\n</function_call>',
            "as markup": "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
            "announced": '[TOOL_CALLS][{"name":"clock","arguments":{}}]',
            "announced by name": "[TOOL_CALLS]clock[ARGS]{}",
            "announced with an id": "[TOOL_CALLS]clock[CALL_ID]123456789[ARGS]{}",
            "as a name in a tag": "<tool_call>clock\n</tool_call>",
            "with a token behind it": '<tool_call>{"name":"clock","arguments":{}}</tool_call><|im_end|>',
            "with null for arguments": '<tool_call>{"name":"clock","arguments":null}</tool_call>',
            "in a fence": '```json\n{"name":"clock","arguments":{}}\n```\n',
        }.items()
    },
    "FR-025 as keys and values": Row(
        [text("<tool_call>look_up\n<arg_key>q</arg_key>\n<arg_value>tin</arg_value>\n</tool_call>"), end("stop")], LOOK
    ),
    "FR-025 bare, two": Row(
        [text('{"name":"clock","arguments":{}}; {"name":"look_up","arguments":{"q":"tin"}}'), end("stop")],
        [*LOOK, *CLOCK],
    ),
    "FR-025 bare": Row([text('{"name":"clock",'), text('"arguments":{}}'), end("stop")], CLOCK),
    **{
        f"FR-025 {name}": Row([text(said), end("stop")], text=said, also=lambda run, _field: run.named("notice") == [])
        for name, said in {
            "spoken of": "Models write <tool_call> before and </tool_call> after a call.",
            "shown": 'Write `<tool_call>{"name":"clock","arguments":{}}</tool_call>` for it.',
            "another's name": '<tool_call>{"name":"delete_all","arguments":{}}</tool_call>',
            "code": '```json\n{"name":"Ada","born":1815}\n```',
            "cut": '<tool_call>{"name":"clock","argu',
        }.items()
    },
    "FR-025 with prose after it": Row(
        [text('<tool_call>{"name":"clock","arguments":{}}</tool_call> is what I would call.'), end("stop")],
        text='<tool_call>{"name":"clock","arguments":{}}</tool_call> is what I would call.',
        also=lambda run, _field: [data["code"] for data in run.named("notice")] == ["written_call"],
    ),
    "FR-025 beside a real call": Row(
        [
            text('<tool_call>{"name":"look_up","arguments":{}}</tool_call>'),
            tc(fn("clock", "{}", index=0, id="c1")),
            END,
        ],
        CLOCK,
        also=lambda run, _field: [data["code"] for data in run.named("notice")] == ["written_call"],
    ),
    "FR-026": Row(
        [tc(fn("save", '{"path":"a.txt","text":"lorem', index=0, id="c1")), end("length")],
        also=lambda run, it: (
            run.named("tool/error")[0]["code"] == "tool_arguments_invalid"
            and "smaller" in tool_messages(it.request(1))[0]["content"]
        ),
    ),
    "FR-027": Row(
        [tc(fn("look_up", '{"q":"tin" "n":1}', index=0, id="c1")), END],
        also=lambda _run, it: "JSON" in tool_messages(it.request(1))[0]["content"],
    ),
    "FR-028": Row([tc(fn("look_up", f"```json\n{TIN}\n``` done", index=0, id="c1")), END], LOOK),
    "FR-029": Row([tc(fn("look_up", TIN, index=0, id="c1"), fn("look_up", ZINC, index=1, id="c1")), END], BOTH),
    "FR-030": Row([text("I will look."), END], text="I will look.", also=lambda _run, it: len(it.upstream.asks) == 1),
    "FR-031": Row(
        [delta(content="Hi", tool_calls=[]), delta(reasoning_content="x", tool_calls=None), end("stop")],
        text="Hi",
        also=lambda run, _field: run.named("reasoning") != [] and run.named("tool/call") == [],
    ),
    "FR-032": Row(
        [tc(fn("lookup_all", "{}", index=0, id="c1"), fn("look_up", TIN, index=1, id="c2")), END],
        LOOK,
        also=lambda run, it: (
            run.named("tool/error")[0]["code"] == "tool_unknown"
            and "look_up" in tool_messages(it.request(1))[0]["content"]
        ),
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_report_of_a_stream_ends_as_it_should(row: Row) -> None:
    async with open_field([stream(*row.chunks)]) as it:
        run = await it.run()
    assert sorted(it.executed, key=repr) == sorted(row.executed, key=repr)
    assert (run.last["status"], run.last.get("code")) == (row.status, row.code)
    if row.status == "finished":
        assert run.answer["text"] == row.text
    else:
        assert run.text == row.text
        assert run.named("finalAnswer") == []
    assert all(is_valid_history(request.json) for request in it.upstream.asks)
    assert row.also(run, it)


BROKEN: dict[str, tuple[Answer, str, str]] = {
    "FR-018": (Answer(), "upstream_failed", ""),
    "FR-019": (stream(text("The result is"), done=False), "upstream_incomplete", "The result is"),
    **{
        f"FR-019 {reason}": (stream(text("The result is"), end(reason)), "upstream_incomplete", "The result is")
        for reason in ("insufficient_system_resource", "network_error", "malformed_function_call", "pause_turn")
    },
    "FR-019 cut": (stream(text("The result is"), CUT), "upstream_incomplete", "The result is"),
}


@pytest.mark.parametrize("row", BROKEN.values(), ids=BROKEN)
async def test_report_of_a_stream_that_has_no_end_is_an_error_that_keeps_the_text(row: tuple[Answer, str, str]) -> None:
    answer, code, said = row
    async with open_field([answer]) as it:
        run = await it.run()
    assert (run.last["status"], run.last["code"]) == ("error", code)
    assert run.text == said


async def test_fr_025_written_call_that_breaks_off_is_shown_as_the_text_it_was() -> None:
    async with open_field([stream(text('So <tool_call>{"name":"clock"'), CUT)]) as it:
        run = await it.run()
    assert run.text == 'So <tool_call>{"name":"clock"'
    assert run.last["code"] == "upstream_incomplete"
    assert it.executed == []


async def test_fr_033_answer_of_nothing_after_a_tool_is_asked_for_again_and_never_a_silent_blank() -> None:
    blank = stream(text(""), end())
    async with open_field([stream(tc(fn("clock", "{}", index=0, id="c1")), END), blank, blank]) as it:
        run = await it.run()
    assert "clock" in run.answer["text"]
    assert len(it.upstream.asks) == 3


async def test_fr_034_server_that_ignores_streaming_is_understood() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    async with open_field([json_answer({"choices": [{"message": message, "finish_reason": "tool_calls"}]})]) as it:
        run = await it.run()
    assert it.executed == CLOCK
    assert run.answer["text"] == "Done."


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_kind_of_all_rows_any_cut_of_the_bytes_gives_the_same(size: int) -> None:
    answers: list[Answer] = []
    async with open_field(lambda _: answers.pop() if answers else stream(text("Done."), end())) as it:
        for number, row in ROWS.items():
            body = b"".join(item if isinstance(item, bytes) else frame(item) for item in row.chunks) + DONE
            answers = [Answer([body[at : at + size * 40] for at in range(0, len(body), size * 40)])]
            it.executed.clear()
            run = await it.run()
            assert sorted(it.executed, key=repr) == sorted(row.executed, key=repr), number
            assert (run.last["status"], run.last.get("code")) == (row.status, row.code), number
