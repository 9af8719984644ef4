"""The record of runs: cursors, tails, cancelling, what is kept and what is not."""

import json
from collections.abc import Sequence

import anyio
import pytest

from app.api.published import RunSnapshot
from app.domain.errors import Conflict, Gone, InvalidRequest, MalformedRequest, NotFound
from app.domain.events import (
    ApprovalAsked,
    ElicitationAsked,
    Event,
    Failed,
    FinalAnswer,
    Finished,
    InputResolved,
    Prepared,
    ReasoningToken,
    RouterMetadata,
    Token,
    ToolCalled,
    ToolFailed,
    ToolSucceeded,
)
from app.domain.messages import Tool, ToolCall, ToolSpec
from app.domain.principal import NOBODY, Principal
from app.domain.questions import InputAnswer
from app.domain.wire import json_from_value
from app.journal.memory import Entry, MemoryJournal, Options, RunLog

pytestmark = pytest.mark.anyio


def log_with(count: int, options: Options | None = None) -> RunLog:
    log = MemoryJournal(options or Options()).open("run_1")
    for number in range(count):
        log.append(Token(f"t{number}"))
    return log


def ids(entries: Sequence[Entry]) -> list[int]:
    return [entry.id for entry in entries]


async def test_ids_count_from_one_without_gaps_and_reading_goes_on_after_a_cursor() -> None:
    log = log_with(5)
    assert ids(await log.read(0)) == [1, 2, 3, 4, 5]
    assert ids(await log.read(3)) == [4, 5]


async def test_every_reader_waits_for_news_and_gets_all_of_them() -> None:
    log = log_with(1)
    seen: list[list[int]] = []

    async def follow() -> None:
        after, mine = 0, list[int]()
        while entries := await log.read(after):
            mine += ids(entries)
            after = mine[-1]
        seen.append(mine)

    with anyio.fail_after(2):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            log.append(Token("a"))
            log.append(Token("b"))
            await anyio.wait_all_tasks_blocked()
            log.append(Token("c"))
            log.close()
    assert seen == [[1, 2, 3, 4]] * 3


async def test_events_appended_together_are_read_together() -> None:
    log = log_with(0)
    batches: list[list[int]] = []

    async def follow() -> None:
        batches.append(ids(await log.read(0)))

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        for _ in range(8):
            log.append(Token("x"))
    assert batches == [list(range(1, 9))]


async def test_reader_that_leaves_is_forgotten() -> None:
    log = log_with(0)
    with anyio.move_on_after(0.01):
        await log.read(0)
    assert log._waiting == []


async def test_ended_run_reads_to_its_end_and_no_further() -> None:
    log = log_with(2)
    log.close()
    assert ids(await log.read(1)) == [2]
    assert list(await log.read(2)) == []


async def test_cursor_beyond_the_last_event_cannot_be() -> None:
    with pytest.raises(MalformedRequest):
        log_with(2).check_cursor(3)


async def test_what_is_over_the_size_is_cut_oldest_first_and_the_gap_is_told() -> None:
    log = log_with(100, Options(run_bytes=2000))
    assert log._entry_bytes <= 2000
    with pytest.raises(Gone):
        await log.read(0)
    assert ids(await log.read(98)) == [99, 100]


async def test_cancel_before_the_run_listens_is_not_lost() -> None:
    log = log_with(0)
    log.cancel()
    heard: list[str] = []
    log.on_cancel(lambda: heard.append("cancel"))
    log.cancel()
    assert heard == ["cancel"]


async def test_cancel_after_the_end_does_nothing() -> None:
    log = log_with(0)
    heard: list[str] = []
    log.on_cancel(lambda: heard.append("cancel"))
    log.close()
    log.cancel()
    assert heard == []


