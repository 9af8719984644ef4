"""The loop with scripted twins at its two ports: what is asked, what is told, how it ends."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from app.domain.errors import Conflict, UpstreamFailed
from app.domain.jsontypes import JsonObject
from app.domain.limits import RunLimits
from app.domain.messages import CallFragment, Finish, Progress, ReasoningDelta, TextDelta, ToolOutcome, Usage
from app.domain.ports import Person, Ticket
from app.domain.questions import CANCELLED, InputAnswer
from app.journal.memory import MemoryJournal, Options, RunLog
from app.run.act import Hands
from app.run.answer import Answer
from app.run.listen import Ears
from app.run.loop import run_loop
from app.run.prompt import NUDGE
from app.run.stream import carry
from app.run.talk import Talk
from tests.fakes.ports import Riddle, ScriptedModel, ScriptedToolbox, calls, says, text

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Go"}


@dataclass
class Told:
    """What a run came to."""

    events: list[tuple[str, Any]]
    log: RunLog
    model: ScriptedModel
    toolbox: ScriptedToolbox

    def named(self, name: str) -> list[Any]:
        return [data for event, data in self.events if event == name]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    @property
    def messages(self) -> list[JsonObject]:
        return self.log.snapshot()["messages"]


async def told(log: RunLog) -> list[tuple[str, Any]]:
    entries = list(await log.read(0)) if log.last_id else []
    return [(entry.name, json.loads(entry.data)) for entry in entries]


@pytest.mark.parametrize(("mode", "shown"), [("separate", "hm"), ("inline", "hm"), ("hidden", None)])
async def test_reasoning_before_calls_is_told_with_the_first_of_them_unless_hidden(
    mode: str, shown: str | None
) -> None:
    model = ScriptedModel([ReasoningDelta("hm"), *calls(("a", "{}"), ("b", "{}"))], text("ok"))
    result = await run(model, ScriptedToolbox({"a": says("1"), "b": says("2")}), reasoning=mode)
    assert [call.get("reasoning") for call in result.named("tool/call")] == [shown, None]


async def run(
    model: ScriptedModel,
    toolbox: ScriptedToolbox | None = None,
    *,
    limits: RunLimits | None = None,
    rounds: int = 10,
    reasoning: Any = "separate",
    images: Sequence[str] = (),
    meanwhile: Callable[[RunLog], Any] | None = None,
    choice: Any = "auto",
) -> Told:
    toolbox = toolbox or ScriptedToolbox()
    limits = limits or RunLimits()
    log = MemoryJournal(Options()).open("run_1")
    ears = Ears(model, log.append, reasoning, limits.reasoning_as_answer)
    hands = Hands(toolbox, log.append, limits, images, hides_reasoning=reasoning == "hidden")

    async def cross(_person: Person) -> Any:
        answer = await run_loop(Talk((USER,), log, toolbox, choice), ears, hands, max_rounds=rounds)
        return answer, ears.usage

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: carry(log, cross, limits=limits))
            if meanwhile:
                await meanwhile(log)
    return Told(await told(log), log, model, toolbox)


async def test_plain_text_is_streamed_and_becomes_the_answer() -> None:
    result = await run(ScriptedModel(text("Hel", "lo")))
    assert result.events == [
        ("stream", {"type": "stream", "token": "Hel"}),
        ("stream", {"type": "stream", "token": "lo"}),
        ("finalAnswer", {"type": "finalAnswer", "text": "Hello", "reason": "stop", "interrupted": False}),
        ("status", {"type": "status", "status": "finished", "outcome": "completed"}),
    ]
    assert result.messages == [{"role": "assistant", "content": "Hello"}]


async def test_calls_run_side_by_side_and_are_answered_in_call_order() -> None:
    first_may_end = anyio.Event()

    async def slow(_arguments: JsonObject, _progress: Any) -> ToolOutcome:
        await first_may_end.wait()
        return ToolOutcome(text="slow done")

    async def quick(_arguments: JsonObject, _progress: Any) -> ToolOutcome:
        first_may_end.set()
        return ToolOutcome(text="quick done")

    model = ScriptedModel(calls(("slow", "{}"), ("quick", '{"a":1}')), text("Done"))
    result = await run(model, ScriptedToolbox({"slow": slow, "quick": quick}))
    assert [data["subtype"] for data in (*result.named("tool/call"), *result.named("tool/eta"))] == ["call"] * 2 + [
        "eta"
    ] * 2
    by_uuid = {data["uuid"]: data["call"]["name"] for data in result.named("tool/call")}
    assert [by_uuid[data["uuid"]] for data in result.named("tool/result")] == ["quick", "slow"]
    second = model.asks[1].messages
    assert [message["role"] for message in second] == ["user", "assistant", "tool", "tool"]
    assert [(m["tool_call_id"], m["content"]) for m in second[2:]] == [("id0", "slow done"), ("id1", "quick done")]
    assert [call["id"] for call in second[1]["tool_calls"]] == ["id0", "id1"]


async def test_announcements_come_before_any_result() -> None:
    result = await run(
        ScriptedModel(calls(("a", "{}"), ("a", '{"n":2}')), text("x")), ScriptedToolbox({"a": says("1")})
    )
    assert result.names[:6] == ["tool/call", "tool/eta", "tool/call", "tool/eta", "tool/result", "tool/result"]


async def test_one_failing_call_leaves_its_siblings_alone_and_is_told_to_the_model() -> None:
    async def broken(_arguments: JsonObject, _progress: Any) -> ToolOutcome:
        raise RuntimeError("a bug of ours")

    async def failing(_arguments: JsonObject, _progress: Any) -> ToolOutcome:
        return ToolOutcome(text="Error: no such city", error_code="tool_failed", message="no such city")

    tools = ScriptedToolbox({"ok": says("fine"), "broken": broken, "failing": failing})
    model = ScriptedModel(calls(("broken", "{}"), ("ok", "{}"), ("failing", "{}")), text("Two failed."))
    result = await run(model, tools)
    assert len(result.named("tool/result")) == 1
    assert {(e["code"], e["message"]) for e in result.named("tool/error")} == {
        ("tool_failed", "no such city"),
        ("tool_failed", "The call failed because of a fault in this service."),
    }
    contents = [message["content"] for message in model.asks[1].messages[2:]]
    assert contents == ["Error: The call failed because of a fault in this service.", "fine", "Error: no such city"]
    assert "a bug of ours" not in json.dumps(result.events)


@pytest.mark.parametrize(
    ("arguments", "finish"),
    [
        ('{"q":', "tool_calls"),
        ("[1]", "tool_calls"),
        ('"x"', "tool_calls"),
        ("{} {}", "tool_calls"),
        ('{"q":NaN}', "stop"),
    ],
)
async def test_unusable_arguments_are_never_executed(arguments: str, finish: str) -> None:
    tools = ScriptedToolbox({"a": says("ran")})
    model = ScriptedModel(calls(("a", arguments), finish=finish), text("Sorry"))
    result = await run(model, tools)
    assert tools.called == []
    (call,) = result.named("tool/call")
    assert (call["call"]["parameters"], call["argumentsRaw"]) == ({}, arguments)
    assert [error["code"] for error in result.named("tool/error")] == ["tool_arguments_invalid"]
    echoed = model.asks[1].messages[1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(echoed), dict)


@pytest.mark.parametrize(
    "arguments", ["", "  ", "null", '{"q":"tin"}', '```json\n{"q":"tin"}\n``` done', '"{\\"q\\":1}"']
)
async def test_usable_arguments_are_executed_however_they_are_wrapped(arguments: str) -> None:
    tools = ScriptedToolbox({"a": says("ran")})
    await run(ScriptedModel(calls(("a", arguments)), text("ok")), tools)
    assert len(tools.called) == 1


async def test_unknown_tool_is_told_with_the_names_there_are() -> None:
    model = ScriptedModel(calls(("lookup_all", "{}"), ("look_up", "{}")), text("ok"))
    result = await run(model, ScriptedToolbox({"look_up": says("found")}))
    call = result.named("tool/call")[0]
    assert (call["server"], call["tool"]) == (None, None)
    (error,) = result.named("tool/error")
    assert error["code"] == "tool_unknown"
    assert "look_up" in model.asks[1].messages[2]["content"]
    assert len(result.named("tool/result")) == 1


async def test_text_after_the_first_call_is_kept_but_not_shown() -> None:
    deltas = [TextDelta("Let me see."), *calls(("a", "{}"))[:1], TextDelta(" Hm."), Finish("tool_calls")]
    model = ScriptedModel([ReasoningDelta("think"), *deltas], text("Noon."))
    result = await run(model, ScriptedToolbox({"a": says("12")}))
    assert [data["token"] for data in result.named("stream")] == ["Let me see.", "Noon."]
    (call,) = result.named("tool/call")
    assert (call["content"], call["reasoning"]) == ("Let me see. Hm.", "think")
    assert model.asks[1].messages[1]["content"] == "Let me see. Hm."
    assert result.named("finalAnswer")[0]["text"] == "Noon."


async def test_cut_off_calls_are_retried_twice_then_the_answer_says_length() -> None:
    cut = calls(("save", '{"text":"lor'), finish="length")
    model = ScriptedModel(cut, cut, [TextDelta("I tried."), *cut])
    tools = ScriptedToolbox({"save": says("saved")})
    result = await run(model, tools)
    assert tools.called == []
    assert len(model.asks) == 3
    assert "smaller" in model.asks[1].messages[-1]["content"]
    assert result.named("finalAnswer") == [
        {"type": "finalAnswer", "text": "I tried.", "reason": "length", "interrupted": True}
    ]


async def test_no_call_of_a_cut_off_reply_is_executed_even_if_it_looks_whole() -> None:
    tools = ScriptedToolbox({"a": says("ran")})
    await run(ScriptedModel(calls(("a", "{}"), finish="length"), text("ok")), tools)
    assert tools.called == []


async def test_used_up_rounds_end_with_one_question_without_tools() -> None:
    model = ScriptedModel(calls(("a", '{"n":1}')), calls(("a", '{"n":2}')), text("What I know."))
    result = await run(model, ScriptedToolbox({"a": says("1")}), rounds=2)
    assert [bool(ask.tools) for ask in model.asks] == [True, True, False]
    assert result.named("notice")[0]["code"] == "round_limit"
    assert result.events[-2][1] == {
        "type": "finalAnswer",
        "text": "What I know.",
        "reason": "rounds",
        "interrupted": True,
    }
    assert result.events[-1][1]["outcome"] == "exhausted"
    assert [m["role"] for m in result.messages] == ["assistant", "tool", "assistant", "tool", "assistant"]


async def test_closing_question_that_fails_gives_a_fixed_text_that_was_streamed_too() -> None:
    model = ScriptedModel(calls(("a", "{}")), [UpstreamFailed("down")])
    result = await run(model, ScriptedToolbox({"a": says("1")}), rounds=1)
    answer = result.named("finalAnswer")[0]["text"]
    assert "1 round" in answer
    assert "a" in answer
    assert result.named("stream")[-1]["token"] == answer
    assert result.events[-1][1]["outcome"] == "exhausted"


async def test_closing_answer_that_breaks_off_keeps_what_was_streamed() -> None:
    model = ScriptedModel(calls(("a", "{}")), [TextDelta("Half an answer "), UpstreamFailed("cut")])
    result = await run(model, ScriptedToolbox({"a": says("1")}), rounds=1)
    streamed = "".join(data["token"] for data in result.named("stream"))
    answer = result.named("finalAnswer")[0]["text"]
    assert answer.startswith("Half an answer \n\nI stopped after 1 round of")
    assert answer == streamed
    assert result.messages[-1] == {"role": "assistant", "content": answer}


async def test_identical_calls_with_identical_results_are_not_executed_for_ever() -> None:
    rounds = [calls(("a", '{"q":"tin"}')) for _ in range(5)]
    tools = ScriptedToolbox({"a": says("[]")})
    model = ScriptedModel(*rounds, text("Nothing found."))
    result = await run(model, tools)
    assert len(tools.called) == 3
    assert [notice["code"] for notice in result.named("notice")] == ["repeated_call"] * 2
    assert "not executed again" in model.asks[-1].messages[-1]["content"]


async def test_identical_calls_with_changing_results_go_on() -> None:
    counter = iter(range(100))

    async def clock(_arguments: JsonObject, _progress: Any) -> ToolOutcome:
        return ToolOutcome(text=str(next(counter)))

    tools = ScriptedToolbox({"clock": clock})
    await run(ScriptedModel(*[calls(("clock", "{}")) for _ in range(6)], text("ok")), tools)
    assert len(tools.called) == 6


async def test_blank_answer_is_asked_for_once_more() -> None:
    model = ScriptedModel(text(""), text("Here."))
    result = await run(model)
    assert result.named("finalAnswer")[0]["text"] == "Here."
    assert model.asks[1].messages[-1]["role"] == "user"
    assert result.messages == [{"role": "assistant", "content": "Here."}]


async def test_asking_again_is_done_once_and_leaves_no_trace_in_later_questions() -> None:
    model = ScriptedModel(text(""), calls(("a", "{}")), calls(("a", '{"n":1}')), text(""))
    result = await run(model, ScriptedToolbox({"a": says("1")}), rounds=3)
    asked_again = [NUDGE in str(ask.messages[-1]) for ask in model.asks]
    assert asked_again == [False, True, False, False]
    assert result.events[-1][1]["outcome"] == "completed"


async def test_asking_again_takes_no_round() -> None:
    result = await run(ScriptedModel(text(""), text("Here.")), rounds=1)
    assert result.named("finalAnswer")[0]["reason"] == "stop"


async def test_answer_that_stays_blank_becomes_an_honest_sentence_naming_what_ran() -> None:
    model = ScriptedModel(calls(("a", "{}")), text(" "), [ReasoningDelta("secret thought"), Finish("stop")])
    result = await run(model, ScriptedToolbox({"a": says("1")}))
    answer = result.named("finalAnswer")[0]
    assert "a" in answer["text"]
    assert "secret thought" not in answer["text"]
    assert "".join(data["token"] for data in result.named("stream")) == f" {answer['text']}"
    assert result.events[-1][1]["outcome"] == "completed"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_named_reasons_for_silence_are_passed_on_without_asking_again(reason: str) -> None:
    model = ScriptedModel(text("", finish=reason))
    result = await run(model)
    answer = result.named("finalAnswer")[0]
    assert (answer["reason"], answer["interrupted"]) == (reason, True)
    assert answer["text"]
    assert len(model.asks) == 1


async def test_finish_reason_tool_calls_without_a_call_is_an_answer() -> None:
    model = ScriptedModel(text("I will look.", finish="tool_calls"))
    result = await run(model)
    assert result.named("finalAnswer")[0]["text"] == "I will look."
    assert len(model.asks) == 1


async def test_broken_stream_keeps_what_was_said_and_claims_no_answer() -> None:
    result = await run(ScriptedModel([TextDelta("The result is"), UpstreamFailed("it broke")]))
    assert result.names == ["stream", "status"]
    assert result.events[-1][1] == {
        "type": "status",
        "status": "error",
        "code": "upstream_failed",
        "message": "it broke",
    }
    snapshot = result.log.snapshot()
    assert snapshot["text"] == "The result is"
    assert snapshot["error"] == {"code": "upstream_failed", "message": "it broke"}


async def test_unknown_fault_leaves_as_internal_without_detail() -> None:
    result = await run(ScriptedModel([RuntimeError("secret detail")]))
    assert result.events[-1][1]["code"] == "internal"
    assert "secret detail" not in json.dumps(result.events)


async def test_cancel_ends_every_announced_call_and_the_run_as_aborted() -> None:
    started = anyio.Event()

    async def endless(_arguments: JsonObject, _progress: Any) -> ToolOutcome:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def stop(log: RunLog) -> None:
        await started.wait()
        log.cancel()
        log.cancel()

    tools = ScriptedToolbox({"endless": endless, "b": endless})
    model = ScriptedModel(calls(("endless", "{}"), ("b", "{}")))
    result = await run(model, tools, meanwhile=stop, limits=RunLimits(calls_at_once=1))
    assert [error["code"] for error in result.named("tool/error")] == ["cancelled", "cancelled"]
    assert {e["uuid"] for e in result.named("tool/error")} == {c["uuid"] for c in result.named("tool/call")}
    assert result.events[-1][1] == {"type": "status", "status": "finished", "outcome": "aborted"}
    assert "finalAnswer" not in result.names


async def test_cancel_reaches_a_silent_model() -> None:
    never = anyio.Event()

    async def stop(log: RunLog) -> None:
        await log.read(0)
        log.cancel()

    result = await run(ScriptedModel([TextDelta("Hm"), never]), meanwhile=stop)
    assert result.events[-1][1]["outcome"] == "aborted"


async def test_run_that_takes_too_long_says_so() -> None:
    result = await run(ScriptedModel([anyio.Event()]), limits=RunLimits(run_seconds=0.05))
    assert result.events[-1][1]["code"] == "deadline_exceeded"


async def test_time_in_which_a_person_is_asked_is_not_the_runs() -> None:
    log = MemoryJournal(Options()).open("run_1")

    async def cross(person: Person) -> Any:
        # Open for longer than the run may take, and then it goes on.
        ticket = person.ask(Riddle())
        assert await ticket.answer() is CANCELLED
        return Answer("done", "stop"), None

    with anyio.fail_after(10):
        await carry(log, cross, limits=RunLimits(run_seconds=1.0, input_seconds=1.2))
    events = await told(log)
    assert [(name, data.get("by")) for name, data in events[:2]] == [("elicitation", None), ("elicitation", "expiry")]
    assert events[-1][1] == {"type": "status", "status": "finished", "outcome": "completed"}


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "ended"])
async def test_what_is_open_at_the_end_of_a_run_is_resolved_before_the_end_is_told(*, is_cancelled: bool) -> None:
    log = MemoryJournal(Options()).open("run_1")
    tickets: list[Ticket] = []

    async def cross(person: Person) -> Any:
        ticket = person.ask(Riddle())
        tickets.append(ticket)
        if is_cancelled:
            log.cancel()
            try:
                await ticket.answer()
            finally:
                ticket.withdraw("server")
        return Answer("done", "stop"), None

    with anyio.fail_after(5):
        await carry(log, cross, limits=RunLimits())
    events = await told(log)
    assert [(name, data.get("by")) for name, data in events[:2]] == [("elicitation", None), ("elicitation", "cancel")]
    assert events[-1][1]["outcome"] == ("aborted" if is_cancelled else "completed")
    assert await tickets[0].answer() is CANCELLED
    assert len(await told(log)) == len(events)
    with pytest.raises(Conflict):
        log.answer(events[0][1]["inputId"], InputAnswer("accept"))


async def test_no_more_calls_run_at_once_than_allowed() -> None:
    running = most = 0

    async def busy(_arguments: JsonObject, _progress: Any) -> ToolOutcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        return ToolOutcome(text="x")

    names = [("busy", json.dumps({"n": n})) for n in range(7)]
    await run(
        ScriptedModel(calls(*names), text("ok")), ScriptedToolbox({"busy": busy}), limits=RunLimits(calls_at_once=3)
    )
    assert most == 3


async def test_calls_over_the_limit_of_a_round_are_answered_but_not_executed() -> None:
    tools = ScriptedToolbox({"a": says("x")})
    model = ScriptedModel(calls(*[("a", json.dumps({"n": n})) for n in range(4)]), text("ok"))
    result = await run(model, tools, limits=RunLimits(calls_per_round=2))
    assert len(tools.called) == 2
    assert [error["code"] for error in result.named("tool/error")] == ["skipped", "skipped"]
    assert len([m for m in model.asks[1].messages if m["role"] == "tool"]) == 4


async def test_progress_is_told_under_the_uuid_of_its_call() -> None:
    async def stepping(_arguments: JsonObject, on_progress: Callable[[Progress], None]) -> ToolOutcome:
        on_progress(Progress(1, 2, "half"))
        on_progress(Progress(2))
        return ToolOutcome(text="done")

    result = await run(ScriptedModel(calls(("s", "{}")), text("ok")), ScriptedToolbox({"s": stepping}))
    uuid = result.named("tool/call")[0]["uuid"]
    base = {"type": "tool", "subtype": "progress", "uuid": uuid}
    assert result.named("tool/progress") == [
        {**base, "progress": 1, "total": 2, "message": "half"},
        {**base, "progress": 2},
    ]


async def test_usage_is_summed_over_rounds_and_told_before_the_answer() -> None:
    model = ScriptedModel([*calls(("a", "{}")), Usage(10, 2, 12)], [*text("ok"), Usage(20, 3, 23, cached_tokens=8)])
    result = await run(model, ScriptedToolbox({"a": says("1")}))
    assert result.names[-3:] == ["usage", "finalAnswer", "status"]
    assert result.named("usage") == [
        {"type": "usage", "prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35, "cached_tokens": 8}
    ]


@pytest.mark.parametrize(
    ("mode", "streamed", "reasoned", "answer"),
    [
        ("separate", ["42"], ["so", " then"], "42"),
        ("hidden", ["42"], [], "42"),
        ("inline", ["<think>", "so", " then", "</think>", "42"], [], "<think>so then</think>42"),
    ],
)
async def test_reasoning_is_shown_as_asked(mode: str, streamed: list[str], reasoned: list[str], answer: str) -> None:
    deltas = [ReasoningDelta("so"), ReasoningDelta(" then"), *text("42")]
    result = await run(ScriptedModel(deltas), reasoning=mode)
    assert [data["token"] for data in result.named("stream")] == streamed
    assert [data["token"] for data in result.named("reasoning")] == reasoned
    assert result.named("finalAnswer")[0]["text"] == answer
    assert result.messages[-1]["content"] == "42"


THOUGHT_ONLY = [ReasoningDelta("It is "), ReasoningDelta("noon."), Finish("stop")]


@pytest.mark.parametrize("mode", ["separate", "inline", "hidden"])
async def test_answer_of_nothing_but_reasoning_is_one_where_the_operator_allows_it(mode: str) -> None:
    model = ScriptedModel(THOUGHT_ONLY)
    result = await run(model, reasoning=mode, limits=RunLimits(reasoning_as_answer=True))
    thought = "<think>It is noon.</think>" if mode == "inline" else ""
    assert result.named("finalAnswer")[0]["text"] == f"{thought}It is noon."
    assert len(model.asks) == 1
    assert result.messages[-1] == {"role": "assistant", "content": "It is noon."}


async def test_answer_of_nothing_but_reasoning_is_else_asked_for_again_and_then_told_as_that() -> None:
    model = ScriptedModel(THOUGHT_ONLY, THOUGHT_ONLY)
    result = await run(model)
    assert len(model.asks) == 2
    assert "ended with its reasoning" in result.named("finalAnswer")[0]["text"]
    assert "noon" not in result.named("finalAnswer")[0]["text"]
    assert [data["token"] for data in result.named("reasoning")] == ["It is ", "noon."] * 2


async def test_inline_answer_is_what_was_streamed_also_when_thoughts_come_in_turns() -> None:
    deltas = [ReasoningDelta("a"), TextDelta("x"), ReasoningDelta("b"), *text("y")]
    result = await run(ScriptedModel(deltas), reasoning="inline")
    streamed = "".join(data["token"] for data in result.named("stream"))
    assert result.named("finalAnswer")[0]["text"] == streamed == "<think>a</think>x<think>b</think>y"


async def test_nothing_is_streamed_after_a_call_began_neither_text_nor_thought() -> None:
    call, end = calls(("a", "{}"))
    model = ScriptedModel([call, ReasoningDelta("late thought"), TextDelta("late"), end], text("ok"))
    result = await run(model, ScriptedToolbox({"a": says("1")}))
    assert result.names[0] == "tool/call"
    assert result.named("tool/call")[0]["reasoning"] == "late thought"


async def test_text_held_back_for_a_call_that_came_to_nothing_is_shown_after_all() -> None:
    deltas = [TextDelta("Oh. "), CallFragment(0, "c1", None, ""), *text("Hello", " world")]
    result = await run(ScriptedModel(deltas))
    assert [data["token"] for data in result.named("stream")] == ["Oh. ", "Hello", " world"]
    assert result.named("finalAnswer")[0]["text"] == "Oh. Hello world"


async def test_character_split_over_two_deltas_is_shown_whole() -> None:
    result = await run(ScriptedModel(text("a\ud83d", "\ude00b", "\ud83d")))
    assert [data["token"] for data in result.named("stream")] == ["a", "\U0001f600b", "\ufffd"]
    assert result.named("finalAnswer")[0]["text"] == "a\U0001f600b\ufffd"


async def test_inline_reasoning_is_closed_before_the_calls() -> None:
    model = ScriptedModel([ReasoningDelta("hm"), *calls(("a", "{}"))], text("ok"))
    result = await run(model, ScriptedToolbox({"a": says("1")}), reasoning="inline")
    assert [data["token"] for data in result.named("stream")] == ["<think>", "hm", "</think>", "ok"]
    assert result.names.index("tool/call") == 3


async def test_forced_choice_holds_for_the_first_round_only() -> None:
    model = ScriptedModel(calls(("a", "{}")), text("ok"))
    await run(model, ScriptedToolbox({"a": says("1")}), choice="required")
    assert [ask.tool_choice for ask in model.asks] == ["required", "auto"]


async def test_image_references_reach_the_tool_as_data_and_the_reader_as_names() -> None:
    tools = ScriptedToolbox({"see": says("a cat")})
    arguments = '{"image":"image_1","more":{"input_image":["image_2","image_9"]},"title":"image_1"}'
    images = ["data:image/png;base64,AAAA", "https://example.com/b.png"]
    result = await run(ScriptedModel(calls(("see", arguments)), text("A cat.")), tools, images=images)
    assert tools.called == [
        ("see", {"image": images[0], "more": {"input_image": [images[1], "image_9"]}, "title": "image_1"})
    ]
    assert "AAAA" not in json.dumps(result.events) + json.dumps(result.log.snapshot())
    assert result.named("tool/call")[0]["call"]["parameters"]["image"] == "image_1"


async def test_missing_and_repeated_ids_are_repaired_and_consistent() -> None:
    deltas = [
        CallFragment(0, None, "a", '{"n":1}'),
        CallFragment(1, "same", "a", '{"n":2}'),
        CallFragment(2, "same", "a", '{"n":3}'),
        Finish("tool_calls"),
    ]
    again = [CallFragment(0, "same", "a", '{"n":4}'), Finish("tool_calls")]
    model = ScriptedModel(deltas, again, text("ok"))
    result = await run(model, ScriptedToolbox({"a": says("1")}))
    asked = [call["id"] for m in model.asks[2].messages for call in m.get("tool_calls", [])]
    answered = [m["tool_call_id"] for m in model.asks[2].messages if m["role"] == "tool"]
    assert asked == answered
    assert len(set(asked)) == 4
    assert [call["originalId"] for call in result.named("tool/call")] == [None, "same", "same", "same"]


async def test_unknown_fields_of_a_call_are_echoed_on_the_same_call() -> None:
    extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    deltas = [CallFragment(0, "c1", "a", "{}", extra), Finish("tool_calls")]
    model = ScriptedModel(deltas, text("ok"))
    await run(model, ScriptedToolbox({"a": says("1")}))
    assert model.asks[1].messages[1]["tool_calls"][0]["extra_content"] == extra["extra_content"]


CALL = calls(("a", "{}"))[0]
CUT_SHORT = [TextDelta("Hi"), CALL, TextDelta(" hidden"), Finish("length")]
LAST_ROUNDS: dict[str, tuple[list[Any], int]] = {
    "a call in the closing answer": ([calls(("a", "{}")), [TextDelta("Hi"), CALL, *text(" hidden")]], 1),
    "only a call and text after it": ([calls(("a", "{}")), [CALL, *text("hidden")]], 1),
    "thoughts after a call": ([calls(("a", "{}")), [CALL, ReasoningDelta("deep"), *text("hidden")]], 1),
    "nothing but a call": ([calls(("a", "{}")), [CALL, Finish("stop")]], 1),
    "cut off for the third time": ([CUT_SHORT, CUT_SHORT, CUT_SHORT], 10),
    "cut off with text after the call only": ([[CALL, TextDelta("x"), Finish("length")]] * 3, 10),
    "broken off after a call": (
        [calls(("a", "{}")), [TextDelta("Hi"), CALL, TextDelta(" hid"), UpstreamFailed("x")]],
        1,
    ),
    "broken off in a thought": ([calls(("a", "{}")), [ReasoningDelta("hm"), UpstreamFailed("x")]], 1),
    "a call without a name": ([[ReasoningDelta("so"), CallFragment(0, "c", None, ""), *text("Hi", " there")]], 10),
    "a thought after a call without a name": (
        [[CallFragment(0, "c", None, ""), ReasoningDelta("deep"), *text("x")]],
        10,
    ),
    "blank twice": ([text(" "), text("  ")], 10),
    "halves of characters": ([[ReasoningDelta("\ud83d"), ReasoningDelta("\ude00"), *text("\ud83d", "\ude00!")]], 10),
}


@pytest.mark.parametrize("mode", ["separate", "inline", "hidden"])
@pytest.mark.parametrize("row", LAST_ROUNDS.values(), ids=LAST_ROUNDS)
async def test_answer_is_what_the_last_round_streamed_and_what_the_conversation_keeps(
    row: tuple[list[Any], int], mode: str
) -> None:
    replies, rounds = row
    result = await run(ScriptedModel(*replies), ScriptedToolbox({"a": says("1")}), rounds=rounds, reasoning=mode)
    streamed = "".join(data["token"] for data in result.named("stream"))
    answer = result.named("finalAnswer")[0]["text"]
    said = result.messages[-1]["content"]
    assert answer.strip()
    assert streamed.endswith(answer)
    assert said.strip()
    assert "<think>" not in said
    assert answer.endswith(said)
    assert answer.count("<think>") == answer.count("</think>") == (mode == "inline" and "<think>" in answer)
    assert (answer == said) or mode == "inline"
    answer.encode()
    if mode != "hidden":
        thoughts = "".join(data["token"] for data in result.named("reasoning")) + streamed
        heard = [delta.text for reply in replies for delta in reply if isinstance(delta, ReasoningDelta)]
        assert all(text_ in thoughts for text_ in heard if text_.isascii())


@pytest.mark.parametrize("name", ["", "multi_tool_use.parallel", "a b\n", "x" * 80])
async def test_name_that_no_tool_can_have_is_echoed_in_a_form_that_providers_take(name: str) -> None:
    model = ScriptedModel([CallFragment(0, "c1", name, '{"a":1}'), Finish("tool_calls")], text("ok"))
    result = await run(model, ScriptedToolbox({"a": says("1")}))
    echoed = model.asks[1].messages[1]["tool_calls"][0]["function"]["name"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", echoed)
    assert result.named("tool/call")[0]["call"]["name"] == name
    assert result.named("tool/error")[0]["code"] == "tool_unknown"


@pytest.mark.parametrize("reason", ["abort", "cancelled"])
async def test_answer_that_the_provider_stopped_is_no_answer_and_what_was_said_stays(reason: str) -> None:
    result = await run(ScriptedModel(text("The dose is 5", finish=reason)))
    assert result.events[-1][1]["code"] == "upstream_incomplete"
    assert [data["token"] for data in result.named("stream")] == ["The dose is 5"]
    assert result.named("finalAnswer") == []
