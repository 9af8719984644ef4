"""The conversation as the model gets it: how it opens, how a reply and its results are said in it."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from app.domain.jsontypes import Json, JsonObject, is_array, is_object
from app.domain.messages import Message, Reply, Tool, ToolCall
from app.domain.ports import Ask, RunRecord, Toolbox
from app.run.context import with_shorter_results
from app.run.history import valid_history
from app.run.images import NO_PICTURES, pictures_message

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_SYSTEM_ROLES = ("system", "developer")


@dataclass(slots=True)
class Talk:
    """The conversation so far, and how the next question to the model is put."""

    messages: tuple[Message, ...]
    record: RunRecord
    toolbox: Toolbox
    tool_choice: str | JsonObject = "auto"
    prompt: Callable[[Sequence[Tool], str | JsonObject], str] | None = None
    """Writes what the model is told of its tools, from those there are and the choice; None where it is told nothing.

    For the same tools it writes the same, so that what the provider keeps of the conversation stays valid.
    """
    tool_prompt: str = ""
    """With what the system message begins, where there are tools; kept up with them."""
    keeps_reasoning: bool = False
    """The model's reasoning is part of the conversation, for the caller too."""
    shows_pictures: bool = False
    """The model is known to take images."""
    thoughts: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    pictures: list[Message] = field(default_factory=list[Message])
    """What `show` said."""

    def say(self, *messages: Message) -> None:
        """Go on with these messages; the caller gets them too."""
        self.messages = (*self.messages, *messages)
        self.record.add_messages(messages)
        # A forced choice is for the first round: kept, it would have the model call tools for ever.
        self.tool_choice = "auto"

    def say_round(self, reply: Reply, answers: Sequence[Message]) -> None:
        """Say a reply that made calls, and what they came to."""
        if reply.thought and not self.keeps_reasoning:
            self.thoughts[reply.calls[0].id] = reply.thought
        self.say(self._with_thought(assistant_message(reply), reply.thought), *answers)

    def say_answer(self, content: str, thought: JsonObject) -> None:
        """Say the last reply."""
        self.say(self._with_thought({"role": "assistant", "content": content}, thought))

    def show(self, pictures: Sequence[str]) -> None:
        """Show the model the tools' pictures. The caller has them in the results, and is not to send them back."""
        if pictures and self.shows_pictures:
            self.pictures.append(pictures_message(pictures))
            self.messages = (*self.messages, self.pictures[-1])

    def shorten(self, excess: float) -> bool:
        """Make the conversation shorter by a part of its text, at the cost of tool results; tells whether it is."""
        kept = [NO_PICTURES if message in self.pictures else message for message in self.messages]
        shorter = with_shorter_results(kept, excess)
        is_shorter = shorter != self.messages
        self.messages = shorter
        self.pictures.clear()
        return is_shorter

    def question(self) -> Ask:
        """Ask with all tools that there are now."""
        tools = self.toolbox.tools
        told = self.prompt(tools, self.tool_choice) if self.prompt else ""
        if told != self.tool_prompt:
            self.messages = with_tool_prompt(self.messages, before=self.tool_prompt, now=told)
            self.tool_prompt = told
        return Ask(self.messages, tools, self.tool_choice, tool_prompt=told, thoughts=self.thoughts)

    def nudge(self, text: str) -> Ask:
        """Ask with one more user message for this once, which the conversation does not keep."""
        return replace(self.question(), messages=(*self.messages, {"role": "user", "content": text}))

    def closing_question(self, instruction: str) -> Ask:
        """Ask without tools; the instruction takes the place of a further system message."""
        messages = (*self.messages, {"role": "user", "content": instruction})
        return Ask(messages, withheld=self.toolbox.tools, thoughts=self.thoughts)

    def _with_thought(self, message: Message, thought: JsonObject) -> Message:
        if not (thought and self.keeps_reasoning):
            return message
        before: str = thought.get("content", "")
        if before and message["content"] and "</think>" not in before:
            before += "</think>\n\n"  # what follows is no thought any more
        return {**thought, **message, "content": before + message["content"]}


def opening(messages: Sequence[Message], *, preprompt: str | None) -> tuple[Message, ...]:
    """Put at most one system message first: preprompt, then the caller's own system text. The tool prompt joins it.

    Source of the rule: many chat templates fail on a second or later system message. What follows is a valid history.
    """
    said = [_text(message.get("content")) for message in messages if message.get("role") in _SYSTEM_ROLES]
    system = _paragraphs(preprompt or "", *said)
    rest = valid_history([message for message in messages if message.get("role") not in _SYSTEM_ROLES])
    return ({"role": "system", "content": system}, *rest) if system else rest


def with_tool_prompt(messages: Sequence[Message], *, before: str, now: str) -> tuple[Message, ...]:
    """Let the one system message begin with another tool prompt; empty texts stand for none."""
    has_system = bool(messages) and messages[0].get("role") == "system"
    said: str = messages[0]["content"] if has_system else ""
    system = _paragraphs(now, said.removeprefix(before.strip()))
    rest = tuple(messages[1:] if has_system else messages)
    return ({"role": "system", "content": system}, *rest) if system else rest


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text.strip() for text in texts if text.strip())


def assistant_message(reply: Reply) -> Message:
    """Say a reply in OpenAI's form. Arguments are always valid JSON, whatever the model wrote."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.calls:
        message["tool_calls"] = [_call_json(call) for call in reply.calls]
    return message


def tool_message(call: ToolCall, text: str) -> Message:
    """Answer a call."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def call_ids(messages: Iterable[Message]) -> set[str]:
    """Collect the ids of all calls that a conversation holds."""
    ids: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls")
        if is_array(calls):
            ids.update(call["id"] for call in calls if is_object(call) and isinstance(call.get("id"), str))
    return ids


def _call_json(call: ToolCall) -> Json:
    arguments = call.arguments_raw if _is_object_text(call.arguments_raw) else json.dumps(call.arguments or {})
    return {
        **call.extra,
        "id": call.id,
        "type": "function",
        # Providers refuse a history with a name that could not have been offered, whoever made it up.
        "function": {"name": _UNFIT.sub("_", call.name)[:64] or "unknown_tool", "arguments": arguments},
    }


def _is_object_text(text: str) -> bool:
    try:
        return is_object(json.loads(text))
    except (ValueError, RecursionError):
        return False


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    if is_array(content):
        return "\n".join(part["text"] for part in content if is_object(part) and isinstance(part.get("text"), str))
    return ""
