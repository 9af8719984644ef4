"""Tool calls that a model wrote into its text are run as a whole or stay text, however the text is cut."""

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.messages import CallFragment, Delta, Finish, ReasoningDelta, TextDelta, Thought, Usage
from app.upstream.written import MAX_HELD, WrittenCalls

NAMES = ("clock", "look_up")
STOP = Finish("stop")
CLOCK = '{"name": "clock", "arguments": {}}'
TIN = '{"name": "look_up", "arguments": {"q": "tin"}}'
TAGGED = f"<tool_call>{CLOCK}</tool_call>"
TIN_TAGGED = f"<tool_call>\n{TIN}\n</tool_call>"

Calls: TypeAlias = list[tuple[str | None, object]]
"""Names and decoded arguments."""
Told: TypeAlias = tuple[str, Calls, str | None]
"""Text, calls, the tool that was left as text."""

ANY_CLOCK: Calls = [("clock", {})]
ANY_TIN: Calls = [("look_up", {"q": "tin"})]


def heard(
    deltas: Sequence[Delta], names: Sequence[str] = NAMES, *, only_tagged: bool = False, may_run: bool = True
) -> tuple[list[Delta], WrittenCalls]:
    """Feed each delta alone, and the end."""
    written = WrittenCalls(names, only_tagged=only_tagged, may_run=may_run)
    given = [found for delta in deltas for found in written.take([delta])]
    return [*given, *written.rest()], written


def told(
    pieces: Sequence[str], names: Sequence[str] = NAMES, *, only_tagged: bool = False, may_run: bool = True
) -> Told:
    """Return the text, the calls and the tool that was left as text of a reply that stopped well."""
    deltas = [*map(TextDelta, pieces), STOP]
    given, written = heard(deltas, names, only_tagged=only_tagged, may_run=may_run)
    assert given[-1] == STOP
    assert all(delta.text for delta in given if isinstance(delta, TextDelta))
    calls = [delta for delta in given if isinstance(delta, CallFragment)]
    assert [(call.index, call.id) for call in calls] == [(index, None) for index in range(len(calls))]
    return text_of(given), [(call.name, json.loads(call.arguments)) for call in calls], written.left_as_text


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def fenced(content: str, word: str = "json") -> str:
    return f"```{word}\n{content}\n```"


def function(name: str, *parameters: tuple[str, str]) -> str:
    lines = [f"<parameter={key}>\n{value}\n</parameter>" for key, value in parameters]
    return "\n".join([f"<function={name}>", *lines, "</function>"])


def pairs(*arguments: tuple[str, str]) -> str:
    return "\n" + "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments)


