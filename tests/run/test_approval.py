"""Calls that wait for a person: which are asked about, what an answer means, what the model is told."""

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import anyio
import pytest

from app.domain.errors import InvalidRequest
from app.domain.events import (
    ApprovalAsked,
    Event,
    InputResolved,
    Notice,
    ToolCalled,
    ToolEta,
    ToolFailed,
    ToolSucceeded,
)
from app.domain.jsontypes import JsonObject
from app.domain.limits import RunLimits
from app.domain.messages import Progress, Reply, ToolCall, ToolOutcome
from app.domain.questions import InputAnswer
from app.run.act import Answers, Hands
from app.run.approval import Approvals
from app.run.deadline import Deadline
from app.run.person import RunPerson
from tests.fakes.ports import ScriptedToolbox, says

pytestmark = pytest.mark.anyio

YES = InputAnswer("accept")
NO = InputAnswer("decline")
Mode: TypeAlias = Literal["never", "destructive", "always"]
Decide: TypeAlias = Callable[[ApprovalAsked], InputAnswer | None]


class Desk:
    """Hands, and a person who decides by a rule. What it answers None stays open."""

    def __init__(
        self, toolbox: ScriptedToolbox, decide: Decide, *, mode: Mode = "always", limits: RunLimits | None = None
    ) -> None:
        self.toolbox = toolbox
        self.events: list[Event] = []
        self.refused: list[InvalidRequest] = []
        self._decide = decide
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        limits = limits or RunLimits()
        self.person = RunPerson(self._emit, Deadline(60.0), input_seconds=limits.input_seconds)
        approvals = Approvals(mode, self.person, toolbox)
        self.hands = Hands(toolbox, self._emit, limits, approvals=approvals)

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        self._queue.put_nowait(event)

    async def act(self, *calls: ToolCall) -> Answers:
        reader = asyncio.create_task(self._read())
        try:
            with anyio.fail_after(5):
                return await self.hands.answer_calls(Reply("", "", calls, "tool_calls"))
        finally:
            reader.cancel()

    async def _read(self) -> None:
        while True:
            event = await self._queue.get()
            if isinstance(event, ApprovalAsked) and (answer := self._decide(event)) is not None:
                try:
                    self.person.take(event.input_id, answer)
                except InvalidRequest as error:
                    self.refused.append(error)
                    self.person.take(event.input_id, NO)

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def asked(self) -> list[tuple[str, JsonObject]]:
        return [(event.call_name, event.parameters) for event in self.all(ApprovalAsked)]

    @property
    def resolved(self) -> list[tuple[str, str]]:
        return [(event.action, event.by) for event in self.all(InputResolved)]

    @property
    def codes(self) -> list[str]:
        return [event.code for event in self.all(ToolFailed)]


_numbers = itertools.count()


def call(name: str, fault: str | None = None, **arguments: Any) -> ToolCall:
    at = next(_numbers)
    return ToolCall(f"uuid{at}", f"id{at}", name, json.dumps(arguments), arguments, fault)


def always(answer: InputAnswer | None) -> Decide:
    return lambda _asked: answer


HINTS: dict[str, JsonObject] = {
    "reads": {"readOnlyHint": True},
    "writes": {"readOnlyHint": False, "destructiveHint": False},
    "says nothing": {},
    "says it in a text": {"readOnlyHint": "true"},
    "repeatable": {"idempotentHint": True},
}


@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        ("never", []),
        ("destructive", ["writes", "says nothing", "says it in a text", "repeatable"]),
        ("always", list(HINTS)),
    ],
)
async def test_who_is_asked_about_follows_the_mode_and_the_hints(mode: Mode, asked: list[str]) -> None:
    desk = Desk(ScriptedToolbox({name: says("ran") for name in HINTS}, hints=HINTS), always(YES), mode=mode)
    await desk.act(*(call(name) for name in HINTS))
    assert sorted(name for name, _ in desk.asked) == sorted(asked)
    assert sorted(name for name, _ in desk.toolbox.called) == sorted(HINTS)
    assert sorted(desk.toolbox.asked_again) == sorted(asked)
    assert desk.resolved == [("accept", "caller")] * len(asked)


