"""Servers that ask a person during a call: whose question it is, what the server gets, and who takes it back."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.domain.messages import ToolOutcome
from app.domain.questions import InputAnswer, Question
from app.toolbox.box import open_servers
from app.toolbox.elicitation import Elicitation
from tests.fakes.mcp_servers import wait_until
from tests.fakes.raw_mcp import (
    HANG,
    RawMcp,
    RawRequest,
    error_of,
    http_reply,
    json_reply,
    open_raw_mcp,
    result,
    result_of,
    sse_frame,
    sse_reply,
    text_result,
    tool_entry,
)
from tests.fakes.toolboxes import LOCAL, QUICK, OpenBox, ScriptedPerson, ScriptedTicket, open_run, operator

pytestmark = pytest.mark.anyio

FORM = {
    "mode": "form",
    "message": "Which city?",
    "requestedSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PAGE = {"mode": "url", "message": "Sign in.", "url": "https://mcp.example.com/login?id=1", "elicitationId": "e1"}
PARIS = InputAnswer("accept", content={"city": "Paris"})


def asks(params: Any, method: str = "elicitation/create", request_id: Any = "q1") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def saying(answer: InputAnswer | None) -> ScriptedPerson:
    return ScriptedPerson(lambda _question: answer)


class Asker:
    """A handshake server whose tool asks on the stream of its call, and gives back what it heard."""

    def __init__(self, *questions: dict[str, Any], then: Callable[[RawRequest], bytes | str] | None = None) -> None:
        self._questions = questions
        self._then = then
        self.heard: list[Any] = []
        self._news = anyio.Event()

    async def call(self, request: RawRequest) -> bytes | str:
        before = len(self.heard)
        await request.write(sse_reply(self._questions, end=False))
        if self._then is not None:
            return self._then(request)
        while len(self.heard) < before + len(self._questions):
            await self._news.wait()
        text = json.dumps(self.heard[before:], sort_keys=True)
        await request.write(sse_frame(result_of(request, text_result(text))))
        return b"0\r\n\r\n"

    def hear(self, request: RawRequest) -> bytes:
        """Take an answer, which is a POST without a method."""
        self.heard.append(request.rpc.get("result", request.rpc.get("error")))
        news, self._news = self._news, anyio.Event()
        news.set()
        return http_reply(202)

    @property
    def replies(self) -> dict[str, Any]:
        return {"tools/call": self.call, "POST": self.hear}


def said(run: OpenBox, person: ScriptedPerson) -> dict[str, Any]:
    """Return the request of the one question, as it is told."""
    (ticket,) = person.tickets
    assert run.box.tools
    return told(ticket)


def told(ticket: ScriptedTicket) -> dict[str, Any]:
    return ticket.question.asked("i1", "2026-01-01T00:00:00.000Z").data()


@pytest.mark.parametrize(
    ("answer", "heard"),
    [
        (PARIS, {"action": "accept", "content": {"city": "Paris"}}),
        (InputAnswer("decline"), {"action": "decline"}),
        (InputAnswer("cancel"), {"action": "cancel"}),
    ],
)
async def test_question_on_the_stream_of_a_call_is_that_calls(answer: InputAnswer, heard: Any) -> None:
    asker, person = Asker(asks(FORM)), saying(answer)
    async with open_raw_mcp(asker.replies) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url, "Weather"), person=person) as run:
            assert json.loads((await run.call("echo")).text) == [heard]
            request = said(run, person)
            assert request["server"] == "Weather"
            assert request["toolUuid"] == run.uuids[0]
            assert request["request"]["message"] == "Which city?"
            assert request["request"]["requestedSchema"]["required"] == ["city"]
            assert person.tickets[0].withdrawn_by is None


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({**FORM, "requestedSchema": {"type": "object", "properties": {"password": {"type": "string"}}}}, "a secret"),
        ({**PAGE, "url": "http://mcp.example.com/login"}, "plain http"),
        ({**PAGE, "url": "javascript:alert(1)"}, "a script"),
        ({"mode": "form", "message": "?", "requestedSchema": {"properties": {"a": {"type": "object"}}}}, "nested"),
        ({"mode": "odd", "message": "?"}, "an unknown mode"),
    ],
)
async def test_question_that_must_not_be_put_is_declined_at_once(params: Any, why: str) -> None:
    asker, person = Asker(asks(params)), saying(None)
    async with open_raw_mcp(asker.replies) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            assert json.loads((await run.call("echo")).text) == [{"action": "decline"}], why
            (notice,) = run.notices
            assert (notice.code, notice.about) == ("question_declined", {"server": "Fake", "uuid": run.uuids[0]})
    assert not person.tickets


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "elicitation/create"])
async def test_what_was_not_announced_is_answered_with_an_error_at_once(method: str) -> None:
    asker = Asker(asks(FORM if method.startswith("elicit") else {}, method))
    async with open_raw_mcp(asker.replies) as raw, open_servers(LOCAL) as servers:
        person = None if method.startswith("elicit") else saying(PARIS)
        async with open_run(servers, operator(raw.url), person=person) as run:
            (heard,) = json.loads((await run.call("echo")).text)
            assert heard["code"] in (-32600, -32601, -32602)
    assert person is None or not person.tickets


async def test_question_that_the_server_takes_back_is_withdrawn_and_the_call_goes_on() -> None:
    person = saying(None)

    async def call(request: RawRequest) -> bytes:
        await request.write(sse_reply([asks(FORM)], end=False))
        await wait_until(lambda: person.tickets)
        taken_back = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "q1"}}
        await request.write(sse_frame(taken_back))
        await wait_until(lambda: person.tickets[0].withdrawn_by)
        await request.write(sse_frame(result_of(request, text_result("went on"))))
        return b"0\r\n\r\n"

    async with open_raw_mcp({"tools/call": call}) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            assert (await run.call("echo")).text == "went on"
    assert person.tickets[0].withdrawn_by == "server"


async def test_question_of_a_call_that_has_its_result_is_withdrawn() -> None:
    person = saying(None)

    async def call(request: RawRequest) -> bytes:
        await request.write(sse_reply([asks(FORM)], end=False))
        await wait_until(lambda: person.tickets)
        await request.write(sse_frame(result_of(request, text_result("without you"))))
        return b"0\r\n\r\n"

    async with open_raw_mcp({"tools/call": call}) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            assert (await run.call("echo")).text == "without you"
            assert person.tickets[0].withdrawn_by == "server"


async def test_question_of_a_call_that_is_cancelled_is_withdrawn_and_the_server_hears_of_both() -> None:
    asker, person = Asker(asks(FORM)), saying(None)
    async with open_raw_mcp(asker.replies) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.call, "echo")
                await wait_until(lambda: person.tickets)
                tasks.cancel_scope.cancel()
            assert person.tickets[0].withdrawn_by == "cancel"
            await wait_until(lambda: raw.asked["notifications/cancelled"] == 1)
            await wait_until(lambda: asker.heard == [{"action": "cancel"}])


async def test_time_of_a_person_does_not_count_and_silence_after_it_does() -> None:
    asker, person = Asker(asks(FORM)), saying(None)
    options = replace(LOCAL, connection=replace(QUICK, call_seconds=0.3, call_total_seconds=0.6))
    async with open_raw_mcp(asker.replies) as raw, open_servers(options) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run, anyio.create_task_group() as tasks:
            texts: list[str] = []

            async def use() -> None:
                texts.append((await run.call("echo")).text)

            tasks.start_soon(use)
            await wait_until(lambda: person.tickets)
            with anyio.move_on_after(1.0):
                await wait_until(lambda: texts)
            assert not texts, "it waits for the person, beyond both limits"
            person.tickets[0].give(PARIS)
            await wait_until(lambda: texts)
            assert "Paris" in texts[0]


async def test_server_that_falls_silent_after_its_question_is_given_up() -> None:
    asker, person = Asker(asks(FORM), then=lambda _request: HANG), saying(PARIS)
    options = replace(LOCAL, connection=replace(QUICK, call_seconds=0.3))
    async with open_raw_mcp(asker.replies) as raw, open_servers(options) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            assert (await run.call("echo")).error_code == "tool_timeout"


async def test_server_that_asks_without_end_is_declined_after_a_while() -> None:
    asker, person = Asker(*[asks(FORM, request_id=f"q{number}") for number in range(30)]), saying(PARIS)
    async with open_raw_mcp(asker.replies) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            heard = json.loads((await run.call("echo")).text)
    assert len(person.tickets) <= 20
    assert {"action": "decline"} in heard


# Beside the calls: over the connection's own event stream


class Pusher:
    """A handshake server with a session whose tools ask on the connection's own stream."""

    def __init__(self) -> None:
        self.streams: list[RawRequest] = []
        self.heard: list[Any] = []
        self._end = anyio.Event()

    async def stream(self, request: RawRequest) -> bytes:
        self.streams.append(request)
        await request.write(sse_reply([], end=False))
        await self._end.wait()
        return b"0\r\n\r\n"

    async def push(self, message: Any) -> None:
        await self.streams[-1].write(sse_frame(message))

    def hear(self, request: RawRequest) -> bytes:
        self.heard.append(request.rpc.get("result"))
        return http_reply(202)

    async def call(self, request: RawRequest) -> bytes:
        before = len(self.heard)
        await self.push(asks(FORM, request_id=f"q{request.id}"))
        await wait_until(lambda: len(self.heard) > before)
        return json_reply(result_of(request, text_result(json.dumps(self.heard[-1]))))

    def close(self) -> None:
        self._end.set()

    @property
    def replies(self) -> dict[str, Any]:
        return {"GET": self.stream, "POST": self.hear, "tools/call": self.call}