CALLS: dict[str, tuple[str, Calls]] = {
    "tag": (TAGGED, ANY_CLOCK),
    "tag with white space": (f" {TAGGED}\n\n".lstrip(), ANY_CLOCK),
    "tag over lines": (TIN_TAGGED, ANY_TIN),
    "other tag": (f"<function_call>{TIN}</function_call>", ANY_TIN),
    "parameters": ('<tool_call>{"name": "look_up", "parameters": {"q": "tin"}}</tool_call>', ANY_TIN),
    "arguments first": ('<tool_call>{"arguments": {"q": "tin"}, "name": "look_up"}</tool_call>', ANY_TIN),
    "arguments as text": (
        '<tool_call>{"name": "look_up", "arguments": "{\\"q\\": \\"tin\\"}"}</tool_call>',
        ANY_TIN,
    ),
    "more keys in a tag": (
        '<tool_call>{"name": "clock", "id": 7, "why": [1.5e3, null], "arguments": {}}</tool_call>',
        ANY_CLOCK,
    ),
    "no arguments": ('<tool_call>{"name": "clock"}</tool_call>', ANY_CLOCK),
    "null for arguments": ('<tool_call>{"name": "clock", "arguments": null}</tool_call>', ANY_CLOCK),
    "empty text for arguments": ('<tool_call>{"name": "clock", "arguments": " "}</tool_call>', ANY_CLOCK),
    "null for arguments in a fence": (fenced('{"name": "clock", "arguments": null}'), ANY_CLOCK),
    "null for arguments, but parameters": (
        '<tool_call>{"name": "look_up", "arguments": null, "parameters": {"q": "tin"}}</tool_call>',
        ANY_TIN,
    ),
    "a name in a tag": ("<tool_call>clock\n</tool_call>", ANY_CLOCK),
    "pairs in a tag": (f"<tool_call>look_up{pairs(('q', 'tin'))}</tool_call>", ANY_TIN),
    "pairs with markup and lines in a value": (
        "<tool_call>\nlook_up\n" + pairs(("q", "<b>\nx</arg_"), ("n", "")) + f"</tool_call>\n{TAGGED}",
        [("look_up", {"q": "<b>\nx</arg_", "n": ""}), *ANY_CLOCK],
    ),
    "pairs on one line": (
        "<tool_call>look_up<arg_key>q</arg_key><arg_value>tin</arg_value></tool_call>",
        ANY_TIN,
    ),
    **{
        f"{token} behind it": (f"{TAGGED}{TIN_TAGGED}\n{token}\n", ANY_CLOCK + ANY_TIN)
        for token in ("<|im_end|>", "</s>", "<|eot_id|>", "<|eom_id|>")
    },
    "tokens behind a fence": (f"{fenced(CLOCK)}<|eom_id|><|eot_id|>", ANY_CLOCK),
    "list in a tag": (f"<tool_call>[{CLOCK}, {TIN}]</tool_call>", ANY_CLOCK + ANY_TIN),
    "list in a tag for many": (f"<tool_calls>[{CLOCK},\n{TIN}]</tool_calls>", ANY_CLOCK + ANY_TIN),
    "OpenAI's form in a tag": (f'<tool_call>{{"type": "function", "function": {TIN}}}</tool_call>', ANY_TIN),
    "blocks after each other": (f"{TAGGED}{TIN_TAGGED}\n{TAGGED}", ANY_CLOCK + ANY_TIN + ANY_CLOCK),
    "forms mixed": (f"{TAGGED}\n[TOOL_CALLS]{TIN}\n{fenced(CLOCK)}", ANY_CLOCK + ANY_TIN + ANY_CLOCK),
    "closing tag in a string": (
        '<tool_call>{"name": "look_up", "arguments": {"q": "</tool_call> \\" ]}"}}</tool_call>',
        [("look_up", {"q": '</tool_call> " ]}'})],
    ),
    "line break in a string": (
        '<tool_call>{"name": "look_up", "arguments": {"q": "a\nb"}}</tool_call>',
        [("look_up", {"q": "a\nb"})],
    ),
    "backslash at the end of a string": (
        '<tool_call>{"name": "look_up", "arguments": {"q": "C:\\\\"}}</tool_call>',
        [("look_up", {"q": "C:\\"})],
    ),
    "half a surrogate pair": (
        '<tool_call>{"name": "look_up", "arguments": {"q": "\ud83d"}}</tool_call>',
        [("look_up", {"q": "\ud83d"})],
    ),
    "function": (function("look_up", ("q", "tin")), ANY_TIN),
    "function in a tag": (f"<tool_call>\n{function('look_up', ('q', 'tin'))}\n</tool_call>", ANY_TIN),
    "functions in a tag": (
        f"<tool_call>{function('clock')}{function('look_up', ('q', 'tin'))}</tool_call>",
        ANY_CLOCK + ANY_TIN,
    ),
    "functions after each other": (f"{function('clock')}\n{function('clock')}", ANY_CLOCK * 2),
    "function without parameters": ("<function=clock></function>", ANY_CLOCK),
    "function with markup and blank lines in a value": (
        function("look_up", ("q", "\n<b>1 < 2</b>\n</para> <</parameter\n"), ("n", "3")),
        [("look_up", {"q": "\n<b>1 < 2</b>\n</para> <</parameter\n", "n": "3"})],
    ),
    "function on one line": ("<function=look_up><parameter=q>tin</parameter></function>", ANY_TIN),
    "function with JSON": ('<function=look_up>{"q": "tin"}</function>', ANY_TIN),
    "function with JSON over lines": ('<function=look_up>\n{"q": "tin"}\n</function>\n', ANY_TIN),
    "function with an argument called name": (
        '<function=look_up>{"name": ["Bob"], "a": {"name": "Bob"}}</function>',
        [("look_up", {"name": ["Bob"], "a": {"name": "Bob"}})],
    ),
    "arguments with a name": (
        fenced('{"name": "look_up", "arguments": {"name": "Bob", "other": [{"name": 1}]}}'),
        [("look_up", {"name": "Bob", "other": [{"name": 1}]})],
    ),
    "announced list": (f"[TOOL_CALLS] [{CLOCK}, {TIN}]", ANY_CLOCK + ANY_TIN),
    "announced with ARGS": ('[TOOL_CALLS]look_up[ARGS]{"q": "tin"}', ANY_TIN),
    "announced with an id": ('[TOOL_CALLS]look_up[CALL_ID]123456789[ARGS]{"q": "tin"}', ANY_TIN),
    "announced with ids, after each other": (
        '[TOOL_CALLS]clock[CALL_ID]a-1[ARGS]{}[TOOL_CALLS]look_up[CALL_ID]b_2[ARGS] {"q": "tin"}</s>',
        ANY_CLOCK + ANY_TIN,
    ),
    "announced name": ('[TOOL_CALLS]look_up{"q": "tin"}', ANY_TIN),
    "announced name with white space": ('[TOOL_CALLS] look_up [ARGS] {"q": "tin"}\n', ANY_TIN),
    "announced after each other": ('[TOOL_CALLS]clock{}[TOOL_CALLS]look_up[ARGS]{"q": "tin"}', ANY_CLOCK + ANY_TIN),
    "fence": (fenced(TIN), ANY_TIN),
    "fence without a word": (fenced(TIN, ""), ANY_TIN),
    "fence of tool_call": (fenced(TIN, "tool_call"), ANY_TIN),
    "fence of tool_code, Windows lines": (f"```tool_code\r\n{TIN}\r\n```\r\n", ANY_TIN),
    "fence with more backticks": (f"````json\n{TIN}\n````", ANY_TIN),
    "list in a fence": (fenced(f"[\n{CLOCK},\n{TIN}\n]"), ANY_CLOCK + ANY_TIN),
    "id and type in a fence": (fenced('{"id": "c1", "type": "function", "name": "clock", "arguments": {}}'), ANY_CLOCK),
    "parameters in a fence": (fenced('{"name": "look_up", "parameters": {"q": "tin"}}'), ANY_TIN),
    "OpenAI's form in a fence": (fenced(f'{{"type": "function", "function": {TIN}}}'), ANY_TIN),
    "OpenAI's form with text": (
        fenced('{"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}'),
        ANY_CLOCK,
    ),
    "fences after each other": (f"{fenced(CLOCK)}\n\n{fenced(TIN)}\n", ANY_CLOCK + ANY_TIN),
}