async def test_question_shows_call_tool_and_hints_after_the_call_was_told() -> None:
    desk = Desk(ScriptedToolbox({"save": says("ran")}, hints={"save": {"destructiveHint": True}}), always(YES))
    made = call("save", path="a")
    await desk.act(made)
    kinds = [type(event) for event in desk.events]
    assert kinds == [ToolCalled, ToolEta, ApprovalAsked, InputResolved, ToolSucceeded]
    shown = desk.events[2].data()
    assert (shown["toolUuid"], shown["call"]) == (made.uuid, {"name": "save", "parameters": {"path": "a"}})
    assert (shown["server"], shown["tool"], shown["description"]) == ("box", "save", "does save")
    assert shown["hints"] == {"destructiveHint": True}
    assert desk.toolbox.uuids == [made.uuid]


WILL_NOT_RUN = {
    "unknown tool": (call("nobody"), "tool_unknown", RunLimits()),
    "invalid arguments": (call("save", fault="no JSON"), "tool_arguments_invalid", RunLimits()),
    "over the limit": (call("save"), "skipped", RunLimits(calls_per_round=0)),
}


@pytest.mark.parametrize("row", WILL_NOT_RUN.values(), ids=WILL_NOT_RUN)
async def test_nobody_is_asked_about_a_call_that_will_not_run(row: tuple[ToolCall, str, RunLimits]) -> None:
    made, code, limits = row
    desk = Desk(ScriptedToolbox({"save": says("ran")}), always(YES), limits=limits)
    await desk.act(made)
    assert (desk.asked, desk.codes, desk.toolbox.called) == ([], [code], [])


async def test_nobody_is_asked_about_a_call_that_has_given_the_same_so_often() -> None:
    desk = Desk(ScriptedToolbox({"save": says("ran")}), always(YES))
    for _ in range(5):
        await desk.act(call("save", a=1))
    assert len(desk.asked) == 3
    assert desk.codes == ["skipped"] * 2
    assert [notice.code for notice in desk.all(Notice)] == ["repeated_call"] * 2


async def test_all_questions_of_a_round_are_open_side_by_side_and_take_no_place() -> None:
    running = peak = 0

    async def busy(_arguments: JsonObject, _on_progress: Callable[[Progress], None]) -> ToolOutcome:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await anyio.wait_all_tasks_blocked()
        running -= 1
        return ToolOutcome("ran")

    held: list[ApprovalAsked] = []
    free = {"readOnlyHint": True}
    toolbox = ScriptedToolbox({"save": busy, "look": says("seen")}, hints={"look": free})

    def decide(asked: ApprovalAsked) -> InputAnswer | None:
        held.append(asked)
        if len(held) == 63:
            # The one call that needs no leave has run, though all others wait.
            assert toolbox.called == [("look", {})]
            for each in held[:-1]:
                desk.person.take(each.input_id, YES)
            return YES
        return None

    desk = Desk(toolbox, decide, mode="destructive")
    answers = await desk.act(call("look"), *(call("save", n=n) for n in range(63)))
    assert len({each.input_id for each in held}) == 63
    assert len(toolbox.called) == len(answers.messages) == 64
    assert peak == 8


async def test_wait_for_a_person_is_no_part_of_the_duration() -> None:
    toolbox = ScriptedToolbox({"save": says("ran"), "late": says("ran")})
    asked: list[ApprovalAsked] = []

    def decide(it: ApprovalAsked) -> InputAnswer | None:
        asked.append(it)
        return None

    desk = Desk(toolbox, decide, limits=RunLimits(input_seconds=0.2))
    await desk.act(call("save"), call("late"))
    assert len(asked) == 2
    assert [event.duration for event in desk.all(ToolFailed)] == [0.0, 0.0]


# What an answer means


async def test_call_with_edited_arguments_runs_with_them_and_all_are_told() -> None:
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(InputAnswer("accept", arguments={"path": "b"})))
    (message,) = (await desk.act(call("save", path="a"))).messages
    assert desk.toolbox.called == [("save", {"path": "b"})]
    (result,) = desk.all(ToolSucceeded)
    assert result.parameters == {"path": "b"}
    first, _, rest = message["content"].partition("\n\n")
    assert "person changed the arguments" in first
    assert '{"path": "b"}' in first
    assert rest == "saved"