async def test_question_beside_the_only_call_of_a_session_is_that_calls() -> None:
    pusher, person = Pusher(), saying(PARIS)
    async with open_raw_mcp(pusher.replies, session_id="s1") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            await wait_until(lambda: pusher.streams)
            assert "Paris" in (await run.call("echo")).text
            assert said(run, person)["toolUuid"] == run.uuids[0]
        pusher.close()


async def test_question_beside_several_calls_is_the_runs_and_open_as_long_as_one_of_them() -> None:
    pusher, person = Pusher(), saying(None)
    ends = [anyio.Event(), anyio.Event()]

    async def call(request: RawRequest) -> bytes:
        at: int = request.rpc["params"]["arguments"]["at"]
        await ends[at].wait()
        return json_reply(result_of(request, text_result("fine")))

    replies = {**pusher.replies, "tools/call": call}
    async with open_raw_mcp(replies, session_id="s1") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run, anyio.create_task_group() as tasks:
            await wait_until(lambda: pusher.streams)
            for at in range(2):
                tasks.start_soon(lambda at=at: run.call("echo", at=at))
            await wait_until(lambda: raw.asked["tools/call"] == 2)
            await pusher.push(asks(FORM))
            await wait_until(lambda: person.tickets)
            assert "toolUuid" not in told(person.tickets[0])
            ends[0].set()
            with anyio.move_on_after(0.2):
                await wait_until(lambda: person.tickets[0].withdrawn_by)
            assert person.tickets[0].withdrawn_by is None
            ends[1].set()
            await wait_until(lambda: person.tickets[0].withdrawn_by == "server")
        pusher.close()