INTRODUCTIONS = (
    "",
    "I will look.\n",
    "1 < 2, a[0] and `x`:\n\n",
    "Use <tool_call> for it, as in <tool\n",
    fenced("ls <b", "sh") + "\n",
)


@pytest.mark.parametrize("before", INTRODUCTIONS)
@pytest.mark.parametrize(("text", "calls"), CALLS.values(), ids=CALLS.keys())
def test_whole_call_is_taken_out_of_the_text(text: str, calls: Calls, before: str) -> None:
    assert told([before + text]) == (before, calls, None)
    assert told(list(before + text)) == (before, calls, None)


@pytest.mark.parametrize(("text", "calls"), CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("after", ["Done.", "\nI have called it.", "</tool_call>", "\n> <b"])
def test_call_with_prose_after_it_stays_text_and_is_told(text: str, calls: Calls, after: str) -> None:
    whole = text + after
    assert told([whole]) == (whole, [], calls[0][0])
    assert told(list(whole)) == (whole, [], calls[0][0])


BARE: dict[str, tuple[str, Calls]] = {
    "an object": (TIN, ANY_TIN),
    "white space around it": (f"\n {TIN}\n", ANY_TIN),
    "over lines": ('{\n  "name": "look_up",\n  "parameters": {\n    "q": "tin"\n  }\n}', ANY_TIN),
    "one after the other": (f"{CLOCK}\n{TIN}", ANY_CLOCK + ANY_TIN),
    "with semicolons": (f"{CLOCK}; {TIN};\n{CLOCK}", ANY_CLOCK + ANY_TIN + ANY_CLOCK),
    "null for arguments": ('{"name": "clock", "arguments": null}', ANY_CLOCK),
    "a token behind it": (f"{TIN}<|eom_id|>", ANY_TIN),
    "OpenAI's form": (f'{{"type": "function", "function": {TIN}}}', ANY_TIN),
}


@pytest.mark.parametrize(("text", "calls"), BARE.values(), ids=BARE.keys())
def test_reply_that_is_nothing_but_the_object_of_a_call_is_one(text: str, calls: Calls) -> None:
    before = text[: len(text) - len(text.lstrip())]
    assert told([text]) == (before, calls, None)
    assert told(list(text)) == (before, calls, None)


BARE_PROSE: dict[str, tuple[str, str | None]] = {
    "after prose": (f"So: {TIN}", None),
    "after a line": (f"So:\n{TIN}", None),
    "before prose": (f"{TIN} is what I would call.", "look_up"),
    "another object": ('{"name": "Bob", "age": 3}', None),
    "one that is not offered": ('{"name": "save", "arguments": {}}', None),
    "more keys": ('{"name": "clock", "arguments": {}, "note": 1}', None),
    "a name only": ('{"name": "clock"}', None),
    "a semicolon and prose": (f"{CLOCK}; so", "clock"),
    "a semicolon and a tag": (f"{CLOCK};{TAGGED}", "clock"),
    "a list": (f"[{CLOCK}]", None),
    "cut": ('{"name": "clock", "argu', None),
}


@pytest.mark.parametrize(("text", "left"), BARE_PROSE.values(), ids=BARE_PROSE.keys())
def test_object_that_is_not_the_whole_reply_or_no_call_stays_text(text: str, left: str | None) -> None:
    assert told([text]) == (text, [], left)
    assert told(list(text)) == (text, [], left)


def test_markup_of_a_call_that_came_for_real_is_no_call_that_was_left() -> None:
    real = CallFragment(0, "c1", "clock", "{}")
    given, written = heard([TextDelta(TAGGED), real, STOP])
    assert given == [TextDelta(TAGGED), real, STOP]
    assert written.left_as_text is None
    assert heard([TextDelta(TIN_TAGGED), real, STOP])[1].left_as_text == "look_up"


NOT_OFFERED = '{"name": "save", "arguments": {}}'

PROSE: dict[str, tuple[str, str | None]] = {
    "a tag spoken of": ("Use <tool_call> to call a tool, and </tool_call> after it.", None),
    "a tag at the end": ("It begins with <tool_call>", None),
    "half a tag": ("It begins with <tool_ca", None),
    "tags side by side": ("<tool_call></tool_call>", None),
    "a placeholder": ("Write <tool_call>{...}</tool_call>.", None),
    "a function spoken of": ("Write <function=NAME> for it.", None),
    "announced in prose": ("The token [TOOL_CALLS] comes first.", None),
    "a block in backticks": (f"Write `{TAGGED}` for it.", None),
    "a block in backticks at the end": (f"Write `{TAGGED}`", None),
    "a call right after a tag in backticks": (f"`<tool_call>{TAGGED} so", "clock"),
    "a function in backticks": ("Write `<function=clock></function>`", None),
    "a fence around it": (fenced(TAGGED, "xml"), None),
    "a fence without a word around it": (f"So:\n{fenced(TAGGED, '')}\nAnd so on.", None),
    "an open fence before it": (f"```xml\nx\n{TAGGED}", None),
    "four backticks around a fence": (f"````md\n{fenced(CLOCK)}\n````", None),
    "a fence in a line": (f"So: ```json\n{CLOCK}\n```", None),
    "a fence of another language": (fenced(CLOCK, "yaml"), None),
    "a fence with more keys": (fenced('{"name": "clock", "arguments": {}, "note": 1}'), None),
    "a fence with other keys": (fenced('{"users": []}'), None),
    "a fence with a name only": (fenced('{"name": "clock"}'), None),
    "a fence with another name": (fenced(NOT_OFFERED), None),
    "a fence with a longer name": (fenced('{"name": "clocks", "arguments": {}}'), None),
    "a fence with a name that is none": (fenced('{"name": ["clock"], "arguments": {}}'), None),
    "a fence with numbers": (fenced("[1, 2]"), None),
    "a fence with a list of lists": (fenced(f"[[{CLOCK}]]"), None),
    "a fence with an empty list": (fenced("[]"), None),
    "a fence with more after the object": (fenced(f"{CLOCK}\nclock"), "clock"),
    "a fence of code": (fenced("clock()", "tool_code"), None),
    "a fence without an end": (f"```json\n{CLOCK}\n", "clock"),
    "a fence with a schema": (fenced('{"type": "object", "properties": {}}'), None),
    "OpenAI's form with more": (fenced(f'{{"type": "function", "function": {CLOCK}, "strict": true}}'), None),
    "not offered": (f"<tool_call>{NOT_OFFERED}</tool_call>", None),
    "the beginning of a name": ('<tool_call>{"name": "look", "arguments": {}}</tool_call>', None),
    "one not offered": (f"{TAGGED}<tool_call>{NOT_OFFERED}</tool_call>", "clock"),
    "the first not offered": (f"<tool_call>{NOT_OFFERED}</tool_call>{TAGGED}", "clock"),
    "one of a list not offered": (f"<tool_call>[{CLOCK}, {NOT_OFFERED}]</tool_call>", "clock"),
    "a function not offered": ("<function=save></function><function=clock></function>", "clock"),
    "announced, not offered": ("[TOOL_CALLS]save{}[TOOL_CALLS]clock{}", "clock"),
    "no name but arguments": ('<tool_call>{"arguments": {}}</tool_call>', None),
    "null in a text for arguments": ('<tool_call>{"name": "clock", "arguments": "null"}</tool_call>', "clock"),
    "a name in a tag that is cut": ("<tool_call>clock", None),
    "a name in a tag spoken of": ("Use <tool_call> clock for it.", None),
    "a name in a tag, not offered": ("<tool_call>save\n</tool_call><tool_call>clock\n</tool_call>", "clock"),
    "a pair that is not offered": (f"<tool_call>\nsave{pairs(('q', 'tin'))}</tool_call>{TAGGED}", "clock"),
    "a key without a value": ("<tool_call>clock\n<arg_key>q</arg_key>\n</tool_call>", None),
    "a value without a key": ("<tool_call>clock\n<arg_value>q</arg_value>\n</tool_call>", None),
    "a value without an end": ("<tool_call>clock\n<arg_key>q</arg_key><arg_value>tin</arg_val", None),
    "announced with an id that is none": ('[TOOL_CALLS]clock[CALL_ID]1 2[ARGS]{"q": "tin"}', None),
    "announced with an id only": ("[TOOL_CALLS]clock[CALL_ID]123456789{}", None),
    "a token that does not end": (f"{TAGGED}<|im_end|", "clock"),
    "a token before a call": (f"<|im_end|>{TAGGED}.", "clock"),
    "a token between calls": (f"{TAGGED}<|im_end|>{TIN_TAGGED}", "clock"),
    "a token and prose": (f"{TAGGED}<|im_end|>So.", "clock"),
    "an unknown token": (f"{TAGGED}<|im_start|>", "clock"),
    "a semicolon after a tag": (f"{TAGGED};{TAGGED}", "clock"),
    "a list for arguments": ('<tool_call>{"name": "clock", "arguments": []}</tool_call>', "clock"),
    "bad JSON for arguments": ('<tool_call>{"name": "clock", "arguments": "{"}</tool_call>', "clock"),
    "a number that is none": ('<tool_call>{"name": "clock", "arguments": {"n": 1e999}}</tool_call>', "clock"),
    "no object": ('<tool_call>"clock"</tool_call>', None),
    "another wrong bracket": ('<tool_call>{"name": "clock", "arguments": {"a": [1}}</tool_call>', None),
    "a list without commas": (f"<tool_call>[{CLOCK} {CLOCK}]</tool_call>", "clock"),
    "a fence with two words": (fenced(CLOCK, "json call"), None),
    "an empty object": ("<tool_call>{}</tool_call>", None),
    "no JSON": ("<tool_call>{name: clock}</tool_call>", None),
    "bad JSON": ('<tool_call>{"name": "clock", "arguments": {,}}</tool_call>', None),
    "a wrong bracket": ('<tool_call>{"name": "clock", "arguments": {]}</tool_call>', None),
    "a name with an escape": ('<tool_call>{"name": "cl\\u006fck", "arguments": {}}</tool_call>', None),
    "the wrong closing tag": (f"<tool_call>{CLOCK}</function_call>", "clock"),
    "two objects in a tag": (f"<tool_call>{CLOCK}{CLOCK}</tool_call>", "clock"),
    "cut within": ('<tool_call>{"name": "clock", "argu', None),
    "cut before the closing tag": (f"<tool_call>{CLOCK}", "clock"),
    "cut after a whole one": (f'{TAGGED}<tool_call>{{"name": ', "clock"),
    "a function that is cut": ("<function=look_up><parameter=q>tin</parameter>", None),
    "a value that is cut": ("<function=look_up><parameter=q>tin</param", None),
    "a function with prose in it": ("<function=clock>now</function>", None),
    "tags opened twice": (f"<tool_call>\n{TAGGED}", "clock"),
    "a tag that is not closed before the next": (f"<tool_call>{CLOCK}\n{TAGGED}", "clock"),
    "prose between": (f"{TAGGED} and {TIN_TAGGED}", "clock"),
    "a list in a function": ("<function=clock>[]</function>", None),
    "announced with prose": ("[TOOL_CALLS]clock now", None),
    "announced with a list": ("[TOOL_CALLS]clock[ARGS][]", None),
    "a fence right after a tag": (f"{TAGGED}{fenced(CLOCK)}", "clock"),
    "deep JSON": (
        '<tool_call>{"name": "clock", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5001 + "</tool_call>",
        None,
    ),
    "half a surrogate pair": ("<tool_call>\ud83d {", None),
}


@pytest.mark.parametrize(("text", "left"), PROSE.values(), ids=PROSE.keys())
def test_what_is_no_whole_call_stays_text(text: str, left: str | None) -> None:
    assert told([text]) == (text, [], left)
    assert told(list(text)) == (text, [], left)


BEFORE_A_CALL = {
    "quoted before": f"`{TAGGED}` is how. ",
    "placeholder in backticks": "`<tool_call>{...}</tool_call>` is how. ",
    "fenced before": fenced(TAGGED, "xml") + "\n",
    "data before": fenced('{"name": "Bob", "age": 3}') + "\n",
    "nested fences before": f"````md\n{fenced('x', 'sh')}\n````\n",
    "code in a line": "`clock`",
    "code with backticks": "```py\ns = '```'\n  ```\n```\n",
}


@pytest.mark.parametrize("before", BEFORE_A_CALL.values(), ids=BEFORE_A_CALL.keys())
def test_call_after_what_was_only_shown_is_run(before: str) -> None:
    assert told([before + TAGGED]) == (before, ANY_CLOCK, None)
    assert told(list(before + TAGGED)) == (before, ANY_CLOCK, None)


def test_reply_is_never_run_in_part() -> None:
    shown = (f"{TAGGED} Now the other. ", f"`x`{TAGGED} Now the other. ", f"{fenced(CLOCK)}\nThat was one.\n")
    for before in shown:
        assert told([before + TIN_TAGGED]) == (before + TIN_TAGGED, [], "clock")


def test_nothing_is_recognised_where_nothing_was_offered() -> None:
    assert told([TAGGED], names=()) == (TAGGED, [], None)


@pytest.mark.parametrize("text", [TIN, fenced(TIN), f"So:\n{fenced(TIN, 'tool_call')}", f"{CLOCK}\n{TAGGED}, so"])
def test_answer_that_is_to_be_json_is_never_held_and_no_call(text: str) -> None:
    left = "clock" if TAGGED in text else None
    assert told([text], only_tagged=True) == (text, [], left)
    written = WrittenCalls(NAMES, only_tagged=True)
    for character in text.partition("<")[0]:
        batch = [TextDelta(character)]
        assert written.take(batch) is batch


@pytest.mark.parametrize("text", [TAGGED, f"So.\n{TAGGED}", f"{fenced(CLOCK)}\n{TAGGED}", f"````\n```\n````\n{TAGGED}"])
def test_tagged_call_is_run_where_the_answer_is_to_be_json(text: str) -> None:
    before = text.removesuffix(TAGGED)
    assert told([text], only_tagged=True) == (before, ANY_CLOCK, None)
    assert told(list(text), only_tagged=True) == (before, ANY_CLOCK, None)


@pytest.mark.parametrize("text", [fenced(TAGGED, "json"), f"```\n{TAGGED}", f"{TAGGED}\n{fenced(CLOCK)}"])
def test_code_blocks_are_left_alone_where_the_answer_is_to_be_json(text: str) -> None:
    left = "clock" if text.startswith(TAGGED) else None
    assert told([text], only_tagged=True) == (text, [], left)
    assert told(list(text), only_tagged=True) == (text, [], left)


@pytest.mark.parametrize(("text", "calls"), (CALLS | BARE).values(), ids=(CALLS | BARE).keys())
def test_call_in_a_reply_that_may_make_none_is_told_and_nothing_is_held(text: str, calls: Calls) -> None:
    for pieces in ([text], list(text)):
        written = WrittenCalls(NAMES, may_run=False)
        for piece in pieces:
            batch = [TextDelta(piece)]
            assert written.take(batch) is batch
        assert list(written.rest()) == []
        assert written.left_as_text == calls[0][0]


# Order and holding


def test_text_is_passed_on_up_to_the_marker_and_as_soon_as_it_is_none() -> None:
    written = WrittenCalls(NAMES)
    steps = [
        ("Let me look. ", "Let me look. "),
        ("x <", "x "),
        ("b", "<b"),
        ("> <tool_", "> "),
        ("call> ", ""),
        ("is", "<tool_call> is"),
        (" it\n``", " it\n"),
        ("`json\n{", ""),
        ('"na', ""),
        ('me": "lo', ""),
        ("ng", '```json\n{"name": "long'),
        ('"}\n```\n', '"}\n```\n'),
        ("<tool_call>", ""),
        (CLOCK, ""),
    ]
    for text, expected in steps:
        assert text_of(written.take([TextDelta(text)])) == expected, text


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        ("```json\n", "x"),
        ("```json\n{", "'"),
        ('```json\n{"', "u"),
        ('```json\n{"name": ', "3"),
        ('```json\n{"name": "', "B"),
        ("```json\n[", "1"),
        ("```js", "x"),
        ("<tool_call>", "x"),
        ("<tool_call>{", "x"),
        ('<tool_call>{"name": "', "B"),
        ("<function=", "B"),
        ("<function=clock>", "x"),
        ("[TOOL_CALLS]", "B"),
    ],
)
def test_first_character_that_rules_out_a_call_frees_the_text(begun: str, more: str) -> None:
    written = WrittenCalls(NAMES)
    assert list(written.take([TextDelta(begun)])) == []
    assert text_of(written.take([TextDelta(more)])) == begun + more