async def test_arguments_that_are_the_same_are_no_edit() -> None:
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(InputAnswer("accept", arguments={"b": 2.0, "a": "ü"})))
    (message,) = (await desk.act(call("save", a="ü", b=2.0))).messages
    assert message["content"] == "saved"


async def test_what_counts_as_the_same_call_is_what_ran_and_a_person_may_have_it_run_all_the_same() -> None:
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(InputAnswer("accept", arguments={"path": "b"})))
    for path in "cdef":
        await desk.act(call("save", path=path))
    assert desk.toolbox.called == [("save", {"path": "b"})] * 4
    assert len(desk.asked) == 4
    assert not desk.codes
    await desk.act(call("save", path="b"))
    assert len(desk.asked) == 4
    assert desk.codes == ["skipped"]


async def test_failure_of_a_call_with_edited_arguments_is_told_with_the_edit() -> None:
    async def failing(_arguments: JsonObject, _on_progress: Callable[[Progress], None]) -> ToolOutcome:
        return ToolOutcome("Error: no", error_code="tool_failed", message="no")

    desk = Desk(ScriptedToolbox({"save": failing}), always(InputAnswer("accept", arguments={"t": "x" * 100_000})))
    (message,) = (await desk.act(call("save"))).messages
    assert message["content"].startswith("A person changed the arguments")
    assert message["content"].endswith("\n\nError: no")
    assert len(message["content"]) < 20_000
    assert [event.message for event in desk.all(ToolFailed)] == ["no"]


DECLINES: dict[str, tuple[InputAnswer, Sequence[str], Sequence[str]]] = {
    "without a reason": (NO, ["does not allow"], ["reason"]),
    "with a reason": (InputAnswer("decline", reason="Use the\nother\x07 folder\u202e."), ["Use the other folder."], []),
    "with a blank one": (InputAnswer("decline", reason=" \n\u200b"), ["does not allow"], ["reason"]),
    "with a long one": (InputAnswer("decline", reason="é" * 5000), ["é" * 2000], ["é" * 2001]),
    "without a decision": (InputAnswer("cancel", reason="Later."), ["did not decide", "Later."], []),
    "with what is for others": (InputAnswer("decline", arguments={"bad": 1}), ["does not allow"], ["bad"]),
}


@pytest.mark.parametrize("row", DECLINES.values(), ids=DECLINES)
async def test_call_that_is_declined_does_not_run_and_the_model_is_told_why(
    row: tuple[InputAnswer, Sequence[str], Sequence[str]],
) -> None:
    answer, said, unsaid = row
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(answer))
    (message,) = (await desk.act(call("save", path="a"))).messages
    assert (desk.toolbox.called, desk.codes, desk.resolved) == ([], ["approval_declined"], [(answer.action, "caller")])
    assert all(text in message["content"] for text in (*said, "not executed", "unless the user asks"))
    assert not any(text in message["content"] for text in unsaid)
    assert desk.hands.called == []


async def test_call_that_nobody_decides_is_declined_by_the_clock() -> None:
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(None), limits=RunLimits(input_seconds=0.01))
    (message,) = (await desk.act(call("save"))).messages
    assert (desk.toolbox.called, desk.codes, desk.resolved) == ([], ["approval_declined"], [("decline", "expiry")])
    assert "answered in time" in message["content"]


UNFIT: dict[str, tuple[InputAnswer, str]] = {
    "content": (InputAnswer("accept", content={}), "content"),
    "content of a decline": (InputAnswer("decline", content={"a": 1}), "content"),
    "arguments that are wrong": (InputAnswer("accept", arguments={"bad": 1}), "arguments.bad"),
}


@pytest.mark.parametrize("row", UNFIT.values(), ids=UNFIT)
async def test_answer_that_does_not_fit_names_the_field_and_leaves_the_question_open(
    row: tuple[InputAnswer, str],
) -> None:
    answer, param = row
    toolbox = ScriptedToolbox({"save": says("x")}, fault=lambda args: "bad: is unknown" if "bad" in args else None)
    desk = Desk(toolbox, always(answer))
    await desk.act(call("save", bad=1))
    (refused,) = desk.refused
    assert refused.param == param
    assert param in str(refused)
    assert desk.resolved == [("decline", "caller")]


# What holds for the run


