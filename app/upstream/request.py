"""A question to the model becomes the body of a chat-completions request. Pure, but for the schemas it remembers.

Keys about tools are sent only where tools are; what an endpoint refuses is left out or said in its way (`quirks.py`).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from anyio import to_thread
from cachetools import LRUCache

from app.domain.jsontypes import Json, JsonObject, is_object
from app.domain.messages import Tool, ToolSpec
from app.domain.ports import Ask, ModelFacts
from app.domain.spec import RunSpec
from app.domain.wire import json_from_value
from app.upstream.messages import messages_for_model, names_of_calls
from app.upstream.quirks import Quirks
from app.upstream.schemas import SchemaDialect, schema_in_dialect

_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens")
"""Two names of one parameter: a default gives way to the caller's word for it."""
_MARK = " […]"
_MOST_FITTED_CHARACTERS = 16 * 1024 * 1024


class _Fitted(NamedTuple):
    listed: JsonObject
    fitted: JsonObject
    characters: int


_fitted: LRUCache[tuple[int, SchemaDialect], _Fitted] = LRUCache(
    _MOST_FITTED_CHARACTERS, getsizeof=lambda entry: entry.characters
)
"""Schemas by the identity of what was listed, which is kept with them so that no other gets its place. Listings are
cached, so the same object comes with every round and every run."""


def body_from_ask(
    facts: ModelFacts, ask: Ask, spec: RunSpec, quirks: Quirks, *, schemas: Sequence[JsonObject]
) -> JsonObject:
    """Build the request body; the model's own parameters stand below the caller's.

    `ask.tools` are those that are sent (`offered_tools`), with their `schemas` in the endpoint's dialect
    (`fitted_schemas`). Parameters that are null are left out.
    """
    body = _parameters(facts.parameters, spec.parameters, quirks)
    body["model"] = f"{facts.id}:{spec.provider}" if spec.provider else facts.id
    body["messages"] = messages_for_model(ask.messages, quirks, ask.thoughts)
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    if ask.tools:
        body["tools"] = [_tool(tool.spec, schema, quirks) for tool, schema in zip(ask.tools, schemas, strict=True)]
        choice = _choice(ask, quirks)
        if choice is not None:
            body["tool_choice"] = choice
        if spec.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = spec.parallel_tool_calls
        if quirks.response_format == "without_tools":
            body.pop("response_format", None)
    elif quirks.needs_tools and (names := names_of_calls(ask.messages)):
        body["tools"] = [_stand_in(name) for name in names]
        if quirks.tool_choice == "any":
            body["tool_choice"] = "none"
    for name in quirks.leave_out:
        body.pop(name, None)
    return body


def _parameters(own: Mapping[str, Json], callers: Mapping[str, Json], quirks: Quirks) -> JsonObject:
    said = {name: value for name, value in callers.items() if value is not None}
    taken = {*said, "tools", "tool_choice", "parallel_tool_calls"}
    if taken.intersection(_OUTPUT_LIMITS):
        taken.update(_OUTPUT_LIMITS)
    body: JsonObject = {name: value for name, value in own.items() if value is not None and name not in taken}
    body |= {name: value for name, value in said.items() if name not in ("tools", "tool_choice", "parallel_tool_calls")}
    if quirks.output_limit != "given":
        limit = [body.pop(name) for name in _OUTPUT_LIMITS if name in body]
        if limit:
            body[quirks.output_limit] = limit[-1]
    return body


def _choice(ask: Ask, quirks: Quirks) -> str | JsonObject | None:
    choice = ask.tool_choice
    name = chosen_name(choice)
    if name is not None and all(tool.spec.name != name for tool in ask.tools):
        choice = "auto"
    if quirks.tool_choice == "absent":
        return None
    return "auto" if quirks.tool_choice == "auto" else choice


def chosen_name(choice: str | JsonObject) -> str | None:
    """Tell which tool a choice names, if it names one."""
    named: Json = choice.get("function") if is_object(choice) else None
    return named.get("name") if is_object(named) else None