async def test_question_without_a_call_is_nobodys() -> None:
    pusher, person = Pusher(), saying(PARIS)
    async with open_raw_mcp(pusher.replies, session_id="s1") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person):
            await wait_until(lambda: pusher.streams)
            await pusher.push(asks(FORM))
            await wait_until(lambda: pusher.heard)
        pusher.close()
    assert pusher.heard == [{"action": "decline"}]
    assert not person.tickets


async def test_of_two_runs_at_once_only_the_one_whose_server_asks_sees_the_question() -> None:
    asker, asked, other = Asker(asks(FORM)), saying(PARIS), saying(PARIS)
    replies = {**asker.replies, "tools/call": [asker.call, result(text_result("fine"))]}
    async with open_raw_mcp(replies) as raw, open_servers(LOCAL) as servers:
        async with (
            open_run(servers, operator(raw.url), person=asked) as first,
            open_run(servers, operator(raw.url), person=other) as second,
        ):
            await first.call("echo")
            await second.call("echo")
    assert len(asked.tickets) == 1
    assert not other.tickets


# The modern era: the question is the answer


def wants(requests: Any, state: Any = "s-1") -> Any:
    wanted: dict[str, Any] = {"resultType": "input_required"}
    if requests is not None:
        wanted["inputRequests"] = requests
    if state is not None:
        wanted["requestState"] = state
    return result(wanted)