async def test_ended_runs_expire_and_running_ones_do_not() -> None:
    journal = MemoryJournal(Options(retention_seconds=0.0))
    ended, running = journal.open("run_a"), journal.open("run_b")
    ended.close()
    assert journal.find("run_a") is None
    assert journal.find("run_b") is running
    assert journal.running == 1


async def test_all_runs_together_stay_under_the_size_by_forgetting_ended_ones() -> None:
    journal = MemoryJournal(Options(total_bytes=5000))
    for number in range(20):
        log = journal.open(f"run_{number}")
        for _ in range(10):
            log.append(Token("x" * 20))
        log.close()
    kept = [number for number in range(20) if journal.find(f"run_{number}")]
    assert kept == list(range(20 - len(kept), 20))
    assert 1 <= len(kept) <= 4
    assert journal._tally.bytes == sum(log.bytes for log in journal._logs.values()) <= 5000


async def test_what_is_over_the_room_of_a_snapshot_is_left_out_and_said() -> None:
    log = log_with(0, Options(run_bytes=5000))
    for number in range(5):
        call = ToolCall(str(number), f"c{number}", "a", "{}", {})
        log.append(ToolCalled(call, None, {}))
        log.append(ToolSucceeded(str(number), "a", {}, [{"text": "x" * 1000, "content": []}], 0.1))
    for _ in range(100):
        log.append(Token("y" * 100))
    shown = log.snapshot()
    texts = [call["result"]["outputs"][0]["text"] for call in shown["calls"]]
    assert texts[0] == "x" * 1000
    assert texts[-1].startswith("[left out")
    assert len(json_from_value(shown)) < 12_000
    assert log.bytes < 12_000


async def test_snapshot_is_bounded_whatever_fills_it_and_its_messages_stay_valid() -> None:
    log = log_with(0, Options(run_bytes=20_000))
    for number in range(100):
        call = ToolCall(str(number), f"c{number}", "a", "{}", {"x": "y" * 500})
        log.append(ToolCalled(call, None, {"x": "y" * 500}))
        log.append(ToolFailed(str(number), "z" * 500, "tool_failed", 0.1))
        asked = {"id": f"c{number}", "type": "function", "function": {"name": "a", "arguments": '{"x":"' + "y" * 500}}
        log.add_messages([{"role": "assistant", "content": "", "tool_calls": [asked]}])
        log.add_messages([{"role": "tool", "tool_call_id": f"c{number}", "content": "z" * 500}])
        for _ in range(10):
            log.append(ReasoningToken("t" * 50))
    shown = log.snapshot()
    assert len(json_from_value(shown)) < 100 * 700 + 3 * 20_000
    assert [m["tool_call_id"] for m in shown["messages"] if m["role"] == "tool"] == [f"c{n}" for n in range(100)]
    assert all(
        json.loads(c["function"]["arguments"]) == {} for m in shown["messages"][-20:] for c in m.get("tool_calls", [])
    )
    assert log._tally.bytes == log.bytes


async def test_runs_under_way_that_take_all_the_room_leave_none_for_others() -> None:
    journal = MemoryJournal(Options(total_bytes=2000))
    log = journal.open("run_1")
    assert not journal.is_full_for(NOBODY)
    for _ in range(50):
        log.append(Token("x" * 20))
    assert journal.is_full_for(NOBODY)
    log.close()
    assert not journal.is_full_for(NOBODY)
    assert journal.find("run_1") is None


async def test_idle_journal_forgets_by_itself() -> None:
    journal = MemoryJournal(Options(retention_seconds=0.0))
    journal.open("run_1", key="k", fingerprint=b"1").close()
    async with anyio.create_task_group() as group:
        group.start_soon(journal.keep_tidy)
        with anyio.fail_after(5):
            while journal._logs:  # noqa: ASYNC110  # it is told nobody
                await anyio.sleep(0.05)
        group.cancel_scope.cancel()
    assert journal._keys == {}
    assert journal._tally.bytes == 0


