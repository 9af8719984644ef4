"""One run's model: what it is asked in, which candidate answers, what its endpoint has to be told otherwise.

A refusal (400, 422) that points at something that can be said differently changes the request; what then worked is
remembered for that model for the life of the process. Each change is new: no request is sent twice, and there are at
most `_MOST_CHANGES`. A candidate that does not begin to answer gives way to the next one for the rest of the run.
Knows no HTTP.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace

from cachetools import LRUCache

from app.domain.errors import ContextLengthExceeded, RunError
from app.domain.events import Notice, RouterMetadata
from app.domain.jsontypes import JsonObject, is_array, is_object
from app.domain.messages import Delta, Message, Tool
from app.domain.ports import Ask, ModelFacts, Tell
from app.domain.spec import RunSpec
from app.upstream.adapt import Change, Refused, changes
from app.upstream.endpoint import Endpoint, Refusal, Stream
from app.upstream.messages import without_tool_prompt
from app.upstream.quirks import Quirks
from app.upstream.request import body_from_ask, encodable, offered_tools
from app.upstream.written import WrittenCalls

_log = logging.getLogger(__name__)

_MOST_CHANGES = 8
_MOST_MODELS = 1024


class Lessons:
    """What the endpoint was found to take, by model. Bounded: callers may make up names of models."""

    def __init__(self) -> None:
        self._learned: LRUCache[str, Quirks] = LRUCache(_MOST_MODELS)

    def of(self, model: str) -> Quirks | None:
        """Return what was learned of a model, by the id that it is asked under."""
        return self._learned.get(model)

    def learn(self, model: str, before: Quirks, after: Quirks) -> None:
        """Remember what had to be changed for a request to succeed; what others have learned meanwhile stays."""
        known = self._learned.get(model, before)
        changed = {each.name: getattr(after, each.name) for each in fields(Quirks)}
        changed = {name: value for name, value in changed.items() if value != getattr(before, name)}
        if "leave_out" in changed:
            changed["leave_out"] |= known.leave_out
        if "refused_tools" in changed:
            changed["refused_tools"] = tuple(dict.fromkeys((*known.refused_tools, *after.refused_tools)))
        self._learned[model] = replace(known, **changed)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be asked, and what is known of it beforehand."""

    facts: ModelFacts
    quirks: Quirks = field(default_factory=Quirks)