def elicitation(params: Any = FORM, method: str = "elicitation/create") -> dict[str, Any]:
    return {"method": method, "params": params}


def calls_of(raw: RawMcp) -> list[dict[str, Any]]:
    return [request.rpc["params"] for request in raw.requests if request.method == "tools/call"]


async def test_modern_tool_that_asks_is_called_again_with_the_answers_and_its_state() -> None:
    person = ScriptedPerson(_by_message)
    questions = {"where": elicitation(), "sure": elicitation({**FORM, "message": "Sure?"})}
    replies = {"tools/call": [wants(questions), result(text_result("fine"))]}
    async with open_raw_mcp(replies, era="modern") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            assert (await run.call("echo", n=1)).text == "fine"
            first, second = calls_of(raw)
            assert "inputResponses" not in first
            assert second["arguments"] == {"n": 1}
            assert second["requestState"] == "s-1"
            assert second["inputResponses"] == {
                "where": {"action": "accept", "content": {"city": "Paris"}},
                "sure": {"action": "decline"},
            }
            assert [told(ticket)["toolUuid"] for ticket in person.tickets] == run.uuids * 2


def _by_message(question: Question) -> InputAnswer:
    assert isinstance(question, Elicitation)
    request = question.asked("i", "t").data()["request"]
    return PARIS if request["message"] == "Which city?" else InputAnswer("decline")


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ({"a": elicitation({}, "sampling/createMessage")}, "not offered"),
        ({"a": elicitation({}, "roots/list")}, "not offered"),
        (["odd"], "not MCP"),
        ({"a": "odd"}, "not MCP"),
    ],
)
async def test_modern_tool_that_wants_what_is_not_offered_fails_and_says_so(requests: Any, says: str) -> None:
    async with open_raw_mcp({"tools/call": wants(requests)}, era="modern") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=saying(PARIS)) as run:
            outcome = await run.call("echo")
            assert outcome.error_code == "tool_failed"
            assert says in outcome.message
            assert raw.asked["tools/call"] == 1


async def test_modern_tool_that_asks_without_end_is_given_up() -> None:
    replies, person = {"tools/call": wants({"where": elicitation()})}, saying(PARIS)
    async with open_raw_mcp(replies, era="modern") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            assert (await run.call("echo")).error_code == "tool_failed"
            assert len(person.tickets) == 10
            assert raw.asked["tools/call"] == 11, "each answer was sent"


async def test_modern_tool_that_only_wants_to_be_asked_again_is() -> None:
    replies = {"tools/call": [wants(None), wants({}, "s-2"), result(text_result("fine"))]}
    async with open_raw_mcp(replies, era="modern") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=saying(PARIS)) as run:
            assert (await run.call("echo")).text == "fine"
            assert [call.get("requestState") for call in calls_of(raw)] == [None, "s-1", "s-2"]


async def test_modern_question_of_a_cancelled_call_is_withdrawn() -> None:
    person = saying(None)
    replies = {"tools/call": wants({"where": elicitation()})}
    async with open_raw_mcp(replies, era="modern") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.call, "echo")
                await wait_until(lambda: person.tickets)
                tasks.cancel_scope.cancel()
            assert person.tickets[0].withdrawn_by == "cancel"


async def test_more_questions_at_once_than_a_person_can_see_are_declined() -> None:
    person = saying(None)
    wanted = wants({f"q{number}": elicitation() for number in range(18)})
    async with open_raw_mcp({"tools/call": [wanted, result(text_result("fine"))]}, era="modern") as raw:
        async with open_servers(LOCAL) as servers, open_run(servers, operator(raw.url), person=person) as run:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.call, "echo")
                await wait_until(lambda: len(person.tickets) == 16)
                for ticket in person.tickets:
                    ticket.give(PARIS)
            answers = calls_of(raw)[1]["inputResponses"].values()
    assert [answer["action"] for answer in answers].count("decline") == 2


async def test_tool_that_only_wants_to_be_asked_again_needs_no_person() -> None:
    replies: dict[str, Any] = {"tools/call": [wants(None), result(text_result("fine"))]}
    async with open_raw_mcp(replies, era="modern") as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url)) as run:
            assert (await run.call("echo")).text == "fine"


