"""What becomes of an endpoint's complaints: real words of many endpoints, and what is said differently after them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from app.domain.messages import Tool, ToolSpec
from app.domain.ports import Ask, ModelFacts
from app.domain.spec import RunSpec
from app.upstream.adapt import changes
from app.upstream.faults import complaint_from_body
from app.upstream.quirks import Quirks, quirks_with
from app.upstream.refusal import Change, Refused
from app.upstream.request import body_from_ask, offered_tools
from app.upstream.schemas import schema_in_dialect

SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "pattern": "^x$", "format": "email", "minLength": 2},
        "n": {"$ref": "#/$defs/N"},
        "tag": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "anyOf": [{"required": ["to"]}, {"required": ["n"]}],
    "$defs": {"N": {"type": "integer"}},
}
NAMES = ["clock", "find", "mail_it", *(f"tool_{number}" for number in range(147))]
TOOLS = [Tool(ToolSpec(name, name * 300, {**SCHEMA, "title": name}), "box", name) for name in NAMES]
TAKES_ALL = quirks_with(
    Quirks(),
    {"maxTools": 500, "schema": {"references": True, "typeLists": "keep", "rootCombinators": True, "formats": "all"}},
)
SPEC = RunSpec(
    messages=(),
    parallel_tool_calls=True,
    parameters={
        "temperature": 0.2,
        "max_tokens": 50,
        "user": "u",
        "stop": ["x"],
        "seed": 7,
        "presence_penalty": 0,
        "response_format": {},
    },
)
CALL = {"id": "call_8f3a2b", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
LONG_ID = "call_" + "x" * 60
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "x"}}]},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_8f3a2b", "content": "noon"},
    {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": [{**CALL, "id": LONG_ID}]},
    {"role": "tool", "tool_call_id": LONG_ID, "content": "noon", "name": "clock"},
]


def effective(complaint: Any, *, tools: list[Tool] = TOOLS, quirks: Quirks = TAKES_ALL) -> list[Change]:
    """Give the changes that make another request."""
    raw = complaint.encode() if isinstance(complaint, str) else json.dumps(complaint).encode()
    ask = Ask(MESSAGES, tools, "required")

    def body(changed: Quirks) -> Any:
        offered = offered_tools(tools, changed)
        schemas = [schema_in_dialect(tool.spec.parameters, changed.schema) for tool in offered]
        return body_from_ask(ModelFacts("m"), replace(ask, tools=offered), SPEC, changed, schemas=schemas)

    refused = Refused(complaint_from_body(raw, "application/json"), body(quirks), tools, quirks)
    return [change for change in changes(refused) if body(change.quirks) != body(quirks)]


def error(message: str, param: str | None = None, **fields: Any) -> Any:
    return {"error": {"message": message, "param": param, **fields}}


def extra(*loc: str) -> Any:
    return [{"type": "extra_forbidden", "loc": ["body", *loc], "msg": "Extra inputs are not permitted", "input": 1}]


SAID: list[tuple[Any, dict[str, Any] | None]] = [
    # fields
    (error("unknown field stream_options", "stream_options"), {"leaveOut": ["stream_options"]}),
    (error("Unrecognized request argument supplied: parallel_tool_calls"), {"leaveOut": ["parallel_tool_calls"]}),
    ({"detail": extra("stream_options")}, {"leaveOut": ["stream_options"]}),
    ({"object": "error", "message": {"detail": extra("stream_options")}}, {"leaveOut": ["stream_options"]}),
    ({"object": "error", "message": str(extra("parallel_tool_calls"))}, {"leaveOut": ["parallel_tool_calls"]}),
    (
        {"detail": [*extra("stream_options"), *extra("parallel_tool_calls")]},
        {"leaveOut": ["stream_options", "parallel_tool_calls"]},
    ),
    (error("Unknown parameter: 'seed'.", "seed"), {"leaveOut": ["seed"]}),
    (
        error("Unsupported value: 'temperature' does not support 0.2 with this model.", "temperature"),
        {"leaveOut": ["temperature"]},
    ),
    (
        error(
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.", "max_tokens"
        ),
        {"outputLimit": "max_completion_tokens"},
    ),
    (error("tool_choice 'required' is not supported by this model", "tool_choice"), {"toolChoice": "auto"}),
    (error("This model does not support tool use with tool_choice=required."), {"toolChoice": "auto"}),
    (error("response_format is not supported with tools"), {"responseFormat": "without_tools"}),
    # content
    (error("content has a wrong type"), {"emptyContent": "null"}),
    (error("messages: text content blocks must be non-empty"), {"emptyContent": "null"}),
    (error("invalid message content type: <nil>"), {"emptyContent": "null"}),
    ("Failed to deserialize: messages[3]: missing field `content` at line 1 column 523", {"emptyContent": "null"}),
    (error("Input should be a valid string", "messages.1.content"), {"contentParts": False}),
    (error("System role not supported"), {"systemRole": False}),
    (error("Developer instruction is not enabled for models/small"), {"systemRole": False}),
    (error("This model does not support image input"), {"images": False}),
    (error("image input is not supported - hint: you may need to provide the mmproj"), {"images": False}),
    (error("No endpoints found that support image input"), {"images": False}),
    ("messages[1]: unknown variant `image_url`, expected `text` at line 1 column 80", {"images": False}),
    # ids, names, reasoning
    (error("id format: nine letters or digits"), {"callIds": "nine"}),
    (error("Tool call id was call_8f3a2b but must be a-z, A-Z, 0-9, with a length of 9."), {"callIds": "nine"}),
    (
        error("Invalid 'messages[5].tool_calls[0].id': string too long.", "messages[5].tool_calls[0].id"),
        {"callIds": "plain"},
    ),
    (error("field required", "messages.4.name"), {"toolName": "required"}),
    (error("tool message must have a name"), {"toolName": "required"}),
    (error("Extra inputs are not permitted", "messages.6.name"), {"toolName": "refused"}),
    (
        error("Missing `reasoning_content` field in the assistant message at message index 1."),
        {"reasoning": "required"},
    ),
    (error("The reasoning_content in the thinking mode must be passed back to the API."), {"reasoning": "required"}),
    (error("'messages.5' : property 'reasoning' is unsupported"), {"reasoning": "refused"}),
    # tools
    (error("small:latest does not support tools"), {"tools": False}),
    (error("It can't be done: the model doesn't support tools"), {"tools": False}),
    (error("`tools` is not supported in this model"), {"tools": False}),
    (error('"auto" tool choice requires --enable-auto-tool-choice to be set'), {"tools": False}),
    (error("at most 128 entries", "tools"), {"maxTools": 128}),
    (
        error("Invalid 'tools': array too long. Expected an array with maximum length 128, but got length 150."),
        {"maxTools": 128},
    ),
    (error("Max 64 tools are supported per request, got 150"), {"maxTools": 64}),
    (error("Too many functions"), {"maxTools": 128}),
    (error("Maximum number of tools 128 exceeded"), {"maxTools": 128}),
    (error("You provided 150 tools. 128 is the maximum."), {"maxTools": 128}),
    (error("over 1024", "tools[0].function.description"), {"descriptionCharacters": 1024}),
    (
        error("Invalid 'tools[0].function.description': string too long. Maximum length 512, but got length 1500."),
        {"descriptionCharacters": 512},
    ),
    # what routers quote
    (
        error("Provider returned error", metadata={"raw": json.dumps(error("unknown field stream_options"))}),
        {"leaveOut": ["stream_options"]},
    ),
    (
        error("Provider returned error", metadata={"raw": "parallel_tool_calls: Extra inputs are not permitted"}),
        {"leaveOut": ["parallel_tool_calls"]},
    ),
    (
        error(
            'BadRequest: SomeException - {"type":"error","error":{"message":"seed: Extra inputs are not permitted"}}'
        ),
        {"leaveOut": ["seed"]},
    ),
    (
        error("Error code: 400 - {'error': {'message': \"Unknown parameter: 'seed'\", 'code': None}}"),
        {"leaveOut": ["seed"]},
    ),
    (error('UpstreamException - {"error":"m does not support tools"}'), {"tools": False}),
    ({"error": {"message": "bad", "details": [{"fieldViolations": [{"field": "seed", "description": "x"}]}]}}, None),
    # names of fields in other spellings
    (error("seed: Extra inputs are not permitted"), {"leaveOut": ["seed"]}),
    (error("Unknown parameter: seed"), {"leaveOut": ["seed"]}),
    (error("Argument not supported on this model: stop"), {"leaveOut": ["stop"]}),
    (error("Model m does not support parameter presencePenalty."), {"leaveOut": ["presence_penalty"]}),
    (error("Parallel tool calls are not supported for this model"), {"leaveOut": ["parallel_tool_calls"]}),
    # answers in JSON beside tools
    (
        error("Function calling with a response mime type: 'application/json' is unsupported"),
        {"responseFormat": "without_tools"},
    ),
    (error("json mode cannot be combined with tool/function calling"), {"responseFormat": "without_tools"}),
    # ids, names, empty messages
    (error("messages.1.content.1.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"), {"callIds": "plain"}),
    (
        error("'messages[5].tool_calls[0].id': string does not match pattern", "messages[5].tool_calls[0].id"),
        {"callIds": "plain"},
    ),
    (error("Assistant message must have either content or tool_calls, but not none."), {"blankMessages": False}),
    # history without tools
    (error("This model doesn't support tool calling without `tools=` param specified"), None),
    # schemas
    (error("grammar could not be built"), {"schema": {"patterns": False}}),
    (
        error("The provided JSON schema contains features not supported by the grammar."),
        {"schema": {"patterns": False}},
    ),
    (error("Pattern must start with '^' and end with '$' in the schema"), {"schema": {"patterns": False}}),
    (error("invalid regular expression in tool 'mail_it'"), {"schema": {"patterns": False}}),
    (
        error(
            "tools[0].function_declarations[2].parameters.properties[to].format: only 'enum' and 'date-time' are known"
        ),
        {"schema": {"formats": "none"}},
    ),
    (error("unsupported keyword $ref in tools"), {"schema": {"references": False}}),
    (
        error("Unknown name \"minLength\" at 'tools[0].function_declarations[0].parameters': Cannot find field."),
        {"schema": {"without": ["minLength"]}},
    ),
    (error("Tool schema: unsupported keyword 'title'"), {"schema": {"without": ["title"]}}),
    (error("recursive definitions are not allowed in function parameters"), {"schema": {"references": False}}),
    (error("tools[1]: type must be a string, not a list"), {"schema": {"typeLists": "single"}}),
    (
        error("tools.0.custom.input_schema: does not support oneOf, allOf, or anyOf at the top level"),
        {"schema": {"rootCombinators": False}},
    ),
]


@pytest.mark.parametrize(("complaint", "facts"), SAID, ids=lambda value: json.dumps(value)[:60])
def test_what_is_complained_of_is_said_differently(complaint: Any, facts: dict[str, Any] | None) -> None:
    found = effective(complaint)
    if facts is None:
        assert found == []
    else:
        assert found[0].quirks == quirks_with(TAKES_ALL, facts)
        assert found[0].message


NAMED: list[tuple[Any, str]] = [
    (error("bad schema for function 'find'", "tools[1].function.parameters"), "find"),
    (error("Invalid schema for function 'find': object schema missing properties."), "find"),
    (error("tools.1.custom.input_schema: JSON schema is invalid."), "find"),
    (error("tools[0].function_declarations[2].parameters: a field is missing"), "mail_it"),
    ({"detail": [{"loc": ["body", "tools", 0, "function"], "msg": "value is not valid"}]}, "clock"),
    (error("Invalid JSON schema for tool mail_it: unknown keyword"), "mail_it"),
]


@pytest.mark.parametrize(("complaint", "name"), NAMED)
def test_a_tool_that_is_complained_of_is_left_out_by_name(complaint: Any, name: str) -> None:
    change = effective(complaint)[0]
    assert (change.code, [tool.name for tool in change.tools]) == ("tool_dropped", [name])
    assert name in change.message
    left = [tool.name for tool in offered_tools(TOOLS, change.quirks)]
    assert left == [each for each in NAMES if each != name]


NOTHING: list[Any] = [
    error("temperature must be at most 2", "temperature"),
    error("The model `m` does not exist"),
    error("The response was filtered due to the content management policy", code="content_filter"),
    error("An assistant message with 'tool_calls' must be followed by messages for each 'tool_call_id'."),
    error("something went wrong"),
    # what one caller did is no fact about the endpoint
    error("You uploaded an unsupported image. Please make sure your image has one of the following formats: png."),
    error("Failed to download image from https://x.example/multimodal"),
    error("Could not process image"),
    error("Unsupported image: image/bmp is not supported."),
    error("HEIC images are not supported."),
    error("Image URLs are not supported, please send base64."),
    error("Multiple images are not supported by this model in one message."),
    error("Tool use with image inputs is not supported."),
    error("temperature: 9 is not allowed"),
    error("`temperature` is not supported when `seed` is set."),
    error("messages.1: image exceeds 5 MB maximum"),
    error("tool call validation failed: parameters for tool look_up did not match schema", code="tool_use_failed"),
    error("attempted to call tool 'find' which was not in request.tools"),
    error("Stop sequences are not supported when tools are used"),
    error("Streaming is not supported with tools"),
    error("Invalid schema for response_format 'foo': 'additionalProperties' is required to be supplied"),
    error("'messages' must contain the word 'json' to use 'response_format' of type 'json_object'"),
    error("Unsupported value: 'reasoning_effort' does not support 'minimal'. Supported values are: 'low', 'high'."),
    error("messages.1.content.0: Invalid `signature` in `thinking` block"),
    error("`temperature` may only be set to 1 when thinking is enabled"),
    error("The tools are too large: total size must not exceed 32 KB"),
    error("the tools in this request use 3 functions, which exceeds the limit of your plan"),
    error("Unexpected value: 'this model does not support tools, and unknown field stream_options'"),
    error('"the system role is not supported" is no value that can be used here'),
    error("Please find another clock"),
    error(""),
    "",
    "<html>",
    [],
]


@pytest.mark.parametrize("complaint", NOTHING, ids=lambda value: json.dumps(value)[:60])
def test_a_complaint_about_nothing_that_could_be_said_differently_changes_nothing(complaint: Any) -> None:
    assert effective(complaint) == []


def test_the_content_has_each_form_once() -> None:
    quirks, forms = TAKES_ALL, ["empty"]
    for _ in range(2):
        change = next(iter(effective(error("content must not be null or empty"), quirks=quirks)))
        quirks = change.quirks
        forms.append(quirks.empty_content)
    assert forms == ["empty", "null", "absent"]


def test_a_grammar_that_cannot_be_built_loses_its_hardest_parts_first() -> None:
    quirks = TAKES_ALL
    steps: list[tuple[bool, str, bool]] = []
    while found := effective(error("failed to parse grammar"), quirks=quirks):
        quirks = found[0].quirks
        steps.append((quirks.schema.patterns, quirks.schema.formats, quirks.schema.constraints))
    assert steps == [(False, "all", True), (False, "none", True), (False, "none", False)]


def test_complaints_of_any_size_are_read_in_bounded_time() -> None:
    words = "tools[" * 50_000 + "function 'find' " * 50_000
    assert len(effective(error(words, "tools[" + "1" * 5000))) < 20