class RunModel:
    """Implements `ChatModel`."""

    def __init__(self, endpoint: Endpoint, lessons: Lessons, candidates: Sequence[Candidate], spec: RunSpec) -> None:
        """`candidates` are asked in this order."""
        self._endpoint = endpoint
        self._lessons = lessons
        self._candidates = candidates
        self._spec = spec
        self._at = 0
        self._has_logged = False
        self._told: set[str | RouterMetadata] = set()

    def offered(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        return offered_tools(tools, self._quirks(self._candidates[self._at]))

    @asynccontextmanager
    async def stream(self, ask: Ask, tell: Tell) -> AsyncGenerator[AsyncIterator[Sequence[Delta]]]:
        stream, tools = await self._open(ask, tell)
        batches = stream.batches()
        heard = _with_written_calls(batches, tools, tell) if tools else batches
        try:
            yield heard
        finally:
            # In this order: a generator must not be left to the garbage collector, which closes it in another task.
            await stream.close(heard, batches)

    async def _open(self, ask: Ask, tell: Tell) -> tuple[Stream, Sequence[Tool]]:
        while True:
            candidate = self._candidates[self._at]
            try:
                return await self._open_at(candidate, ask, tell)
            except RunError as error:
                if self._at + 1 >= len(self._candidates) or isinstance(error, ContextLengthExceeded):
                    raise
                self._at += 1
                following = self._candidates[self._at].facts.id
                said = f"{candidate.facts.id} could not be asked, so {following} is. {error}"
                tell(Notice("model_fallback", said, {"model": candidate.facts.id}))

    async def _open_at(self, candidate: Candidate, ask: Ask, tell: Tell) -> tuple[Stream, Sequence[Tool]]:
        """Ask one model, as often as something can be said differently."""
        before = quirks = self._quirks(candidate)
        tools, body = self._request(candidate, ask, quirks)
        self._tell_of_omissions(ask, tools, quirks, tell)
        sent = [body]
        while True:
            try:
                stream = await self._send(body, tell)
                break
            except Refusal as refusal:
                refused = Refused(refusal.complaint, body, tools, quirks)
                for change in changes(refused):
                    other_tools, other = self._request(candidate, ask, change.quirks)
                    if other not in sent:
                        break
                else:
                    raise refusal.error from None
                if len(sent) > _MOST_CHANGES:
                    raise refusal.error from None
            quirks, tools, body = change.quirks, other_tools, other
            sent.append(body)
            tell(_notice(change))
        if len(sent) > 1:
            self._lessons.learn(body["model"], before, quirks)
        self._tell_who_answers(candidate.facts, stream.provider, tell)
        return stream, tools

    async def _send(self, body: JsonObject, tell: Tell) -> Stream:
        token, is_last = self._spec.user_token, self._at + 1 >= len(self._candidates)
        try:
            return await self._endpoint.open_stream(body, token, tell, is_last_hope=is_last)
        except ValueError:
            # Encoding precedes sending, so nothing was sent; looking first would cost every request a walk.
            return await self._endpoint.open_stream(encodable(body), token, tell, is_last_hope=is_last)

    def _request(self, candidate: Candidate, ask: Ask, quirks: Quirks) -> tuple[list[Tool], JsonObject]:
        tools = offered_tools(ask.tools, quirks)
        messages = ask.messages if tools or not ask.tools else without_tool_prompt(ask.messages, ask.tool_prompt)
        asked = replace(ask, messages=messages, tools=tools)
        return tools, body_from_ask(candidate.facts, asked, self._spec, quirks)

    def _quirks(self, candidate: Candidate) -> Quirks:
        model, provider = candidate.facts.id, self._spec.provider
        return self._lessons.of(f"{model}:{provider}" if provider else model) or candidate.quirks

    def _tell_of_omissions(self, ask: Ask, tools: Sequence[Tool], quirks: Quirks, tell: Tell) -> None:
        """Tell, once each, what facts that were known before make the request leave out."""
        left_out = len(ask.tools) - len(tools)
        if quirks.tools and left_out and len(tools) == quirks.max_tools:
            said = f"The model is offered {len(tools)} of {len(ask.tools)} tools, as many as it takes."
            self._tell_once(Notice("tools_left_out", said, {"offered": len(tools), "leftOut": left_out}), tell)
        limit = quirks.description_characters
        long = 0 if limit is None else sum(len(tool.spec.description) > limit for tool in tools)
        if long and not self._has_logged:
            self._has_logged = True
            _log.info("descriptions of tools cut to the %d characters that the endpoint takes: %d", limit, long)
        if not quirks.images and any(map(_has_picture, ask.messages)):
            self._tell_once(Notice("images_left_out", "The model takes no images, so they were left out."), tell)

    def _tell_once(self, notice: Notice, tell: Tell) -> None:
        if notice.message not in self._told:
            self._told.add(notice.message)
            tell(notice)

    def _tell_who_answers(self, facts: ModelFacts, provider: str | None, tell: Tell) -> None:
        who = RouterMetadata(facts.route, facts.id, provider)
        if (facts.route is not None or provider is not None) and who not in self._told:
            self._told = {told for told in self._told if isinstance(told, str)} | {who}
            tell(who)


def _notice(change: Change) -> Notice:
    about: JsonObject = {}
    if change.tool is not None:
        about = {"server": change.tool.server, "tool": change.tool.name}
    return Notice(change.code, change.message, about)


def _has_picture(message: Message) -> bool:
    content = message.get("content")
    return is_array(content) and any(is_object(part) and part.get("type") == "image_url" for part in content)


async def _with_written_calls(
    batches: AsyncIterator[Sequence[Delta]], tools: Sequence[Tool], tell: Tell
) -> AsyncGenerator[Sequence[Delta]]:
    """Take calls that the model wrote as text for calls."""
    written = WrittenCalls({tool.spec.name for tool in tools})
    failure: RunError | None = None
    try:
        async for batch in batches:
            taken = written.take(batch)
            if taken:
                yield taken
    except RunError as error:
        failure = error
    rest = written.rest(is_whole=failure is None)
    if rest:
        yield rest
    if failure is not None:
        raise failure
    if written.left_as_text is not None:
        said = f"The model wrote a call of {written.left_as_text} into its text; it was not executed."
        tell(Notice("written_call", said, {"name": written.left_as_text}))
