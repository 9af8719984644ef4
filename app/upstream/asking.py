"""One run's model: what it is asked in, which candidate answers, what its endpoint has to be told otherwise.

A refusal (400, 404, 422) that points at something that can be said differently changes the request; what then helped,
which is that the complaint was not heard again, is remembered for that model for the life of the process. Each change
is new: no request is sent twice, and there are at most `_MOST_CHANGES`. A candidate that does not begin to answer gives
way to the next one for the rest of the run. Knows no HTTP.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from cachetools import LRUCache

from app.domain.errors import ContextLengthExceeded, RunError
from app.domain.events import Notice, RouterMetadata
from app.domain.jsontypes import JsonObject, is_array, is_object
from app.domain.messages import Delta, Message, Tool
from app.domain.ports import Ask, ModelFacts, Tell
from app.domain.principal import Principal
from app.domain.spec import RunSpec
from app.upstream.adapt import changes
from app.upstream.endpoint import Endpoint, Refusal, Stream
from app.upstream.messages import with_tools_named
from app.upstream.quirks import MOST_REFUSED, Quirks
from app.upstream.refusal import Change, Refused
from app.upstream.request import body_from_ask, chosen_name, encodable, fitted_schemas, offered_tools, refused_tools
from app.upstream.schemas import SchemaDialect
from app.upstream.written import WrittenCalls

_log = logging.getLogger(__name__)

_MOST_CHANGES = 16
_MOST_KEYWORDS = 64
_MOST_MODELS = 1024


class Lessons:
    """What the endpoint was found to take, by caller and model. Bounded: callers may make up names of models.

    An endpoint's complaint may repeat what the caller wrote, so nobody learns from the requests of others.
    """

    def __init__(self) -> None:
        self._learned: LRUCache[tuple[Principal, str], Quirks] = LRUCache(_MOST_MODELS)

    def of(self, model: str, principal: Principal) -> Quirks | None:
        """Return what was learned of a model, by the id that it is asked under."""
        return self._learned.get((principal, model))

    def learn(self, model: str, principal: Principal, *, base: Quirks, before: Quirks, after: Quirks) -> None:
        """Remember what had to be changed for a request to succeed; what others have learned meanwhile stays.

        `base` is what was known beforehand, where nothing was learned yet.
        """
        known = self._learned.get((principal, model), base)
        changed = _changes(before, after)
        if "schema" in changed:
            schema = _changes(before.schema, after.schema)
            if "without" in schema:
                both = known.schema.without | after.schema.without
                schema["without"] = both if len(both) <= _MOST_KEYWORDS else known.schema.without
            changed["schema"] = replace(known.schema, **schema)
        if "leave_out" in changed:
            changed["leave_out"] |= known.leave_out
        if "refused_tools" in changed:
            changed["refused_tools"] = tuple(dict.fromkeys((*known.refused_tools, *after.refused_tools)))[
                -MOST_REFUSED:
            ]
        self._learned[principal, model] = replace(known, **changed)


def _changes(before: Quirks | SchemaDialect, after: Quirks | SchemaDialect) -> dict[str, Any]:
    values = {each.name: getattr(after, each.name) for each in fields(after)}
    return {name: value for name, value in values.items() if value != getattr(before, name)}


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
        self._told: set[str] = set()  # what is said once in a run
        self._kept: set[str] = set()  # names of the tools that were offered
        self._answers: RouterMetadata | None = None
        self._foreign: frozenset[str] = frozenset()

    def offered(self, tools: Sequence[Tool], tool_choice: str | JsonObject = "auto") -> Sequence[Tool]:
        offered = self._offered(tools, self._quirks(self._candidates[self._at]), named=chosen_name(tool_choice))
        self._kept = {tool.spec.name for tool in offered}
        return offered

    @asynccontextmanager
    async def stream(self, ask: Ask, tell: Tell) -> AsyncGenerator[AsyncIterator[Sequence[Delta]]]:
        answer = await self._open(ask, tell)
        heard = self._with_written_calls(answer, ask, tell)
        try:
            yield heard
        finally:
            # In this order: a generator must not be left to the garbage collector, which closes it in another task.
            await answer.stream.close(heard, answer.batches)

    async def _open(self, ask: Ask, tell: Tell) -> "_Answer":
        """Ask the candidates, from the one that answered last on, until one has begun to answer."""
        while True:
            candidate, is_last = self._candidates[self._at], self._at + 1 >= len(self._candidates)
            try:
                answer = await self._open_at(candidate, ask, tell)
                if not is_last:
                    await answer.begin()
            except RunError as error:
                if is_last or isinstance(error, ContextLengthExceeded):
                    raise
                self._at += 1
                self._foreign = frozenset(ask.thoughts)  # another model's, which this one may not be able to read
                following = self._candidates[self._at].facts.id
                said = f"{candidate.facts.id} did not answer, so {following} is asked. {error}"
                tell(Notice("model_fallback", said, {"model": candidate.facts.id}))
            else:
                if answer.tools:
                    self._kept = {tool.spec.name for tool in answer.tools}
                self._tell_who_answers(candidate.facts, answer.stream.provider, tell)
                return answer

    async def _open_at(self, candidate: Candidate, ask: Ask, tell: Tell) -> "_Answer":
        """Ask one model, as often as something can be said differently."""
        before = helpful = quirks = self._quirks(candidate)
        tools, body = await self._request(candidate, ask, quirks)
        self._tell_of_omissions(ask, tools, quirks, tell)
        sent, complaint, said, change = [body], "", "", None
        try:
            while True:
                try:
                    stream = await self._send(body, tell)
                except Refusal as refusal:
                    # The same complaint once more: what was changed last was not what it is about.
                    is_new, complaint = refusal.complaint.gist != complaint, refusal.complaint.gist
                    if change is not None and (is_new or change.tools):
                        helpful = quirks
                        self._tell_of_change(change, said, ask, tools, tell=tell)
                    said = str(refusal.error)
                    refused = Refused(refusal.complaint, body, tools, helpful)
                    following = await self._changed(candidate, ask, refused, sent)
                    if following is None:
                        raise refusal.error from None
                    change, tools, body = following
                    quirks = change.quirks
                    sent.append(body)
                else:
                    if change is not None:
                        helpful = helpful if change.is_last_resort else quirks
                        self._tell_of_change(change, said, ask, tools, tell=tell)
                    return _Answer(stream, stream.batches(), tools)
        finally:
            if helpful != before:
                self._lessons.learn(
                    body["model"], self._spec.principal, base=candidate.quirks, before=before, after=helpful
                )

    async def _changed(
        self, candidate: Candidate, ask: Ask, refused: Refused, sent: Sequence[JsonObject]
    ) -> tuple[Change, Sequence[Tool], JsonObject] | None:
        """Find a change that makes a request which was not sent yet."""
        proposed: Iterable[Change] = changes(refused)
        if len(sent) > _MOST_CHANGES:
            said = (
                "The model's endpoint refused one thing about the tools after the other, so it was asked without any."
            )
            without = replace(refused.quirks, tools=False)
            proposed = [Change(without, "tools_refused", said, is_last_resort=True)] if refused.tools else []
        for change in proposed:
            tools, body = await self._request(candidate, ask, change.quirks)
            if body not in sent:
                return change, tools, body
        return None

    async def _send(self, body: JsonObject, tell: Tell) -> Stream:
        token, is_last = self._spec.user_token, self._at + 1 >= len(self._candidates)
        try:
            return await self._endpoint.open_stream(body, token, tell, is_last_hope=is_last)
        except ValueError:
            # Encoding precedes sending, so nothing was sent; looking first would cost every request a walk.
            return await self._endpoint.open_stream(encodable(body), token, tell, is_last_hope=is_last)

    async def _request(self, candidate: Candidate, ask: Ask, quirks: Quirks) -> tuple[Sequence[Tool], JsonObject]:
        tools = self._offered(ask.tools, quirks, named=chosen_name(ask.tool_choice))
        schemas = await fitted_schemas(tools, quirks.schema)
        messages = ask.messages
        if len(tools) < len(ask.tools):
            messages = with_tools_named(messages, ask.tool_prompt, {tool.spec.name for tool in tools})
        thoughts = {id_: thought for id_, thought in ask.thoughts.items() if id_ not in self._foreign}
        asked = replace(ask, messages=messages, tools=tools, thoughts=thoughts)
        return tools, body_from_ask(candidate.facts, asked, self._spec, quirks, schemas=schemas)

    def _offered(self, tools: Sequence[Tool], quirks: Quirks, *, named: str | None = None) -> Sequence[Tool]:
        """Choose the tools that are sent; what was offered before stays, whoever joins later."""
        return offered_tools(tools, quirks, named=named, kept=self._kept)

    def _quirks(self, candidate: Candidate) -> Quirks:
        model, provider = candidate.facts.id, self._spec.provider
        quirks = (
            self._lessons.of(f"{model}:{provider}" if provider else model, self._spec.principal) or candidate.quirks
        )
        return replace(quirks, tools=True) if self._spec.force_tools and not quirks.tools else quirks

    # What is told

    def _tell_of_omissions(self, ask: Ask, tools: Sequence[Tool], quirks: Quirks, tell: Tell) -> None:
        """Tell, once each, what facts that were known before make of the request."""
        for omission in self._omissions(ask, tools, quirks):
            self._tell_once(omission, tell)
        limit = quirks.description_characters
        long = 0 if limit is None else sum(len(tool.spec.description) > limit for tool in tools)
        cut = f"{long} descriptions of tools are cut to the {limit} characters that the endpoint takes"
        if long and cut not in self._told:
            self._told.add(cut)
            _log.info(cut)

    def _tell_of_change(self, change: Change, said: str, ask: Ask, tools: Sequence[Tool], *, tell: Tell) -> None:
        """Tell of a change that has helped, and why a tool went; later requests of the run need not tell it again."""
        for tool in change.tools:
            notice = _tool_refused(tool)
            self._tell_once(replace(notice, message=f"{notice.message} {said}"), tell)
        if not change.tools:
            self._tell_once(Notice(change.code, change.message), tell)
        self._told.update(omission.message for omission in self._omissions(ask, tools, change.quirks))

    def _omissions(self, ask: Ask, tools: Sequence[Tool], quirks: Quirks) -> Iterator[Notice]:
        """List what a caller might miss in the request."""
        if ask.tools and not quirks.tools:
            yield Notice("tools_refused", "The model takes no tools, so it was asked without them.")
            return
        refused = refused_tools(ask.tools, quirks)
        yield from map(_tool_refused, refused)
        if len(ask.tools) - len(refused) > quirks.max_tools:
            said = f"The model is offered {len(tools)} of {len(ask.tools)} tools, as many as it takes."
            yield Notice("tools_left_out", said, {"offered": len(tools), "leftOut": len(ask.tools) - len(tools)})
        if not quirks.images and any(map(_has_picture, ask.messages)):
            yield Notice("images_left_out", "The model takes no images, so they were left out.")
        said = [name for name in sorted(quirks.leave_out) if self._spec.parameters.get(name) is not None]
        if tools and quirks.response_format == "without_tools" and self._spec.parameters.get("response_format"):
            said.append("response_format")
        if tools and quirks.tool_choice != "any" and ask.tool_choice != "auto":
            said.append("tool_choice")
        for name in said:
            yield Notice("request_adapted", f"The model's endpoint does not take {name} here, so it was left out.")

    def _tell_once(self, notice: Notice, tell: Tell) -> None:
        if notice.message not in self._told:
            self._told.add(notice.message)
            tell(notice)

    def _tell_who_answers(self, facts: ModelFacts, provider: str | None, tell: Tell) -> None:
        who = RouterMetadata(facts.route, facts.id, provider)
        if (facts.route is not None or provider is not None) and who != self._answers:
            self._answers = who
            tell(who)

    async def _with_written_calls(self, answer: "_Answer", ask: Ask, tell: Tell) -> AsyncGenerator[Sequence[Delta]]:
        """Take calls that the model wrote as text for calls; where none may be made, tell of them."""
        known = answer.tools or ask.withheld
        if not known:
            async with aclosing(answer.all_batches()) as batches:
                async for batch in batches:
                    yield batch
            return
        written = WrittenCalls(
            {tool.spec.name for tool in known},
            may_run=bool(answer.tools),
            only_tagged=self._spec.parameters.get("response_format") is not None,
        )
        failure: RunError | None = None
        try:
            async with aclosing(answer.all_batches()) as batches:
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


@dataclass(slots=True)
class _Answer:
    """An answer that was opened."""

    stream: Stream
    batches: AsyncGenerator[Sequence[Delta]]
    tools: Sequence[Tool]
    """Those that were sent."""
    first: Sequence[Delta] = ()

    async def begin(self) -> None:
        """Wait until something of it has come.

        Raises:
            RunError: Nothing has, nor will.
        """
        try:
            self.first = await anext(self.batches, ())
        except BaseException:
            await self.stream.close(self.batches)
            raise

    async def all_batches(self) -> AsyncGenerator[Sequence[Delta]]:
        """Read it, from its beginning."""
        if self.first:
            yield self.first
        async for batch in self.batches:
            yield batch


def _tool_refused(tool: Tool) -> Notice:
    said = f"The model's endpoint refused the tool {tool.name}, so it is not offered."
    return Notice("tool_dropped", said, {"server": tool.server, "tool": tool.name})


def _has_picture(message: Message) -> bool:
    content = message.get("content")
    return is_array(content) and any(is_object(part) and part.get("type") == "image_url" for part in content)
