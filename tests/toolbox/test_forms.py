"""A server's form is shown plainly or refused with a sentence, and only answers that fit reach the server."""

import copy
import json
from functools import reduce
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, validate
from mcp_types import _v2025_11_25 as plain_types
from pydantic import TypeAdapter

from app.domain.errors import InvalidRequest
from app.toolbox.forms import Form, form_from_schema

Json = dict[str, Any]
Strategy = st.SearchStrategy[Any]

PRIMITIVE: TypeAdapter[Any] = TypeAdapter(plain_types.PrimitiveSchemaDefinition)
STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
COLOURS: Json = {"type": "string", "enum": ["red", "green"]}
TITLED = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
SEVERAL: Json = {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}}


def schema(*required: str, **properties: Any) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def form(asked: Any) -> Form:
    made = form_from_schema(asked)
    assert isinstance(made, Form), made
    return made


def shown(field: Any) -> Json:
    properties: Json = form(schema(f=field)).shown["properties"]
    return properties["f"]


def refusal(asked: Any) -> str:
    reason = form_from_schema(asked)
    assert isinstance(reason, str), reason
    assert reason.startswith("It ")
    assert reason.endswith(".")
    return reason


FIELDS: dict[str, tuple[Any, Json]] = {
    "a text": ({"type": "string", "minLength": 2, "maxLength": 9}, {"type": "string", "minLength": 2, "maxLength": 9}),
    "a format": ({"type": "string", "format": "email"}, {"type": "string", "format": "email"}),
    "an unknown format": ({"type": "string", "format": "hostname"}, STRING),
    "a pattern": ({"type": "string", "pattern": "(a+)+$", "x-order": 1}, STRING),
    "a text with null": ({"type": ["string", "null"], "default": None}, STRING),
    "an optional text of a generator": ({"anyOf": [STRING, {"type": "null"}], "title": "T"}, {**STRING, "title": "T"}),
    "a nullable one": ({"type": "string", "nullable": True}, STRING),
    "several types": ({"type": ["integer", "string"]}, STRING),
    "alternatives of several types": ({"anyOf": [INTEGER, NUMBER]}, NUMBER),
    "no type": ({}, STRING),
    "no type but limits": ({"minimum": 1}, {"type": "number", "minimum": 1}),
    "a type as people write it": ({"type": "Int"}, INTEGER),
    "limits longer than any text": ({"type": "string", "maxLength": 10**9}, {**STRING, "maxLength": 10_000}),
    "limits as floats": ({"type": "string", "minLength": 2.0}, {**STRING, "minLength": 2}),
    "limits that are none": ({"type": "string", "minLength": True, "maxLength": "many"}, STRING),
    "a negative length": ({"type": "string", "minLength": -1, "maxLength": -1}, STRING),
    "a whole number": ({"type": "integer", "minimum": 1.5, "maximum": 5.0}, {**INTEGER, "minimum": 2, "maximum": 5}),
    "excluded limits": (
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9.5},
        {**INTEGER, "minimum": 1, "maximum": 9},
    ),
    "excluded as it was": (
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9},
        {**INTEGER, "minimum": 1, "maximum": 9},
    ),
    "the narrower limit": (
        {"type": "number", "minimum": 5, "exclusiveMinimum": 1, "maximum": 9.5, "exclusiveMaximum": 9},
        {**NUMBER, "minimum": 5, "maximum": 9},
    ),
    "limits beyond all": ({"type": "integer", "minimum": -1e300, "maximum": 1e999}, INTEGER),
    "limits that are no numbers": ({"type": "number", "minimum": True, "maximum": "1e999"}, NUMBER),
    "yes or no": ({"type": "boolean", "default": False}, {**BOOLEAN, "default": False}),
    "yes or no with titles": ({**BOOLEAN, "oneOf": [{"const": True, "title": "Yes"}]}, BOOLEAN),
    "a choice": (COLOURS, COLOURS),
    "a choice without a type": ({"enum": ["red", "green"]}, COLOURS),
    "a choice with null": ({**COLOURS, "enum": ["red", None, "green", "red", ""]}, COLOURS),
    "a choice of one": ({"const": "red"}, {"type": "string", "enum": ["red"]}),
    "names for choices": ({**COLOURS, "enum": ["r", "g"], "enumNames": ["Red", "Green"]}, {**STRING, "oneOf": TITLED}),
    "too few names": (
        {**COLOURS, "enumNames": ["Red"]},
        {**STRING, "oneOf": [{"const": "red", "title": "Red"}, {"const": "green", "title": "green"}]},
    ),
    "too many names": ({**COLOURS, "enumNames": ["red", "green", "blue"]}, COLOURS),
    "titled choices": ({"type": "string", "oneOf": TITLED}, {**STRING, "oneOf": TITLED}),
    "alternative choices": ({"anyOf": [*TITLED, {"type": "null"}]}, {**STRING, "oneOf": TITLED}),
    "one titled choice": ({"oneOf": TITLED[:1]}, {**STRING, "oneOf": TITLED[:1]}),
    "several": (
        {**SEVERAL, "minItems": 1, "maxItems": 9, "uniqueItems": True, "default": ["b", "a"]},
        {**SEVERAL, "minItems": 1, "maxItems": 3, "default": ["b", "a"]},
    ),
    "several titled": ({"type": "array", "items": {"oneOf": TITLED}}, {"type": "array", "items": {"anyOf": TITLED}}),
    "several of a definition": ({"type": "array", "items": {"$ref": "#/$defs/C"}}, SEVERAL),
    "a definition": (
        {"allOf": [{"$ref": "#/$defs/C"}], "title": "Mine"},
        {"type": "string", "enum": ["a", "b", "c"], "title": "Mine"},
    ),
    "a default that does not fit": ({"type": "integer", "default": 1.5}, INTEGER),
    "a default of another choice": ({**COLOURS, "default": "blue"}, COLOURS),
    "a default that hides something": ({"type": "string", "default": "a\u200b"}, {**STRING, "default": "a"}),
    "a default without end": ({"type": "string", "default": "\u200b" * 10_001}, STRING),
    "a default that is not finite": ({"type": "number", "default": float("nan")}, NUMBER),
    "cleaned texts": (
        {"type": "string", "title": " A\u202e\n b\u3164 ", "description": "one\n\u200btwo\U000e0041\ud800"},
        {**STRING, "title": "A b", "description": "one\ntwo"},
    ),
    "long texts": (
        {"type": "string", "title": "t" * 10**5, "description": "d" * 10**5},
        {**STRING, "title": "t" * 199 + "…", "description": "d" * 1999 + "…"},
    ),
    "texts that are none": ({"type": "string", "title": 5, "description": ["x"]}, STRING),
}