@pytest.mark.parametrize(
    "batch",
    [
        [TextDelta("Hi")],
        [TextDelta("a < b, a[0], `x`, </tool_call>\n```py\nx\n```\n")],
        [ReasoningDelta("so <tool_call>")],
        [TextDelta("a"), ReasoningDelta("b"), Usage(1, 1, 2), Thought({}), STOP],
        [CallFragment(0, "c1", "clock", "{}"), TextDelta(TAGGED)],
        [TextDelta("Use <tool_call> now"), STOP],
        [TextDelta(f"{TAGGED}: so"), STOP],
    ],
)
def test_batch_is_handed_on_itself_where_nothing_is_held(batch: list[Delta]) -> None:
    written = WrittenCalls(NAMES)
    assert written.take(batch) is batch
    assert list(written.rest()) == []


def test_what_comes_while_text_is_held_keeps_its_place() -> None:
    half, rest = TAGGED[:20], TAGGED[20:]
    thought, usage = Thought({"reasoning": "so"}), Usage(1, 1, 2)
    call = CallFragment(0, None, "clock", "{}")
    deltas = [ReasoningDelta("a"), TextDelta(half), ReasoningDelta("b"), TextDelta(rest), thought, STOP, usage]
    assert heard(deltas)[0] == [ReasoningDelta("a"), ReasoningDelta("b"), thought, call, STOP, usage]
    prose = [TextDelta(half), ReasoningDelta("b"), TextDelta(rest), TextDelta("."), STOP]
    assert heard(prose)[0] == prose