@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_answer_for_the_run_holds_for_later_calls_of_the_tool_and_no_other(
    action: Literal["accept", "decline"],
) -> None:
    answer = InputAnswer(action, remember="run", reason="Never there.")
    desk = Desk(ScriptedToolbox({"save": says("saved"), "drop": says("gone")}), always(answer))
    await desk.act(call("save", n=1))
    (message,) = (await desk.act(call("save", n=2))).messages
    assert len(desk.asked) == 1
    await desk.act(call("drop"))
    assert [name for name, _ in desk.asked] == ["save", "drop"]
    ran = [name for name, _ in desk.toolbox.called]
    assert ran == (["save", "save", "drop"] if action == "accept" else [])
    assert ("Never there." in message["content"]) is (action == "decline")


@pytest.mark.parametrize("answer", [InputAnswer("cancel", remember="run"), YES, NO])
async def test_answer_for_one_call_holds_for_no_other(answer: InputAnswer) -> None:
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(answer))
    await desk.act(call("save", n=1))
    await desk.act(call("save", n=2))
    assert len(desk.asked) == 2


async def test_edited_arguments_hold_for_their_call_only() -> None:
    answer = InputAnswer("accept", arguments={"n": 0}, remember="run")
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(answer))
    await desk.act(call("save", n=1))
    await desk.act(call("save", n=2))
    assert [arguments for _, arguments in desk.toolbox.called] == [{"n": 0}, {"n": 2}]


async def test_second_question_of_a_tool_stays_open_when_the_first_is_answered_for_the_run() -> None:
    def decide(asked: ApprovalAsked) -> InputAnswer:
        return InputAnswer("accept", remember="run") if asked.parameters == {"n": 1} else NO

    desk = Desk(ScriptedToolbox({"save": says("saved")}), decide)
    await desk.act(call("save", n=1), call("save", n=2))
    assert len(desk.asked) == 2
    assert desk.toolbox.called == [("save", {"n": 1})]
    assert desk.codes == ["approval_declined"]


async def test_answer_for_the_run_does_not_hold_for_a_tool_that_has_changed() -> None:
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(InputAnswer("accept", remember="run")))
    await desk.act(call("save", n=1))
    desk.toolbox.versions["save"] += 1
    await desk.act(call("save", n=2))
    assert len(desk.asked) == 2


# A tool that changes


@pytest.mark.parametrize("how", ["listed", "gone", "silently", "remembered"])
async def test_tool_that_changes_after_it_was_allowed_is_not_executed(how: str) -> None:
    def decide(_asked: ApprovalAsked) -> InputAnswer:
        if how == "listed":
            toolbox.versions["save"] += 1
        elif how == "gone":
            del toolbox.functions["save"]
        elif how == "silently":
            toolbox.changed.add("save")
        return InputAnswer("accept", remember="run")

    toolbox = ScriptedToolbox({"save": says("saved")})
    desk = Desk(toolbox, decide)
    if how == "remembered":
        await desk.act(call("save", n=0))
        toolbox.called.clear()
        toolbox.changed.add("save")
    (message,) = (await desk.act(call("save", n=1))).messages
    assert (toolbox.called, desk.codes) == ([], ["tool_changed"])
    assert "has changed this tool" in message["content"]
    assert len(desk.asked) == 1


# Ends


async def test_end_of_the_run_resolves_questions_and_ends_each_call_as_cancelled() -> None:
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(None))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            reply = Reply("", "", tuple(call("save", n=n) for n in range(3)), "tool_calls")
            group.start_soon(desk.hands.answer_calls, reply)
            await anyio.wait_all_tasks_blocked()
            assert len(desk.asked) == 3
            desk.person.close()
            group.cancel_scope.cancel()
    assert [type(event) for event in desk.events[-6:]] == [InputResolved] * 3 + [ToolFailed] * 3
    assert desk.resolved == [("cancel", "cancel")] * 3
    assert desk.codes == ["cancelled"] * 3


async def test_process_that_stops_takes_questions_back_by_itself() -> None:
    desk = Desk(ScriptedToolbox({"save": says("saved")}), always(None))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(desk.hands.answer_calls, Reply("", "", (call("save"),), "tool_calls"))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert (desk.resolved, desk.codes) == ([("cancel", "cancel")], ["cancelled"])