@pytest.mark.parametrize(("asked", "field"), FIELDS.values(), ids=FIELDS.keys())
def test_a_field_is_shown_in_mcps_plain_shape(asked: Json, field: Json) -> None:
    definitions = {"C": {"type": "string", "enum": ["a", "b", "c"]}}
    made = form({**schema(f=asked), "$defs": definitions})
    assert made.shown == {"type": "object", "properties": {"f": field}}
    PRIMITIVE.validate_python(field)
    Draft202012Validator.check_schema(field)


FORMS: dict[str, tuple[Any, Json]] = {
    "nothing": (None, {}),
    "an empty object": ({}, {}),
    "no properties": ({"type": "object"}, {}),
    "null everywhere": ({"type": None, "properties": None, "required": None}, {}),
    "an object or null": ({"type": ["object", "null"], "properties": {"a": STRING, "b": None}}, {"a": STRING}),
    "what else schemas have": (
        {"$schema": "x", "title": "T", "additionalProperties": False, "properties": {"a": STRING}},
        {"a": STRING},
    ),
}


@pytest.mark.parametrize(("asked", "properties"), FORMS.values(), ids=FORMS.keys())
def test_a_form_needs_no_more_than_it_asks(asked: Any, properties: Json) -> None:
    assert form(asked).shown == {"type": "object", "properties": properties}


def test_only_known_fields_are_required() -> None:
    assert form(schema("b", "x", "a", a=STRING, b=STRING)).shown["required"] == ["a", "b"]
    assert "required" not in form({**schema(a=STRING), "required": 5}).shown


NESTED: Json = reduce(lambda inner, _: {"anyOf": [inner]}, range(200), STRING)