@pytest.mark.parametrize("reason", ["tool_calls", "length", "stop"])
def test_calls_come_before_the_finish_whatever_its_reason(reason: str) -> None:
    given, _ = heard([TextDelta(TAGGED), Finish(reason)])
    assert given == [CallFragment(0, None, "clock", "{}"), Finish(reason)]


def test_end_without_a_finish_decides_as_well() -> None:
    assert heard([TextDelta("x"), TextDelta(TAGGED)])[0] == [TextDelta("x"), CallFragment(0, None, "clock", "{}")]


def test_text_after_the_finish_stays_text() -> None:
    given, written = heard([TextDelta("x"), STOP, TextDelta(TAGGED)])
    assert given == [TextDelta("x"), STOP, TextDelta(TAGGED)]
    assert written.left_as_text == "clock"


@pytest.mark.parametrize("is_before", [True, False])
def test_written_call_beside_a_real_one_stays_text_and_is_told(is_before: bool) -> None:
    real, block = CallFragment(0, "c1", "look_up", "{}"), TextDelta(TAGGED)
    deltas: list[Delta] = [block, real, STOP] if is_before else [real, block, STOP]
    given, written = heard(deltas)
    assert given == deltas
    assert written.left_as_text == "clock"


def test_real_call_within_a_block_does_not_hide_the_block() -> None:
    real = CallFragment(0, "c1", "look_up", "{}")
    deltas = [TextDelta(TAGGED[:20]), real, TextDelta(TAGGED[20:]), STOP]
    given, written = heard(deltas)
    assert given == deltas
    assert written.left_as_text == "clock"