async def test_reading_from_the_middle_gives_the_rest_in_order() -> None:
    log = log_with(1000)
    assert ids(await log.read(1)) == list(range(2, 1001))
    assert ids(await log.read(997)) == [998, 999, 1000]


async def test_same_key_and_body_join_the_run_and_another_body_is_a_conflict() -> None:
    journal = MemoryJournal(Options())
    log = journal.open("run_1", key="k", fingerprint=b"1")
    assert journal.find_by_key(NOBODY, "k", b"1") is log
    assert journal.find_by_key(NOBODY, "other", b"1") is None
    with pytest.raises(Conflict):
        journal.find_by_key(NOBODY, "k", b"2")


async def test_snapshot_shows_what_was_streamed_until_there_is_an_answer() -> None:
    log = log_with(0)
    log.append(Prepared("m", "active"))
    log.append(Token("Hel"))
    log.append(Token("lo"))
    shown = log.snapshot()
    assert (shown["state"], shown["text"], shown["model"], shown["lastEventId"]) == ("running", "Hello", "m", 3)
    log.append(FinalAnswer("Hello.", "stop"))
    log.append(Finished("completed"))
    shown = log.snapshot()
    assert (shown["state"], shown["outcome"], shown["text"]) == ("ended", "completed", "Hello.")
    assert "error" not in shown


async def test_snapshot_shows_the_model_that_answers_also_when_it_is_another_than_the_one_chosen() -> None:
    log = log_with(0)
    log.append(Prepared("first", "active"))
    assert log.snapshot()["model"] == "first"
    log.append(RouterMetadata("chat", "second"))
    assert log.snapshot()["model"] == "second"


async def test_snapshot_of_a_failed_run_keeps_the_text_and_tells_the_error() -> None:
    log = log_with(1)
    log.append(Failed("upstream_failed", "it broke"))
    shown = log.snapshot()
    assert (shown["state"], shown["outcome"], shown["text"]) == ("ended", None, "t0")
    assert shown["error"] == {"code": "upstream_failed", "message": "it broke"}


# Questions to a person

EXPIRES = "2026-01-01T00:00:00.000Z"


def approval(input_id: str, **parameters: str) -> ApprovalAsked:
    tool = Tool(ToolSpec("save", "Saves.", {}), "box", "save", {"destructiveHint": True})
    return ApprovalAsked(input_id, "u1", "save", parameters, tool, EXPIRES)


def elicitation(input_id: str, **request: str) -> ElicitationAsked:
    return ElicitationAsked(
        input_id, "box", {"mode": "form", "message": "?", "requestedSchema": {}, **request}, EXPIRES
    )


def resolved(event: ApprovalAsked | ElicitationAsked) -> InputResolved:
    kind = "approval" if isinstance(event, ApprovalAsked) else "elicitation"
    return InputResolved(kind, event.input_id, "accept", "caller")


def test_snapshot_shows_the_open_questions_and_no_others() -> None:
    log = log_with(0)
    first, second = approval("i1", path="a"), elicitation("i2")
    log.append(first)
    log.append(second)
    shown = log.snapshot()
    RunSnapshot.model_validate(shown)
    assert shown["state"] == "awaiting_input"
    assert shown["inputs"] == [
        {
            "kind": "approval",
            "inputId": "i1",
            "toolUuid": "u1",
            "call": {"name": "save", "parameters": {"path": "a"}},
            "server": "box",
            "tool": "save",
            "description": "Saves.",
            "hints": {"destructiveHint": True},
            "expiresAt": EXPIRES,
        },
        {
            "kind": "elicitation",
            "inputId": "i2",
            "server": "box",
            "request": {"mode": "form", "message": "?", "requestedSchema": {}},
            "expiresAt": EXPIRES,
        },
    ]
    log.append(resolved(first))
    shown = log.snapshot()
    assert (shown["state"], [each["inputId"] for each in shown["inputs"]]) == ("awaiting_input", ["i2"])
    log.append(resolved(second))
    assert (log.snapshot()["state"], log.snapshot()["inputs"]) == ("running", [])