def _stand_in(name: str) -> JsonObject:
    parameters: JsonObject = {"type": "object", "properties": {}}
    function: JsonObject = {"name": name, "description": "Not available any more.", "parameters": parameters}
    return {"type": "function", "function": function}


def _tool(spec: ToolSpec, parameters: JsonObject, quirks: Quirks) -> JsonObject:
    description, limit = spec.description, quirks.description_characters
    if limit is not None and len(description) > limit:
        description = description[: max(1, limit - len(_MARK))] + _MARK
    return {"type": "function", "function": {"name": spec.name, "description": description, "parameters": parameters}}


async def fitted_schemas(tools: Sequence[Tool], dialect: SchemaDialect) -> list[JsonObject]:
    """Write the tools' schemas in a dialect; new ones in a thread, as strangers decide how much work they are."""
    listed = [tool.spec.parameters for tool in tools]
    known = [_fitted.get((id(schema), dialect)) for schema in listed]
    new = [schema for schema, entry in zip(listed, known, strict=True) if entry is None]
    if new:
        made = {
            id(entry.listed): entry
            for entry in await to_thread.run_sync(_fit_all, new, dialect, abandon_on_cancel=True)
        }
        for key, entry in made.items():
            if entry.characters <= _MOST_FITTED_CHARACTERS:
                _fitted[key, dialect] = entry
        known = [made.get(id(schema), entry) for schema, entry in zip(listed, known, strict=True)]
    return [entry.fitted for entry in known if entry is not None]


def _fit_all(schemas: Sequence[JsonObject], dialect: SchemaDialect) -> list[_Fitted]:
    fitted = [schema_in_dialect(schema, dialect) for schema in schemas]
    sizes = [len(json.dumps([listed, made], ensure_ascii=False)) for listed, made in zip(schemas, fitted, strict=True)]
    return list(map(_Fitted, schemas, fitted, sizes))


def tool_digest(tool: Tool) -> str:
    """Name a tool by all that a provider sees of it: its name alone may be another's tomorrow."""
    spec = tool.spec
    text = json.dumps([spec.name, spec.description, spec.parameters], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


def refused_tools(tools: Sequence[Tool], quirks: Quirks) -> list[Tool]:
    """List those that the endpoint was found to refuse."""
    return [tool for tool in tools if tool_digest(tool) in quirks.refused_tools] if quirks.refused_tools else []


def offered_tools(
    tools: Sequence[Tool], quirks: Quirks, *, named: str | None = None, kept: Collection[str] = ()
) -> list[Tool]:
    """Choose what is sent of a run's tools: none that was refused, and no more than the endpoint takes.

    The one that is `named` goes first, then those that are `kept`, if all of them are taken. Of the rest each server
    gets an equal share, and what one does not need goes to the others. Within a server the first ones are taken; the
    order is kept.
    """
    if not quirks.tools:
        return []
    refused = {tool.spec.name for tool in refused_tools(tools, quirks)}
    tools = [tool for tool in tools if tool.spec.name not in refused]
    if len(tools) <= quirks.max_tools:
        return tools
    taken = {at for at, tool in enumerate(tools) if tool.spec.name == named}
    before = [at for at, tool in enumerate(tools) if tool.spec.name in kept and at not in taken]
    if len(before) <= quirks.max_tools:
        taken.update(before[: quirks.max_tools - len(taken)])
    by_server: dict[str, list[int]] = {}
    for at, tool in enumerate(tools):
        if at not in taken:
            by_server.setdefault(tool.server, []).append(at)
    left = quirks.max_tools - len(taken)
    waiting = sorted(by_server.values(), key=len)  # the small ones first: what they leave is shared by the rest
    for number, places in enumerate(waiting):
        share = min(len(places), left // (len(waiting) - number))
        taken.update(places[:share])
        left -= share
    return [tool for at, tool in enumerate(tools) if at in taken]


def encodable(body: JsonObject) -> JsonObject:
    """Return a copy without what UTF-8 or JSON cannot carry: lone surrogates, numbers that are not finite."""
    return json.loads(json_from_value(body))