def test_stream_that_broke_gives_what_was_held_as_text() -> None:
    written = WrittenCalls(NAMES)
    assert list(written.take([TextDelta(TAGGED)])) == []
    assert list(written.rest(is_whole=False)) == [TextDelta(TAGGED)]
    assert list(written.rest()) == []


# Bounds


def block(length: int) -> str:
    head, tail = '<tool_call>{"name": "look_up", "arguments": {"q": "', '"}}</tool_call>'
    return head + "x" * (length - len(head) - len(tail)) + tail


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 1000, 10 * MAX_HELD])
def test_no_more_than_the_bound_is_held(size: int) -> None:
    largest, larger = block(MAX_HELD), block(MAX_HELD + 1)
    assert told(cut("a " + largest, size))[::2] == ("a ", None)
    assert told(cut("a " + larger, size)) == ("a " + larger, [], "look_up")


@pytest.mark.parametrize(("times", "left"), [(2, "look_up"), (5, "clock")])
def test_block_that_is_much_too_large_is_read_no_further(times: int, left: str) -> None:
    text = block(times * MAX_HELD) + TAGGED
    assert told(cut(text, 1000)) == (text, [], left)
    assert told([text]) == (text, [], left)


def test_thoughts_behind_held_text_count_as_held() -> None:
    written = WrittenCalls(NAMES)
    begun, long = TextDelta("<tool_call>{"), ReasoningDelta("x" * MAX_HELD)
    assert list(written.take([begun])) == []
    assert list(written.take([long])) == [begun, long]