REFUSED: dict[str, Any] = {
    "a list": [schema()],
    "a text": "object",
    "a truth": True,
    "another type": {"type": "array", "items": STRING},
    "properties in a text": {"type": "object", "properties": "name"},
    "alternatives of forms": {"anyOf": [schema(a=STRING), schema(b=STRING)]},
    "an object inside": schema(a=schema(b=STRING)),
    "an object without a type": schema(a={"properties": {"b": STRING}}),
    "a list of anything": schema(a={"type": "array", "items": STRING}),
    "a list of lists": schema(a={"type": "array", "items": SEVERAL}),
    "a field that is no schema": schema(a="text"),
    "a field that is never": schema(a=False),
    "deep nesting": schema(a=NESTED),
    "a reference in a ring": {**schema(a={"$ref": "#/$defs/A"}), "$defs": {"A": {"$ref": "#/$defs/A"}}},
    "a reference to nowhere": schema(a={"$ref": "#/$defs/A"}),
    "a reference elsewhere": schema(a={"$ref": "https://example.org/a.json"}),
    "a reference into another document": {**schema(a={"$ref": "x#/$defs/A"}), "$defs": {"A": STRING}},
    "a path without a document": {**schema(a={"$ref": "/$defs/A"}), "$defs": {"A": STRING}},
    "a reference that is none": schema(a={"$ref": 5}),
    "10,000 fields": schema(**{f"f{at}": STRING for at in range(10_000)}),
    "a text without end": schema(a={**STRING, "description": "x" * 10**7}),
    "parts without end": schema(a={**STRING, "examples": ["x"] * 10**5}),
    "10,000 keywords": schema(a={f"f{at}": 1 for at in range(10_000)}),
    "257 choices": schema(a={"enum": [f"c{at}" for at in range(257)]}),
    "10,000 titled choices": schema(a={"oneOf": [{"const": f"c{at}"} for at in range(10_000)]}),
    "no choices": schema(a={"type": "string", "enum": []}),
    "nothing but empty choices": schema(a={"enum": [None, ""]}),
    "choices that are no texts": schema(a={"enum": [1, 2]}),
    "a choice that hides something": schema(a={"enum": ["a", "a\u200b"]}),
    "a choice without end": schema(a={"enum": ["a" * 1001]}),
    "limits that no text fits": schema(a={"type": "string", "minLength": 5, "maxLength": 4}),
    "a text that is too long": schema(a={"type": "string", "minLength": 10_001}),
    "limits that no number fits": schema(a={"type": "number", "minimum": 5, "exclusiveMaximum": 5}),
    "limits that no whole number fits": schema(a={"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}),
    "more than there is": schema(a={**SEVERAL, "minItems": 4}),
}


@pytest.mark.parametrize("asked", REFUSED.values(), ids=REFUSED.keys())
def test_what_no_form_can_hold_is_refused_with_a_sentence(asked: Any) -> None:
    refusal(asked)


def test_as_much_as_is_allowed_is_shown() -> None:
    made = form(schema(**{f"field {at}": {"enum": [f"c{n}" for n in range(256)]} for at in range(2, 66)}))
    assert len(made.shown["properties"]) == 64


@pytest.mark.parametrize(
    "names",
    [
        ("",),
        ("a" * 129,),
        ("a\u200b",),
        ("a\u202eb",),
        ("a\U000e0041",),
        ("a\n",),
        (" a",),
        ("a\u00a0b",),
        ("a\u3164",),
        ("a\ud800",),
        ("__proto__",),
        ("name", "Name"),
        ("name", "n\u0430me"),
        ("Europe", "\u0395urope"),
        ("name", "\uff4eame"),
        ("total", "tota1"),
        ("foo", "f00"),
        ("Id", "ld"),
        ("cafe", "café"),
        ("a", "a\ufe0f"),
    ],
    ids=ascii,
)
def test_a_name_that_deceives_is_refused(names: tuple[str, ...]) -> None:
    refusal(schema(**dict.fromkeys(names, STRING)))


@pytest.mark.parametrize(
    "names",
    [("first_name", "first-name", "firstname"), ("имя", "фамилия"), ("用户", "時間"), ("a1", "a2"), ("ä b", "o b")],
)
def test_names_of_any_script_that_differ_are_shown(names: tuple[str, ...]) -> None:
    assert list(form(schema(**dict.fromkeys(names, STRING))).shown["properties"]) == list(names)


SECRETS = [
    *("password", "passwd", "Password2", "userPassword", "NEW_PASSWORD", "confirm-password", "pass phrase", "passcode"),
    *("passw0rd", "p\u0430ssword", "\uff50assword", "pässword", "pAsSwOrD", "p.a.s.s.w.o.r.d", "Kennwort", "пароль"),
    *(
        "密码",
        "パスワード",
        "secret",
        "client_secret",
        "Secret key",
        "token",
        "Bearer token",
        "access_tokens",
        "apiToken",
    ),
    *("api_key", "API Key", "APIKey", "openApiKeys", "aws_secret_access_key", "private key", "ssh-key", "credentials"),
    *("pin", "PIN", "Your 4-digit PIN", "p1n", "pin_code", "PIN number", "cvv", "CVC2", "card number", "credit_card"),
    *("ssn", "Social Security Number", "otp", "0TP", "one-time code", "2fa", "MFA code", "verification code"),
    *(
        "Password (required)",
        "password_required",
        "db_pass",
        "Authorization header",
        "cookie",
        "mnemonic",
        "6-digit code",
    ),
    *("seed phrase", "recovery_code", "backup codes", "What is your password?", "Max. 20: your password"),
]


@pytest.mark.parametrize("label", SECRETS, ids=ascii)
def test_a_form_that_asks_for_a_secret_is_refused(label: str) -> None:
    assert "secret" in refusal(schema(**{label: STRING}))
    assert "secret" in refusal(schema(field={**STRING, "title": label}))
    assert "secret" in refusal(schema(field={**INTEGER, "title": label}))


@pytest.mark.parametrize("titles", [("Keep", "K\u0435ep"), ("\u0410pple", "Apple"), ("Pay", "P\u0430y")], ids=ascii)
def test_choices_written_with_letters_of_others_are_refused(titles: tuple[str, str]) -> None:
    choices = [{"const": value, "title": title} for value, title in zip(("keep", "delete"), titles, strict=True)]
    assert "letters of others" in refusal(schema(a={"type": "string", "oneOf": choices}))
    assert "letters of others" in refusal(schema(a={"type": "array", "items": {"anyOf": choices}}))


@pytest.mark.parametrize("choices", [("m", "M"), ("kW", "KW"), ("1", "I", "II"), ("Hoa", "Hòa"), ("да", "нет")])
def test_choices_of_any_script_that_differ_are_shown(choices: tuple[str, ...]) -> None:
    assert form(schema(a={"type": "string", "enum": list(choices)})).shown["properties"]["a"]["enum"] == list(choices)


def test_choices_with_one_title_are_told_apart_by_their_values() -> None:
    choices = [{"const": value, "title": "Standup"} for value in ("mon", "tue")]
    shown = form(schema(a={"type": "string", "oneOf": choices})).shown["properties"]["a"]["oneOf"]
    assert [choice["title"] for choice in shown] == ["Standup (mon)", "Standup (tue)"]


def test_the_format_of_a_password_is_a_secret_too() -> None:
    assert "secret" in refusal(schema(a={"type": "string", "format": "password"}))


HARMLESS = [
    *("token_limit", "max_tokens", "maxTokens", "tokens", "Number of tokens", "next_page_token", "token_symbol"),
    *("tokenizer", "stop token", "pin to top", "pinned", "map_pin", "gpio pin", "shipping", "secretary", "secret_name"),
    *("passport", "passport_number", "passenger", "bypass code", "compass code", "password_length", "discard number"),
    *("key", "keyword", "monkey", "public key", "primary_key", "zip code", "country code", "postal_code", "code"),
    *(
        "business card",
        "number of cards",
        "iban",
        "account",
        "authority",
        "session",
        "assn",
        "2fa method",
        "api_key_name",
    ),
]


@pytest.mark.parametrize("label", HARMLESS)
def test_a_word_that_only_looks_like_a_secret_is_asked_for(label: str) -> None:
    assert form(schema(**{label: STRING}))
    assert form(schema(field={**STRING, "title": label}))


@pytest.mark.parametrize("field", [BOOLEAN, COLOURS, SEVERAL], ids=["boolean", "choice", "choices"])
def test_what_is_chosen_from_the_servers_own_list_is_no_secret(field: Json) -> None:
    assert form(schema(use_api_key=field, token=field))


ANSWERS: dict[str, tuple[Json, Any, Any]] = {
    "a text": (STRING, "Ann", "Ann"),
    "lines and tabs": (STRING, "a\r\n\tb", "a\n\tb"),
    "hidden characters": ({**STRING, "maxLength": 2}, "a\u200b\x00\u202eb\ud800", "ab"),
    "the longest": (STRING, "x" * 10_000, "x" * 10_000),
    "a number in a text field": (STRING, "5", "5"),
    "a number": (NUMBER, 1.5, 1.5),
    "a number as text": (NUMBER, " 1.5e1 ", 15.0),
    "a whole number": (INTEGER, 5, 5),
    "a whole number with a point": (INTEGER, 5.0, 5),
    "a whole number as text": (INTEGER, "-5", -5),
    "a long whole number as text": (INTEGER, "9007199254740993", 9007199254740993),
    "the limit": ({**INTEGER, "minimum": 5, "maximum": 5}, 5, 5),
    "true": (BOOLEAN, True, True),
    "false as text": (BOOLEAN, "False", False),
    "a choice": (COLOURS, "green", "green"),
    "a titled choice": ({"oneOf": TITLED}, "g", "g"),
    "choices": (SEVERAL, ["c", "a", "c"], ["c", "a"]),
    "none of the choices": (SEVERAL, [], []),
    "one of several": (SEVERAL, "b", ["b"]),
    "an e-mail address": ({**STRING, "format": "email"}, " ann@mail.example.com ", "ann@mail.example.com"),
    "an address": ({**STRING, "format": "uri"}, "https://example.com/a?b#c", "https://example.com/a?b#c"),
    "an address of another scheme": ({**STRING, "format": "uri"}, "s3://bucket/key", "s3://bucket/key"),
    "a name that is an address": ({**STRING, "format": "uri"}, "urn:isbn:0451450523", "urn:isbn:0451450523"),
    "a date": ({**STRING, "format": "date"}, "2024-02-29", "2024-02-29"),
    "a time": ({**STRING, "format": "date-time"}, "2026-01-31T09:30:00Z", "2026-01-31T09:30:00Z"),
    "a time in small letters": ({**STRING, "format": "date-time"}, "2026-01-31t09:30:00z", "2026-01-31t09:30:00z"),
    "a time with all": (
        {**STRING, "format": "date-time"},
        "2026-01-31t09:30:00.123456789+05:30",
        "2026-01-31t09:30:00.123456789+05:30",
    ),
}


@pytest.mark.parametrize(("field", "given", "fitted"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_that_fits_reaches_the_server(field: Json, given: Any, fitted: Any) -> None:
    answer = form(schema("f", f=field)).fitted({"f": given})
    assert answer == {"f": fitted}
    assert type(answer["f"]) is type(fitted)


MISFITS: dict[str, tuple[Json, Any]] = {
    "a number for a text": (STRING, 5),
    "a truth for a text": (STRING, True),
    "an object for a text": (STRING, {}),
    "too short": ({**STRING, "minLength": 2}, "a"),
    "too short when hidden ones are gone": ({**STRING, "minLength": 2}, "a\u200b"),
    "too long": ({**STRING, "maxLength": 2}, "abc"),
    "longer than any": (STRING, "x" * 10_001),
    "a truth for a number": (NUMBER, True),
    "no number": (NUMBER, "five"),
    "an underscore": (INTEGER, "1_000"),
    "other digits": (INTEGER, "\u0665"),
    "hexadecimal": (INTEGER, "0x10"),
    "not a number": (NUMBER, float("nan")),
    "not a number as text": (NUMBER, "nan"),
    "without end": (NUMBER, float("inf")),
    "too large as text": (NUMBER, "1e999"),
    "a part of one": (INTEGER, 1.5),
    "a part as text": (INTEGER, "1.5"),
    "more digits than numbers have": (INTEGER, 10**30),
    "a whole number beyond all": (INTEGER, 1e300),
    "too small": ({**INTEGER, "minimum": 5}, 4),
    "too large": ({**NUMBER, "maximum": 5}, 5.1),
    "the excluded limit": ({**NUMBER, "exclusiveMinimum": 0}, 0),
    "the other excluded limit": ({**NUMBER, "exclusiveMaximum": 1}, "1.0"),
    "a number for a truth": (BOOLEAN, 1),
    "a word for a truth": (BOOLEAN, "yes"),
    "another choice": (COLOURS, "blue"),
    "the title of a choice": ({"oneOf": TITLED}, "Red"),
    "a list for a choice": (COLOURS, ["red"]),
    "another of several": (SEVERAL, ["a", "x"]),
    "a number among several": (SEVERAL, [1]),
    "an object among several": (SEVERAL, [{}]),
    "too few": ({**SEVERAL, "minItems": 2}, ["a", "a"]),
    "too many": ({**SEVERAL, "maxItems": 1}, ["a", "b"]),
    "required": (STRING, None),
    "required and empty": ({**STRING, "minLength": 1}, ""),
    "a required number that is empty": (NUMBER, ""),
    "a required list that is empty": ({**SEVERAL, "minItems": 1}, []),
    "no e-mail address": ({**STRING, "format": "email"}, "ann"),
    "an e-mail address without a place": ({**STRING, "format": "email"}, "ann@example"),
    "two e-mail addresses": ({**STRING, "format": "email"}, "a@b.example,c@d.example"),
    "no address": ({**STRING, "format": "uri"}, "example.com"),
    "an address without a host": ({**STRING, "format": "uri"}, "https:///path"),
    "an address with a space": ({**STRING, "format": "uri"}, "https://example.com/a b"),
    "no such day": ({**STRING, "format": "date"}, "2025-02-29"),
    "another way to write a day": ({**STRING, "format": "date"}, "20250228"),
    "a time without a zone": ({**STRING, "format": "date-time"}, "2026-01-31T09:30:00"),
    "no such time": ({**STRING, "format": "date-time"}, "2026-01-31T25:30:00Z"),
    "dots without end": ({**STRING, "format": "email"}, "a@" + "a." * 4000),
}


@pytest.mark.parametrize(("field", "given"), MISFITS.values(), ids=MISFITS.keys())
def test_an_answer_that_does_not_fit_names_its_field(field: Json, given: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        form(schema("f", f=field)).fitted({"f": given})
    assert caught.value.param == "content.f"


@pytest.mark.parametrize("name", ["x", "f ", "F", "", "__proto__", "\ud800\u202e"], ids=ascii)
def test_an_unknown_field_is_named(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        form(schema(f=STRING)).fitted({"f": "a", name: "b"})
    assert (caught.value.param or "").startswith("content.")
    assert json.dumps(caught.value.param, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "field",
    [STRING, {**STRING, "format": "date"}, NUMBER, BOOLEAN, COLOURS, SEVERAL],
    ids=["text", "date", "number", "boolean", "choice", "choices"],
)
@pytest.mark.parametrize(
    "given", [{}, {"f": None}, {"f": ""}, {"f": "\u200b"}], ids=["absent", "null", "empty", "blank"]
)
def test_an_optional_field_may_stay_empty(field: Json, given: Json) -> None:
    assert form(schema(f=field)).fitted(given) == {}


DEFAULTS: Json = {
    "name": {**STRING, "default": "John"},
    "age": {**INTEGER, "default": 30},
    "score": {**NUMBER, "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive"], "default": "inactive"},
    "verified": {**BOOLEAN, "default": False},
    "letters": {**SEVERAL, "default": ["b"]},
}


@pytest.mark.parametrize("required", [(), tuple(DEFAULTS)], ids=["optional", "required"])
@pytest.mark.parametrize("given", [{}, dict.fromkeys(DEFAULTS)], ids=["absent", "null"])
def test_defaults_stand_for_what_is_left_out(required: tuple[str, ...], given: Json) -> None:
    defaults = {name: field["default"] for name, field in DEFAULTS.items()}
    assert form(schema(*required, **DEFAULTS)).fitted(given) == defaults


def test_an_answer_goes_before_its_default() -> None:
    given: Json = {"name": "", "age": 1, "score": 0, "status": "active", "verified": True, "letters": []}
    assert form(schema(**DEFAULTS)).fitted(given) == given


JSON: Strategy = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TYPES: Strategy = st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "null", "String", "x"])
CHOICES: Strategy = st.lists(st.sampled_from(["a", "b", "", "A", None, 1, True]) | JSON, max_size=4)
NOTHING: dict[str, Strategy] = {}
BRANCHES: Strategy = st.lists(
    st.fixed_dictionaries(NOTHING, optional={"const": JSON, "title": JSON, "type": TYPES}), max_size=3
)
SIZES: Strategy = st.integers(-2, 5) | st.floats() | JSON
ITEMS: Strategy = st.fixed_dictionaries(
    NOTHING, optional={"type": TYPES, "enum": CHOICES, "anyOf": BRANCHES, "oneOf": BRANCHES}
)
FIELD: Strategy = st.fixed_dictionaries(
    NOTHING,
    optional={
        "type": TYPES | st.lists(TYPES, max_size=3) | JSON,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), SIZES),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), SIZES),
        "format": st.sampled_from(["email", "uri", "date", "date-time", "password", "x"]) | JSON,
        **dict.fromkeys(("default", "title", "description", "nullable", "const", "enumNames"), JSON),
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), BRANCHES | JSON),
        "enum": CHOICES | JSON,
        "items": ITEMS | JSON,
        "$ref": st.sampled_from(["#/$defs/A", "#/properties/a", "#", "#/", "x"]) | JSON,
    },
)
SCHEMAS: Strategy = st.fixed_dictionaries(
    {"properties": st.dictionaries(st.sampled_from(["a", "b", "c d"]) | st.text(max_size=4), FIELD | JSON, max_size=3)},
    optional={
        "type": st.just("object") | JSON,
        "required": st.lists(st.sampled_from(["a", "b"]), max_size=2) | JSON,
        "$defs": st.fixed_dictionaries({"A": FIELD}),
    },
)
LIKELY: dict[str, Strategy] = {
    name: st.sampled_from(
        [STRING, NUMBER, INTEGER, BOOLEAN, COLOURS, SEVERAL, *(entry[0] for entry in FIELDS.values())]
    )
    for name in "abc"
}
VALUES: Strategy = JSON | st.sampled_from(
    [
        "",
        "a",
        "5",
        "1e3",
        "true",
        "red",
        "a\u200b",
        " ",
        ["a"],
        ["a", "a"],
        [],
        0,
        -0.0,
        5.0,
        "2026-01-31",
        "a@b.example",
    ]
)