def test_open_questions_are_bounded_and_make_room_again_when_they_are_resolved() -> None:
    log = log_with(0, Options(run_bytes=20_000))
    asked: list[ApprovalAsked | ElicitationAsked] = []
    for number in range(50):
        asked += [approval(f"a{number}", text="x" * 5000), elicitation(f"e{number}", message="x" * 5000)]
    for event in asked:
        log.append(event)
    shown = log.snapshot()
    RunSnapshot.model_validate(shown)
    assert [each["inputId"] for each in shown["inputs"]] == [event.input_id for event in asked]
    assert len(json_from_value(shown)) < 20_000 + 100 * 600
    assert log._tally.bytes == log.bytes
    held = log._snapshot.bytes
    for event in asked:
        log.append(resolved(event))
    assert log._snapshot.bytes < held / 2
    assert log._tally.bytes == log.bytes


async def test_answer_goes_to_the_run_and_after_its_end_tells_what_was_resolved_from_what_never_was() -> None:
    log = log_with(0)
    taken: list[tuple[str, InputAnswer]] = []
    answer = InputAnswer("accept")
    with pytest.raises(NotFound):
        log.answer("i1", answer)
    log.on_input(lambda input_id, it: taken.append((input_id, it)))
    log.append(approval("i1"))
    log.answer("i1", answer)
    assert taken == [("i1", answer)]
    log.append(resolved(approval("i1")))
    log.append(Finished("completed"))
    log.close()
    with pytest.raises(Conflict):
        log.answer("i1", answer)
    with pytest.raises(NotFound):
        log.answer("i2", answer)
    assert len(taken) == 1


async def test_what_the_run_says_of_an_answer_is_heard_by_the_answerer() -> None:
    log = log_with(0)

    def take(_input_id: str, _answer: InputAnswer) -> None:
        raise InvalidRequest("content.a: no", param="content.a")

    log.on_input(take)
    with pytest.raises(InvalidRequest):
        log.answer("i1", InputAnswer("accept"))


@pytest.mark.parametrize("end", [[approval("i1")], [Finished("completed")]], ids=["question", "end"])
async def test_run_is_at_rest_when_it_has_ended_or_asks(end: list[Event]) -> None:
    log = log_with(0)
    reached: list[str] = []

    async def wait() -> None:
        await log.at_rest()
        reached.append("rest")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            log.append(Token("x"))
            await anyio.wait_all_tasks_blocked()
            assert reached == []
            for event in end:
                log.append(event)
            if isinstance(end[-1], Finished):
                log.close()
    assert reached == ["rest"]


@pytest.mark.parametrize("lives_on", [False, True])
async def test_run_that_somebody_was_told_lives_on_outlives_its_owner(*, lives_on: bool) -> None:
    log = log_with(0)
    heard: list[str] = []
    log.on_cancel(lambda: heard.append("cancel"))
    if lives_on:
        log.let_go()
    log.abandon()
    assert heard == ([] if lives_on else ["cancel"])
    log.cancel()
    assert heard == ["cancel"]


@pytest.mark.parametrize(
    ("hog", "others"),
    [
        (Principal("a"), [Principal("b"), Principal("b", "x")]),
        (Principal("a", "x"), [Principal("a", "y"), Principal("b")]),
    ],
)
async def test_who_takes_more_than_a_share_of_the_room_leaves_the_rest_to_others(
    hog: Principal, others: list[Principal]
) -> None:
    journal = MemoryJournal(Options(total_bytes=100_000))
    log = journal.open("run_1", owner=hog)
    while not journal.is_full_for(hog):
        log.append(Token("x" * 100))
    assert not any(journal.is_full_for(other) for other in others)
    log.close()
    assert not journal.is_full_for(hog)
    assert journal.find("run_1") is log