def endless(beginning: str, unit: str, size: int) -> list[str]:
    return list((beginning + unit * (size // len(unit)))[:size])


@pytest.mark.parametrize(
    ("beginning", "unit"),
    [
        ('<tool_call>{"name": "look_up", "arguments": {"q": "', "x"),
        ('<tool_call>{"name": "look_up", "arguments": {"q": "', "\\\\"),
        ('<tool_call>{"name": "look_up", "arguments": ', '{"a":['),
        ("<tool_call>", " "),
        ("<function=look_up><parameter=q>", "</parameter"),
        ("<function=look_up><parameter=q>", "</parameter>>"),
        ("", "<tool_call><function=[TOOL_CALLS]"),
        ("", "<"),
        ("", "\n```json\n{"),
        ("", "`"),
        ("", TAGGED),
    ],
)
def test_effort_grows_no_faster_than_the_text(beginning: str, unit: str) -> None:
    """Compares a text with one of sixteen times its length; an effort that grew with the square would be 256 times."""

    def seconds(size: int) -> float:
        pieces, times = endless(beginning, unit, size), list[float]()
        for _ in range(3):
            started = time.process_time()
            told(pieces)
            times.append(time.process_time() - started)
        return min(times)

    assert seconds(MAX_HELD // 4) < 16 * 4 * seconds(MAX_HELD // 64)


@pytest.mark.parametrize(
    "unit",
    [
        "\n`",
        " \n`",
        "\n```",
        "\n```\n",
        "\n```py\nx[0] < `y` and f('<b>')\n```\n",
        "\n```json\n[1",
        "<",
        "<tool_call> x",
        "{",
        " ",
    ],
)
@pytest.mark.parametrize("beginning", ["", "```py\n"])
def test_effort_of_one_large_text_grows_no_faster_than_it(beginning: str, unit: str) -> None:
    """As above, with a text that is large enough to show also a small effort that grows with the square."""

    def seconds(size: int) -> float:
        pieces, times = ["".join(endless(beginning, unit, size))], list[float]()
        for _ in range(3):
            started = time.process_time()
            told(pieces)
            times.append(time.process_time() - started)
        return min(times)

    assert seconds(2**19) < 16 * 3 * max(seconds(2**15), 0.0002)


# Any text, any cut

PARTS = st.sampled_from(
    [
        *(text for text, _ in CALLS.values()),
        *(text for name, (text, _) in PROSE.items() if name != "deep JSON"),
        *("<", "`", "``", "```", "[", "{", "}", '"', " ", "\n", "\\", "x", "name", "clock", "\ud83d", "[ARGS]"),
        *("<|im_end|>", "</s>", ";", "<arg_key>", "</arg_key>", "<arg_value>", "[CALL_ID]"),
        *("<tool_call>", "</tool_call>", "<function=", "</function>", "[TOOL_CALLS]", "```json\n", "\n```"),
    ]
)


@given(
    st.lists(PARTS, max_size=5),
    st.lists(st.integers(min_value=0, max_value=300), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_any_cut_tells_the_same(parts: list[str], cuts: list[int], only_tagged: bool, may_run: bool) -> None:
    text = "".join(parts)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]

    def told_of(pieces: list[str]) -> Told:
        return told(pieces, only_tagged=only_tagged, may_run=may_run)

    expected = told_of([text] if text else [])
    assert told_of([text[start:stop] for start, stop in pairwise(edges) if stop > start]) == expected
    assert told_of(list(text)) == expected


@given(st.lists(PARTS, max_size=5))
def test_nothing_is_lost_but_whole_calls_at_the_end(parts: list[str]) -> None:
    text = "".join(parts)
    shown, calls, _ = told(list(text))
    if calls:
        assert text.startswith(shown)
        assert told([text.removeprefix(shown)])[1] == calls
    else:
        assert shown == text
