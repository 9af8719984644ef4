"""The model over real sockets: retries, waits, endings, time-outs, and who closes what."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate

import anyio
import pytest

from app.domain.errors import (
    ContextLengthExceeded,
    RunError,
    UpstreamAuth,
    UpstreamFailed,
    UpstreamIncomplete,
    UpstreamRateLimited,
    UpstreamRefused,
    UpstreamUnreachable,
)
from app.domain.events import Retrying
from app.domain.messages import TextDelta
from app.domain.ports import Ask
from app.domain.secrets import Secret
from app.upstream.endpoint import Endpoint, Options, open_endpoint
from tests.fakes.upstream import (
    CUT,
    Answer,
    FakeUpstream,
    dropped,
    end,
    failure,
    json_answer,
    open_upstream,
    page,
    stream,
    text,
)
from tests.upstream.asking import GOOD, HI, QUICK, Asked, ask, ask_once, model_of, serving

pytestmark = pytest.mark.anyio

# Before the first byte

WORTH_A_RETRY = {
    "lost connection": dropped(),
    "a cut after the head": Answer([CUT]),
    **{str(status): failure(status, "busy") for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)},
    "a page of a gateway": page("<html>502</html>", 502),
}


@pytest.mark.parametrize("bad", WORTH_A_RETRY.values(), ids=WORTH_A_RETRY.keys())
async def test_a_request_whose_answer_did_not_begin_is_sent_again(bad: Answer) -> None:
    async with serving([bad, bad, GOOD], Options(backoff_seconds=0.004)) as (upstream, endpoint):
        asked = await ask(endpoint)
        assert asked.error is None
        assert asked.deltas == HI
        assert asked.delays == [0.004, 0.008]
        assert len(upstream.asks) == 3
        assert len({request.body for request in upstream.asks}) == 1


FINAL: dict[str, tuple[Answer, type[RunError]]] = {
    **{str(status): (failure(status, "no"), UpstreamRefused) for status in (400, 402, 404, 422)},
    "401": (failure(401, "no"), UpstreamAuth),
    "403": (failure(403, "no"), UpstreamAuth),
    "too long": (failure(400, "no", code="context_length_exceeded"), ContextLengthExceeded),
    "a page": (page("<html>sign in</html>"), UpstreamFailed),
    "an image": (page("x", content_type="image/png"), UpstreamFailed),
    "a page without a type": (Answer([b"<html>sign in"], headers={}), UpstreamFailed),
    "plain words": (page("fine, thanks", content_type="text/plain"), UpstreamFailed),
    "nothing": (Answer(), UpstreamFailed),
    "no content": (Answer(status=204, headers={}, framing="length"), UpstreamFailed),
    "an error in the stream": (stream({"error": {"message": "no", "code": 500}}), UpstreamFailed),
    "a limit in the stream": (stream({"error": {"message": "no", "code": 429}}), UpstreamRateLimited),
    "an error in a body": (json_answer({"error": {"message": "no"}}), UpstreamFailed),
    "a cut in the middle": (stream(text("Hi"), CUT), UpstreamIncomplete),
    "a cut after a comment": (stream(b": ping\n\n", CUT), UpstreamIncomplete),
    "a silent end": (stream(text("Hi"), done=False), UpstreamIncomplete),
}


@pytest.mark.parametrize(("answer", "kind"), FINAL.values(), ids=FINAL.keys())
async def test_other_trouble_is_told_at_once(answer: Answer, kind: type[RunError]) -> None:
    async with serving([answer, GOOD]) as (upstream, endpoint):
        asked = await ask(endpoint)
        assert type(asked.error) is kind
        assert asked.told == []
        assert len(upstream.asks) == 1
        assert asked.deltas in ([], [TextDelta("Hi")])
        # The endpoint is none the worse for it.
        assert (await ask(endpoint)).deltas == HI


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (dropped(), UpstreamUnreachable),
        (failure(429, "busy"), UpstreamRateLimited),
        (failure(500, "x"), UpstreamFailed),
    ],
    ids=["lost", "429", "500"],
)
async def test_retries_end(bad: Answer, kind: type[RunError]) -> None:
    async with serving(lambda _: bad) as (upstream, endpoint):
        asked = await ask(endpoint)
        assert type(asked.error) is kind
        assert len(upstream.asks) == 3
        assert len(asked.told) == 2


async def test_redirects_without_end_are_few_and_not_asked_for_again() -> None:
    circle = Answer(status=307, headers={"Location": "/v1/chat/completions"})
    async with serving(lambda _: circle) as (upstream, endpoint):
        asked = await ask(endpoint)
        assert type(asked.error) is UpstreamFailed
        assert len(upstream.asks) == 4


async def test_long_wait_asked_for_is_told_in_the_error_and_keeps_its_kind() -> None:
    async with serving([failure(503, "maintenance", {"Retry-After": "60"})]) as (upstream, endpoint):
        asked = await ask(endpoint)
        assert type(asked.error) is UpstreamFailed
        assert str(asked.error).endswith("maintenance. It asks to wait for 60 seconds.")
        assert len(upstream.asks) == 1


async def test_nobody_at_the_address_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    async with open_endpoint(replace(QUICK, base_url=f"http://127.0.0.1:{port}/v1")) as endpoint:
        asked = await ask(endpoint)
    assert isinstance(asked.error, UpstreamUnreachable)
    assert str(port) not in str(asked.error)
    assert len(asked.told) == 2


async def test_a_connection_that_is_not_taken_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, socket.socket() as first, socket.socket() as second:
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        base_url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        async with open_endpoint(Options(base_url, retries=0, connect_seconds=0.1)) as endpoint:
            with anyio.fail_after(5):
                asked = await ask(endpoint)
    assert isinstance(asked.error, UpstreamUnreachable)


async def test_what_is_no_http_is_unreachable() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with open_endpoint(replace(QUICK, base_url=base_url)) as endpoint:
            assert isinstance((await ask(endpoint)).error, UpstreamUnreachable)


async def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    async with serving([GOOD, dropped(), GOOD]) as (upstream, endpoint):
        await ask(endpoint)
        asked = await ask(endpoint)
        assert asked.deltas == HI
        assert len(asked.told) == 1
        assert [request.connection for request in upstream.asks] == [0, 0, 1]


async def test_connections_are_used_again() -> None:
    async with serving(lambda _: GOOD) as (upstream, endpoint):
        for _ in range(5):
            assert (await ask(endpoint)).deltas == HI
        assert upstream.connections == 1


# Waiting as told

WAITS: dict[str, tuple[int, dict[str, str], float]] = {
    "seconds": (429, {"Retry-After": "0"}, 0.0),
    "part of a second": (503, {"Retry-After": "0.3"}, 0.3),
    "milliseconds": (429, {"retry-after-ms": "300"}, 0.3),
    "a date gone by": (429, {"Retry-After": formatdate(1, usegmt=True)}, 0.0),
    "unreadable": (429, {"Retry-After": "soon"}, 0.001),
}


@pytest.mark.parametrize(("status", "headers", "delay"), WAITS.values(), ids=WAITS.keys())
async def test_the_endpoint_says_how_long_to_wait(status: int, headers: dict[str, str], delay: float) -> None:
    began = anyio.current_time()
    asked = await ask_once([failure(status, "busy", headers), GOOD])
    assert anyio.current_time() - began >= delay
    assert asked.deltas == HI
    assert asked.told == [Retrying(f"The model endpoint answered {status}: busy", delay)]


@pytest.mark.parametrize("value", ["21", formatdate(time.time() + 3600, usegmt=True)], ids=["seconds", "a date"])
async def test_a_long_wait_is_told_instead_of_waited(value: str) -> None:
    asked = await ask_once([failure(429, "busy", {"Retry-After": value}), GOOD])
    assert isinstance(asked.error, UpstreamRateLimited)
    assert "asks to wait" in str(asked.error)
    assert asked.told == []


async def test_cancelling_ends_the_wait_at_once() -> None:
    async with serving([failure(429, "busy", {"Retry-After": "20"})]) as (upstream, endpoint):
        with anyio.fail_after(5), anyio.CancelScope() as scope:
            model = model_of(endpoint)
            async with model.stream(Ask([]), lambda _: scope.cancel()):
                pytest.fail("nothing was answered")
        assert scope.cancelled_caught
        assert len(upstream.asks) == 1


# Leaving


async def _break_off(endpoint: Endpoint, _: FakeUpstream) -> None:
    await ask(endpoint, until=lambda asked: bool(asked.deltas))


async def _cancel_while_it_streams(endpoint: Endpoint, upstream: FakeUpstream) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(ask, endpoint)
        await upstream.wait_for(lambda up: bool(up.asks))
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()


async def _fail_while_it_streams(endpoint: Endpoint, _: FakeUpstream) -> None:
    def fail(_: Asked) -> bool:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await ask(endpoint, until=fail)


@pytest.mark.parametrize("leave", [_break_off, _cancel_while_it_streams, _fail_while_it_streams])
async def test_leaving_closes_the_stream_so_that_the_server_sees_it(
    leave: Callable[[Endpoint, FakeUpstream], Awaitable[None]],
) -> None:
    never = asyncio.Event()
    async with serving([stream(text("Hi"), never)]) as (upstream, endpoint):
        await leave(endpoint, upstream)
        await upstream.wait_for(lambda up: up.closed_early.is_set(), timeout_seconds=1)
        assert upstream.asks[0].closed_early.is_set()


async def test_leaving_closes_the_stream_also_while_someone_holds_it() -> None:
    async with serving([stream(text("Hi"), asyncio.Event())]) as (upstream, endpoint):
        model = model_of(endpoint)
        async with model.stream(Ask([]), lambda _: None) as batches:
            assert await anext(batches) == [TextDelta("Hi")]
        await upstream.wait_for(lambda up: up.closed_early.is_set(), timeout_seconds=1)
        assert [batch async for batch in batches] == []


async def test_an_answer_that_is_refused_is_not_read_on() -> None:
    async with serving([Answer([b"<html>", asyncio.Event()], headers={"Content-Type": "text/html"})]) as (
        upstream,
        endpoint,
    ):
        asked = await ask(endpoint)
        await upstream.wait_for(lambda up: up.closed_early.is_set(), timeout_seconds=1)
        # Kept until here, since the garbage collector would close what nobody holds.
        assert isinstance(asked.error, UpstreamFailed)


async def test_cancelling_before_the_first_byte_closes_the_connection() -> None:
    never = asyncio.Event()
    async with serving([Answer([never])]) as (upstream, endpoint):
        await _cancel_while_it_streams(endpoint, upstream)
        await upstream.wait_for(lambda up: up.closed_early.is_set(), timeout_seconds=1)


async def test_closing_the_endpoint_closes_its_connections() -> None:
    async with open_upstream(lambda _: GOOD) as upstream:
        async with open_endpoint(Options(upstream.url)) as endpoint:
            await ask(endpoint)
            assert upstream.open_connections == 1
        await upstream.wait_for(lambda up: up.open_connections == 0, timeout_seconds=1)


# What is sent

TOKENS: list[tuple[Options, str | None, str | None]] = [
    (QUICK, None, None),
    (replace(QUICK, api_key=Secret("")), None, None),
    (replace(QUICK, api_key=Secret("ours")), None, "Bearer ours"),
    (replace(QUICK, api_key=Secret("ours")), "theirs", "Bearer ours"),
    (replace(QUICK, api_key=Secret("ours"), use_user_token=True), "theirs", "Bearer theirs"),
    (replace(QUICK, api_key=Secret("ours"), use_user_token=True), None, "Bearer ours"),
    (replace(QUICK, use_user_token=True), "theirs", "Bearer theirs"),
]


@pytest.mark.parametrize(("options", "token", "expected"), TOKENS)
async def test_the_right_token_is_sent(options: Options, token: str | None, expected: str | None) -> None:
    async with serving([GOOD], options) as (upstream, endpoint):
        assert (await ask(endpoint, token=token)).error is None
        assert upstream.asks[0].headers.get("authorization") == expected


async def test_nothing_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"OPENAI_{name}", "planted")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Extra: planted\nAuthorization: Bearer planted")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://planted.invalid")
    async with serving([GOOD]) as (upstream, endpoint):
        assert (await ask(endpoint)).deltas == HI
        await endpoint.list_models()
        assert len(upstream.requests) == 2
        assert "planted" not in repr([request.headers for request in upstream.requests])
        assert not [name for name in upstream.requests[0].headers if name.startswith("openai")]


@pytest.mark.parametrize("use", ["key", "token"])
async def test_a_token_that_the_endpoint_repeats_is_not_told(use: str) -> None:
    options = replace(QUICK, api_key=Secret("open-sesame-1"), use_user_token=use == "token")
    shown = "open-sesame-1" if use == "key" else "open-sesame-2"
    async with serving(lambda _: failure(401, f"Wrong key {shown} at http://10.1.2.3:9/v1"), options) as (_, endpoint):
        asked = await ask(endpoint, token="open-sesame-2")
    assert str(asked.error) == "The model endpoint answered 401: Wrong key [redacted] at [address]"


async def test_cookies_are_not_carried_from_one_caller_to_the_next() -> None:
    answer = stream(text("Hi"), end(), headers={"Set-Cookie": "session=theirs; Path=/"})
    async with (
        open_upstream(lambda _: answer) as upstream,
        open_endpoint(Options(upstream.url.replace("127.0.0.1", "localhost"))) as endpoint,
    ):
        await ask(endpoint)
        await ask(endpoint)
        assert len(upstream.asks) == 2
        assert not [request for request in upstream.asks if "cookie" in request.headers]


async def test_text_that_utf8_cannot_carry_is_sent_without_it() -> None:
    async with serving([GOOD]) as (upstream, endpoint):
        assert (await ask(endpoint, content="a\ud800b")).deltas == HI
        assert upstream.asks[0].json["messages"][0]["content"] == "a\ufffdb"


async def test_many_streams_run_side_by_side() -> None:
    gate = asyncio.Event()
    async with serving(lambda _: stream(text("Hi"), gate, end())) as (upstream, endpoint):
        replies: list[Asked] = []

        async def hear() -> None:
            replies.append(await ask(endpoint))

        async with anyio.create_task_group() as group:
            for _ in range(300):
                group.start_soon(hear)
            await upstream.wait_for(lambda up: len(up.asks) == 300, timeout_seconds=20)
            gate.set()
        assert [reply.deltas for reply in replies] == [HI] * 300


async def test_a_list_of_models_that_does_not_come_is_given_up() -> None:
    held = Answer([asyncio.Event()])
    async with (
        open_upstream([], models_script=lambda _: held) as upstream,
        open_endpoint(Options(upstream.url, list_seconds=0.1)) as endpoint,
    ):
        with anyio.fail_after(5), pytest.raises(UpstreamUnreachable):
            await endpoint.list_models()