async def test_server_of_the_older_era_that_asks_as_a_modern_one_is_called_once() -> None:
    replies = {"tools/call": wants({"where": elicitation()})}
    async with open_raw_mcp(replies) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=saying(PARIS)) as run:
            assert (await run.call("echo")).error_code == "tool_failed"
            assert raw.asked["tools/call"] == 1


async def test_question_on_the_stream_of_a_listing_is_nobodys() -> None:
    asker, person = Asker(asks(FORM)), saying(PARIS)

    async def page(request: RawRequest) -> bytes:
        await request.write(sse_reply([asks(FORM, request_id="l1")], end=False))
        await wait_until(lambda: asker.heard)
        await request.write(sse_frame(result_of(request, {"tools": [tool_entry("echo")]})))
        return b"0\r\n\r\n"

    async with open_raw_mcp({"tools/list": page, "POST": asker.hear}) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            assert run.names == ["echo"]
    assert asker.heard == [{"action": "decline"}]
    assert not person.tickets


# Pages to visit first


def page_first(request: RawRequest) -> bytes:
    told = error_of(request, -32042, "Sign in first.")
    told["error"]["data"] = {"elicitations": [PAGE]}
    return json_reply(told)


def pages_first(request: RawRequest) -> bytes:
    told = error_of(request, -32042, "Visit them first.")
    told["error"]["data"] = {"elicitations": [PAGE, {**PAGE, "elicitationId": "second"}]}
    return json_reply(told)


async def test_pages_are_asked_for_side_by_side_and_again_where_the_server_says_so_again() -> None:
    person = ScriptedPerson()
    replies: dict[str, Any] = {"tools/call": [pages_first, page_first, result(text_result("fine"))]}
    async with (
        open_raw_mcp(replies) as raw,
        open_servers(LOCAL) as servers,
        open_run(servers, operator(raw.url), person=person) as run,
        anyio.create_task_group() as tasks,
    ):
        outcomes: list[ToolOutcome] = []

        async def call() -> None:
            outcomes.append(await run.call("echo"))

        tasks.start_soon(call)
        await wait_until(lambda: len(person.tickets) == 2)
        for ticket in list(person.tickets):
            ticket.give(InputAnswer("accept"))
        await wait_until(lambda: len(person.tickets) == 3)
        person.tickets[2].give(InputAnswer("accept"))
        await wait_until(lambda: outcomes)
        assert outcomes[0].text == "fine"
        assert raw.asked["tools/call"] == 3


async def test_a_page_that_is_not_visited_takes_the_others_back() -> None:
    person = ScriptedPerson()
    async with (
        open_raw_mcp({"tools/call": [pages_first, result(text_result("fine"))]}) as raw,
        open_servers(LOCAL) as servers,
        open_run(servers, operator(raw.url), person=person) as run,
        anyio.create_task_group() as tasks,
    ):
        outcomes: list[ToolOutcome] = []

        async def call() -> None:
            outcomes.append(await run.call("echo"))

        tasks.start_soon(call)
        await wait_until(lambda: len(person.tickets) == 2)
        person.tickets[0].give(InputAnswer("decline"))
        await wait_until(lambda: outcomes)
        assert outcomes[0].error_code == "tool_failed"
        assert person.tickets[1].withdrawn_by == "cancel"
        assert raw.asked["tools/call"] == 1


@pytest.mark.parametrize(("answer", "attempts"), [(InputAnswer("accept"), 2), (InputAnswer("decline"), 1)])
async def test_tool_that_wants_a_page_visited_first_is_called_again_once_it_was(
    answer: InputAnswer, attempts: int
) -> None:
    person = saying(answer)
    replies: dict[str, Any] = {"tools/call": [page_first, result(text_result("fine"))]}
    async with open_raw_mcp(replies) as raw, open_servers(LOCAL) as servers:
        async with open_run(servers, operator(raw.url), person=person) as run:
            outcome = await run.call("echo")
            assert raw.asked["tools/call"] == attempts
            assert (outcome.error_code is None) == (attempts == 2)
            request = said(run, person)["request"]
            assert (request["mode"], request["url"]) == ("url", PAGE["url"])