@settings(deadline=None)
@given(JSON | SCHEMAS)
def test_whatever_comes_becomes_a_form_or_a_sentence(asked: Any) -> None:
    before = copy.deepcopy(asked)
    made = form_from_schema(asked)
    assert repr(asked) == repr(before)
    if isinstance(made, str):
        assert made.endswith(".")
        return
    plain_types.RequestedSchema.model_validate(made.shown)
    Draft202012Validator.check_schema(made.shown)
    json.dumps(made.shown, allow_nan=False, ensure_ascii=False).encode()
    for field in made.shown["properties"].values():
        PRIMITIVE.validate_python(field)
    again = form_from_schema(made.shown)
    assert isinstance(again, Form)
    assert again.shown == made.shown


@settings(deadline=None)
@given(
    SCHEMAS | st.fixed_dictionaries({"properties": st.fixed_dictionaries(NOTHING, optional=LIKELY)}),
    st.dictionaries(st.sampled_from(["a", "b", "c"]) | st.text(max_size=4), VALUES, max_size=3),
)
def test_whatever_is_answered_fits_for_good_or_names_a_field(asked: Json, content: Json) -> None:
    made = form_from_schema(asked)
    assume(isinstance(made, Form))
    assert isinstance(made, Form)
    try:
        fitted = made.fitted(content)
    except InvalidRequest as invalid:
        assert (invalid.param or "").startswith("content.")  # noqa: PT017
        return
    assert repr(made.fitted(fitted)) == repr(fitted)
    validate(fitted, made.shown, cls=Draft202012Validator)
    plain_types.ElicitResult.model_validate({"action": "accept", "content": fitted})
