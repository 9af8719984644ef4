"""Arguments are fitted to the schema where it forbids what the model wrote, and nowhere else."""

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError, validate

from app.toolbox.arguments import fitted_arguments

Json = dict[str, Any]
Rows = dict[str, tuple[Json, Json, Json]]

STRING, INTEGER, ARRAY, NULL = {"type": "string"}, {"type": "integer"}, {"type": "array"}, {"type": "null"}
REF, OPTIONS, ORDER = {"$ref": "#/$defs/N"}, {"$ref": "#/$defs/O"}, {"enum": ["asc", "desc"]}
MODEL = {"type": "object", "properties": {"n": INTEGER, "lang": STRING}, "required": ["n"]}
INTEGERS = {"type": "array", "items": INTEGER}
DEFINITIONS = {"N": INTEGER, "O": MODEL, "A": {"allOf": [OPTIONS]}, "a/b c%d": INTEGER}


def schema(required: tuple[str, ...] = (), **properties: Any) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), "$defs": DEFINITIONS}


def union(*branches: Json, word: str = "anyOf") -> Json:
    return {word: list(branches)}


def closed(required: tuple[str, ...] = (), **properties: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def nullable(branch: Json) -> Json:
    return union(branch, NULL)


ROWS: Rows = {
    "lists and numbers in texts": (
        schema(tags=ARRAY, n=INTEGER),
        {"tags": '["a","b"]', "n": "5"},
        {"tags": ["a", "b"], "n": 5},
    ),
    "an object in a text": (schema(o={"type": "object"}), {"o": '{"a":1}'}, {"o": {"a": 1}}),
    "a truth in a text": (schema(b={"type": "boolean"}), {"b": "true"}, {"b": True}),
    "a whole number with a point": (schema(n=INTEGER), {"n": "5.0"}, {"n": 5}),
    "the largest that is exact": (schema(n=INTEGER), {"n": "9007199254740991.0"}, {"n": 9007199254740991}),
    "a whole number that a point would change": (
        schema(n=INTEGER),
        {"n": "9007199254740993.0"},
        {"n": "9007199254740993.0"},
    ),
    "a large number": (schema(n={"type": "number"}), {"n": "1e300"}, {"n": 1e300}),
    "a fraction is no whole number": (schema(n=INTEGER), {"n": "5.5"}, {"n": "5.5"}),
    "a fraction is a number": (schema(n={"type": "number"}), {"n": "5.5"}, {"n": 5.5}),
    "a text stays where texts are allowed": (schema(q=STRING), {"q": "5"}, {"q": "5"}),
    "also beside others": (schema(q={"type": ["string", "integer"]}), {"q": "5"}, {"q": "5"}),
    "also in a union": (schema(q={"anyOf": [STRING, INTEGER]}), {"q": "[1]"}, {"q": "[1]"}),
    "a union without texts": (schema(q={"anyOf": [ARRAY, INTEGER]}), {"q": "[1]"}, {"q": [1]}),
    "nothing is said of the type": (schema(q={}), {"q": "5"}, {"q": "5"}),
    "no schema at all": (schema(), {"q": "5"}, {"q": "5"}),
    "a text that is no JSON": (schema(n=INTEGER), {"n": "five"}, {"n": "five"}),
    "JSON of another type": (schema(n=INTEGER), {"n": '["5"]'}, {"n": '["5"]'}),
    "a text in a text": (schema(n=INTEGER), {"n": '"5"'}, {"n": '"5"'}),
    "choices that are numbers": (schema(n={"enum": [1, 2]}), {"n": "2"}, {"n": 2}),
    "choices that are texts": (schema(n={"enum": ["1", "2"]}), {"n": "2"}, {"n": "2"}),
    "through a reference": (schema(n=REF), {"n": "5"}, {"n": 5}),
    "a reference that leads nowhere": (schema(n={"$ref": "#/$defs/X"}), {"n": "5"}, {"n": "5"}),
    "within a list": (schema(l={"type": "array", "items": INTEGER}), {"l": ["1", 2]}, {"l": [1, 2]}),
    "within an object": (schema(o=schema(n=INTEGER)), {"o": {"n": "1", "m": "1"}}, {"o": {"n": 1, "m": "1"}}),
    "in a list that was a text": (schema(l={"type": "array", "items": INTEGER}), {"l": '["1"]'}, {"l": [1]}),
    "null for an optional one": (schema(("q",), q=STRING, lang=STRING), {"q": "tin", "lang": None}, {"q": "tin"}),
    "null for a required one": (schema(("q",), q=STRING), {"q": None}, {"q": None}),
    "null that is declared": (schema(q={"type": ["string", "null"]}), {"q": None}, {"q": None}),
    "null that is declared as a branch": (schema(q={"anyOf": [STRING, {"type": "null"}]}), {"q": None}, {"q": None}),
    "null that is declared in the old way": (schema(q={"type": "string", "nullable": True}), {"q": None}, {"q": None}),
    "null of unknown type": (schema(q={}), {"q": None}, {"q": None}),
    "an empty text for a number": (schema(n=INTEGER), {"n": ""}, {}),
    "an empty text for a text": (schema(q=STRING), {"q": ""}, {"q": ""}),
    "an empty text for a required number": (schema(("n",), n=INTEGER), {"n": ""}, {"n": ""}),
    "unknown keys": (schema(q=STRING), {"x": None, "y": "5"}, {"x": None, "y": "5"}),
}

UNION = union(schema(n=INTEGER), schema(x=STRING))
A, B = schema(("k",), k={"const": "a"}, v=INTEGER), schema(("k", "v"), k={"enum": ["b"]}, v=STRING)
TWO = schema(u=union(A, B, NULL))
ONE = schema(u=union(schema(k={"const": 1}, v=INTEGER), schema(k={"const": 2}, v=STRING)))

TWICE = {"o": {"x": "5"}, "p": {"x": "5"}}


def owner(definition: Json) -> Json:
    """Return a model that was embedded with definitions of its own."""
    return {"properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": definition}}


SHAPES: Rows = {
    "an optional model": (
        schema(o=nullable(OPTIONS)),
        {"o": {"n": "5", "lang": None}},
        {"o": {"n": 5}},
    ),
    "an optional model in a text": (
        schema(o=nullable(OPTIONS)),
        {"o": '{"n":"5","lang":""}'},
        {"o": {"n": 5, "lang": ""}},
    ),
    "an optional model that is null": (schema(o=nullable(OPTIONS)), {"o": None}, {"o": None}),
    "null in a text": (schema(o=nullable(OPTIONS)), {"o": "null"}, {"o": None}),
    "an optional model that is an empty text": (schema(o=nullable(OPTIONS)), {"o": ""}, {}),
    "an optional list": (schema(l=nullable(INTEGERS)), {"l": ["1", "2"]}, {"l": [1, 2]}),
    "an optional list in a text": (schema(l=nullable(INTEGERS)), {"l": '["1","2"]'}, {"l": [1, 2]}),
    "a list of optional models": (
        schema(l={"type": "array", "items": nullable(OPTIONS)}),
        {"l": [{"n": "1"}, None, '{"n":2}']},
        {"l": [{"n": 1}, None, {"n": 2}]},
    ),
    "a model that allOf wraps": (schema(o={"allOf": [OPTIONS]}), {"o": '{"n":5}'}, {"o": {"n": 5}}),
    "and wraps again": (
        schema(o={"allOf": [{"allOf": [{"$ref": "#/$defs/A"}]}], "default": {}}),
        {"o": {"n": "5", "lang": None}},
        {"o": {"n": 5}},
    ),
    "two parts that both hold": (
        schema(n={"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}),
        {"n": "5"},
        {"n": 5},
    ),
    "a model in the old way": (schema(o={"nullable": True, "allOf": [OPTIONS]}), {"o": None}, {"o": None}),
    "a choice in the old way": (schema(q={**ORDER, "type": "string", "nullable": True}), {"q": None}, {"q": None}),
    "a reference in the old way": (schema(o={**OPTIONS, "nullable": True}), {"o": None}, {"o": None}),
    "the property of a model in the old way": (
        schema(o={"nullable": True, "allOf": [OPTIONS]}),
        {"o": {"n": "5"}},
        {"o": {"n": 5}},
    ),
    "a root of branches": (UNION, {"n": "5", "x": None}, {"n": 5}),
    "of which one holds": ({"oneOf": UNION["anyOf"]}, {"n": "5", "x": None}, {"n": 5}),
    "a root of parts": ({"allOf": UNION["anyOf"]}, {"n": "5", "x": None}, {"n": 5}),
    "a root elsewhere": ({"$ref": "#/$defs/O", "$defs": DEFINITIONS}, {"n": "5", "lang": None}, {"n": 5}),
    "a part requires it": ({"allOf": [schema(("x",), x=STRING)]}, {"x": None}, {"x": None}),
    "the root requires it": ({**UNION, "required": ["x"]}, {"x": None}, {"x": None}),
    "every branch requires it": (
        union(schema(("x",), x=STRING), schema(("x",), x=INTEGER)),
        {"x": None},
        {"x": None},
    ),
    "one of the branches requires it": (union(schema(("x",), x=STRING), schema(x=INTEGER)), {"x": None}, {}),
    "branches that only require": (
        {**schema(a=STRING, b=STRING), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"a": "x", "b": None},
        {"a": "x"},
    ),
    "a property that requires itself": (schema(x={"type": "string", "required": True}), {"x": None}, {"x": None}),
    "a property that requires itself by a word": (
        schema(x={"type": "string", "required": "true"}),
        {"x": None},
        {"x": None},
    ),
    "a map": ({"type": "object", "additionalProperties": {"type": "number"}}, {"a": "5"}, {"a": 5}),
    "a map of models": (schema(m={"additionalProperties": OPTIONS}), {"m": {"a": '{"n":"5"}'}}, {"m": {"a": {"n": 5}}}),
    "a key of a map": ({"additionalProperties": INTEGER}, {"a": None, "b": ""}, {"a": None, "b": ""}),
    "a map beside properties": (
        {**schema(q=STRING), "additionalProperties": INTEGER},
        {"q": "5", "a": "5"},
        {"q": "5", "a": 5},
    ),
    "a map beside patterns": (
        {"patternProperties": {"^s": STRING}, "additionalProperties": INTEGER},
        {"s": "5", "a": "5"},
        {"s": "5", "a": "5"},
    ),
    "no other keys": (
        {**schema(q=STRING), "additionalProperties": False},
        {"x": "5", "y": None},
        {"x": "5", "y": None},
    ),
    "a tuple": (
        schema(t={"type": "array", "prefixItems": [INTEGER, STRING, INTEGER]}),
        {"t": ["1", "2", "3", "4"]},
        {"t": [1, "2", 3, "4"]},
    ),
    "a tuple and the rest": (
        schema(t={"prefixItems": [STRING], "items": INTEGER}),
        {"t": ["1"] * 40},
        {"t": ["1"] + [1] * 39},
    ),
    "a tuple in the old way": (
        schema(t={"type": "array", "items": [INTEGER, STRING], "additionalItems": INTEGER}),
        {"t": '["1","2","3"]'},
        {"t": [1, "2", 3]},
    ),
    "a tuple of many places": (
        schema(t={"prefixItems": [INTEGER] * 20, "items": STRING}),
        {"t": ["1"] * 24},
        {"t": [1] * 16 + ["1"] * 8},
    ),
    "a list or a tuple": (schema(t=union(INTEGERS, {"prefixItems": [STRING]})), {"t": ["1", "2"]}, {"t": ["1", 2]}),
    "branches that disagree": (
        schema(u=union(schema(v=INTEGER), schema(v=STRING))),
        {"u": {"v": "5"}},
        {"u": {"v": "5"}},
    ),
    "branches that agree": (
        schema(u=union(schema(v=INTEGER, w=INTEGER), schema(v=INTEGERS, w=STRING))),
        {"u": {"v": "[5]", "w": "5"}},
        {"u": {"v": [5], "w": "5"}},
    ),
    "a branch is not chosen by what is no choice": (
        schema(u=union(schema(v=INTEGER, w=INTEGER), schema(v=STRING))),
        {"u": {"v": "x", "w": "5"}},
        {"u": {"v": "x", "w": 5}},
    ),
    "a branch that takes every key": (
        schema(u=union(schema(v=INTEGER), {"type": "object", "additionalProperties": True})),
        {"u": {"v": "5"}},
        {"u": {"v": "5"}},
    ),
    "branches of branches": (
        schema(u=nullable(union(schema(v=INTEGER), nullable(schema(w=STRING))))),
        {"u": {"v": "5", "w": None}},
        {"u": {"v": 5}},
    ),
    "the branch that is named": (TWO, {"u": {"k": "a", "v": "5"}}, {"u": {"k": "a", "v": 5}}),
    "the other branch that is named": (TWO, {"u": {"k": "b", "v": "5"}}, {"u": {"k": "b", "v": "5"}}),
    "what the named branch requires": (TWO, {"u": {"k": "b", "v": None}}, {"u": {"k": "b", "v": None}}),
    "what the named branch does not": (TWO, {"u": {"k": "a", "v": None}}, {"u": {"k": "a"}}),
    "a branch that nobody has": (
        schema(u=union(A, schema(k={"const": "b"}, v=INTEGERS))),
        {"u": {"k": "c", "v": "5"}},
        {"u": {"k": "c", "v": 5}},
    ),
    "a branch that nobody named": (TWO, {"u": {"v": "5"}}, {"u": {"v": "5"}}),
    "a name that is no text": (ONE, {"u": {"v": "5", "k": "1"}}, {"u": {"v": 5, "k": 1}}),
    "a name that is no text beside a branch without": (
        schema(u=union(schema(k={"const": 1}, v=INTEGER), schema(w=STRING))),
        {"u": {"v": "5", "k": "1"}},
        {"u": {"v": 5, "k": 1}},
    ),
    "a name that is known when it was read": (
        {**schema(k=INTEGER), **union(schema(k={"const": 1}, v=INTEGER), schema(k={"const": "1"}, v=STRING))},
        {"k": "1", "v": "5"},
        {"k": 1, "v": 5},
    ),
    "true is not one": (ONE, {"u": {"v": "5", "k": True}}, {"u": {"v": "5", "k": True}}),
    "a choice that was not made": (
        union(schema(sort=ORDER, n=INTEGER), schema(x=STRING)),
        {"sort": "", "n": "5"},
        {"n": 5},
    ),
    "null for a choice": (schema(q=ORDER), {"q": None}, {}),
    "an empty text for a choice": (schema(q=ORDER), {"q": ""}, {}),
    "a choice that is empty": (schema(q={"enum": ["", "asc"]}), {"q": ""}, {"q": ""}),
    "a choice that is null": (schema(q={"enum": [None, "asc"]}), {"q": None}, {"q": None}),
    "a required choice": (schema(("q", "r"), q=ORDER, r=ORDER), {"q": None, "r": ""}, {"q": None, "r": ""}),
    "an empty text that is too short": (schema(q={"type": "string", "minLength": 1}), {"q": ""}, {}),
    "also where null would do": (schema(q=nullable({"type": "string", "minLength": 1})), {"q": ""}, {}),
    "also where it is required": (schema(("q",), q={"type": "string", "minLength": 1}), {"q": ""}, {"q": ""}),
    "a number or a word": (schema(q=union(INTEGER, {"const": "auto"})), {"q": "5"}, {"q": 5}),
    "a word or a number": (schema(q=union(INTEGER, {"const": "auto"})), {"q": "auto"}, {"q": "auto"}),
    "a number that is no choice": (schema(q={"enum": [1, 2]}), {"q": "3"}, {"q": "3"}),
    "not a number": (schema(n={"type": "number"}), {"n": "NaN"}, {"n": "NaN"}),
    "no end": (schema(n={"type": "number"}), {"n": "-Infinity"}, {"n": "-Infinity"}),
    "too large a number": (schema(n={"type": "number"}), {"n": "1e400"}, {"n": "1e400"}),
    "too large a number in a list": (schema(l=ARRAY), {"l": "[1e400]"}, {"l": "[1e400]"}),
    "half a character": (schema(l=ARRAY), {"l": r'["\ud83d"]'}, {"l": r'["\ud83d"]'}),
    "a whole one": (schema(l=ARRAY), {"l": r'["\ud83d\ude00"]'}, {"l": ["😀"]}),
    "a text that nests deeply": (schema(l=ARRAY), {"l": "[" * 70 + "]" * 70}, {"l": "[" * 70 + "]" * 70}),
    "anything by title": (schema(v={"title": "Value"}), {"v": None}, {"v": None}),
    "anything as a text": (schema(v={"title": "Value"}, w={}), {"v": "5", "w": ""}, {"v": "5", "w": ""}),
    "anything by word": (schema(v=True, w={"type": "any"}), {"v": None, "w": "5"}, {"v": None, "w": "5"}),
    "nothing": (schema(v=False, w={"not": {}}), {"v": None, "w": "5"}, {"w": "5"}),
    "words that people use": (schema(n={"type": "int"}, l="list"), {"n": "5", "l": "[5]"}, {"n": 5, "l": [5]}),
    "a list of properties": ({"properties": [{"name": "n", "type": "integer"}]}, {"n": "5"}, {"n": 5}),
    "a reference with odd signs": (schema(n={"$ref": "#/$defs/a~1b%20c%25d"}), {"n": "5"}, {"n": 5}),
    "a reference that leads through another one": (
        schema(n={"$ref": "#/$defs/A/allOf/0/properties/n"}),
        {"n": "5"},
        {"n": "5"},
    ),
    "a reference to a branch": (
        schema(n={"$ref": "#/properties/m/anyOf/0"}, m=nullable(INTEGER)),
        {"n": "5"},
        {"n": 5},
    ),
    "a reference to the other name of definitions": (schema(n={"$ref": "#/definitions/N"}), {"n": "5"}, {"n": 5}),
    "a reference by the address of the document": (
        {"$id": "https://a.example/x", **schema(n={"$ref": "https://a.example/x#/$defs/N"})},
        {"n": "5"},
        {"n": 5},
    ),
    "by an address with an empty fragment": (
        {"$id": "https://a.example/x#", **schema(n={"$ref": "https://a.example/x#/$defs/N"})},
        {"n": "5"},
        {"n": 5},
    ),
    "a reference to the address itself": (
        {"$id": "https://a.example/x", "properties": {"n": INTEGER, "o": {"$ref": "https://a.example/x"}}},
        {"o": {"n": "5"}},
        {"o": {"n": 5}},
    ),
    "a reference to another document": (
        {"$id": "https://a.example/x", **schema(n={"$ref": "https://b.example/x#/$defs/N"})},
        {"n": "5"},
        {"n": "5"},
    ),
    "a reference to a name": (schema(n={"$ref": "#N"}), {"n": "{}"}, {"n": "{}"}),
    "a reference to itself": (
        schema(n={"$ref": "#/properties/n"}, m=INTEGER),
        {"n": "5", "m": "5"},
        {"n": "5", "m": 5},
    ),
    "a tree": (
        {"properties": {"n": INTEGER, "kids": {"type": "array", "items": {"$ref": "#"}}}},
        {"kids": '[{"n":"1","kids":[{"n":"2"}]}]'},
        {"kids": [{"n": 1, "kids": [{"n": 2}]}]},
    ),
    "definitions of its own": (schema(o=owner(INTEGER), p=owner(INTEGER)), TWICE, {"o": {"x": 5}, "p": {"x": 5}}),
    "definitions that disagree": (schema(o=owner(INTEGER), p=owner(STRING)), TWICE, TWICE),
    "definitions that disagree otherwise": (schema(o=owner(STRING), p=owner(INTEGER)), TWICE, TWICE),
}


@pytest.mark.parametrize("row", (ROWS | SHAPES).values(), ids=ROWS | SHAPES)
def test_arguments_are_fitted(row: tuple[Json, Json, Json]) -> None:
    tool, written, sent = row
    before = copy.deepcopy((tool, written))
    fitted = fitted_arguments(written, tool)
    assert fitted == sent
    assert [type(value) for value in fitted.values()] == [type(value) for value in sent.values()]
    assert (tool, written) == before


def doubling(levels: int, last: Json) -> Json:
    """Return definitions, each of which offers the next one twice."""
    steps = {f"D{level}": union(*({"$ref": f"#/$defs/D{level + 1}"},) * 2) for level in range(levels)}
    return {**steps, f"D{levels}": last}


@pytest.mark.parametrize(("levels", "sent"), [(4, {"a": 5, "b": 5}), (14, {"a": "5", "b": "5"})])
def test_arguments_pass_as_they_are_where_branches_double_too_often(levels: int, sent: Json) -> None:
    tool = {"properties": {"a": {"$ref": "#/$defs/D0"}, "b": INTEGER}, "$defs": doubling(levels, INTEGER)}
    assert fitted_arguments({"a": "5", "b": "5"}, tool) == sent


def test_properties_that_were_fitted_before_the_work_was_too_much_are_kept() -> None:
    tool = {"properties": {"a": {"$ref": "#/$defs/D0"}, "b": INTEGER}, "$defs": doubling(14, INTEGER)}
    assert fitted_arguments({"a": "500", "b": "5"}, tool) == {"a": "500", "b": 5}
    assert fitted_arguments({"a": "500", "b": ""}, tool) == {"a": "500"}


LONG = f"[{'1, ' * 60_000}1]"


def effort(work: Callable[[], object]) -> float:
    """The least CPU time of three, in seconds; for comparing with that of other work."""
    times: list[float] = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize(
    "tool",
    [
        union(*(schema(k={**INTEGER, "enum": [number]}) for number in range(450))),
        union(*(schema(k={"const": [number]}) for number in range(450))),
    ],
    ids=["numbers", "lists"],
)
def test_a_long_text_that_many_branches_speak_of_takes_little_work(tool: Json) -> None:
    assert fitted_arguments({"k": LONG}, tool) == {"k": LONG}
    # Read once, and not once for each of the 450 branches.
    alone: Json = {**tool, "anyOf": tool["anyOf"][:1]}
    assert effort(lambda: fitted_arguments({"k": LONG}, tool)) < 100 * effort(
        lambda: fitted_arguments({"k": LONG}, alone)
    )


def test_a_long_list_that_many_branches_compare_takes_little_work() -> None:
    row = [number + 0.5 for number in range(40_000)]
    tool: Json = union(*({"properties": {"k": {"$ref": "#/k"}}} for _ in range(450))) | {"k": {"const": [*row, 2]}}
    written = {"k": [*(number + 0.5 for number in range(40_000)), 1]}
    assert fitted_arguments(written, tool) == written
    alone: Json = {**tool, "anyOf": tool["anyOf"][:1]}
    assert effort(lambda: fitted_arguments(written, tool)) < 100 * effort(lambda: fitted_arguments(written, alone))


def test_a_long_list_in_a_text_is_read() -> None:
    assert fitted_arguments({"k": LONG}, schema(k=INTEGERS)) == {"k": [1] * 60_001}


def test_branches_that_double_at_every_level_of_the_arguments_end() -> None:
    tool: Json = {"$ref": "#/$defs/D0", "$defs": doubling(10, {"properties": {"x": {"$ref": "#/$defs/D0"}}})}
    written: Json = {"x": {"x": {"x": {"x": "5"}}}}
    assert fitted_arguments(written, tool) == written


TEXTS = {f"c{number}": nullable(STRING) for number in range(12)}


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        (schema((), n=nullable(INTEGER), lang=STRING, **TEXTS), 300),
        (
            union(
                schema((), n=nullable(INTEGER), lang=STRING, **TEXTS), schema((), lang=STRING, **copy.deepcopy(TEXTS))
            ),
            100,
        ),
    ],
)
def test_many_rows_are_fitted(row: Json, rows: int) -> None:
    sent = {**dict.fromkeys(list(TEXTS)[:6]), **dict.fromkeys(list(TEXTS)[6:], "5"), "n": 5}
    written = [{**sent, "n": "5", "lang": None} for _ in range(rows)]
    tool = schema(rows={"type": "array", "items": row})
    assert fitted_arguments({"rows": written}, tool) == {"rows": [sent] * rows}


def test_values_that_lie_deep_pass_as_they_are() -> None:
    tool = {"properties": {"o": {"$ref": "#"}, "n": INTEGER}}
    written: Json = {"n": "5"}
    for _ in range(20):
        written = {"o": written}
    fitted = fitted_arguments(written, tool)
    assert fitted == written
    assert fitted_arguments({"o": {"o": {"n": "5"}}}, tool) == {"o": {"o": {"n": 5}}}


NAMES = st.sampled_from(["a", "b", "k"])
MISWRITTEN = st.sampled_from([None, "", "1", "2.0", "true", "null", "[]", '["1"]', '{"a":"1","b":null}', '{"k":"1"}'])
SCALARS = MISWRITTEN | st.sampled_from([True, 1, 2, 2.0, 0.5, "x", "1e999"])
VALUES = st.recursive(
    MISWRITTEN | SCALARS,
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(NAMES, inner, min_size=1),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries({}, optional={"a": VALUES, "b": MISWRITTEN, "k": SCALARS})

WORDS = st.sampled_from(
    ["type", "enum", "const", "minLength", "nullable", "not", "anyOf", "oneOf", "allOf", "$ref", "$defs", "required"]
) | st.sampled_from(
    [
        "items",
        "prefixItems",
        "additionalItems",
        "properties",
        "additionalProperties",
        "patternProperties",
        "a",
        "b",
        "k",
    ]
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"])
REFERENCES = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/anyOf/0", "#a", "", "#/"])
ANY_SCHEMA = st.recursive(
    SCALARS | TYPES | REFERENCES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


def well_formed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    named, listed = st.dictionaries(NAMES, inner, min_size=1), st.lists(inner, min_size=1, max_size=3)
    required = {"required": st.lists(NAMES, max_size=2)}
    return (
        st.fixed_dictionaries({"properties": named}, optional={**required, "additionalProperties": inner})
        | st.fixed_dictionaries({"items": inner}, optional={"prefixItems": listed, "type": st.just("array")})
        | st.fixed_dictionaries({"anyOf": listed}, optional={"allOf": listed, "properties": named, **required})
        | st.fixed_dictionaries({"oneOf": listed}, optional={"nullable": st.booleans()})
    )


CHOICES = st.sampled_from([None, True, 1, 2, "x", "1"])
LEAF = (
    st.fixed_dictionaries({"type": TYPES})
    | st.fixed_dictionaries({"const": CHOICES})
    | st.fixed_dictionaries({"enum": st.lists(CHOICES, min_size=1, max_size=3)})
    | st.fixed_dictionaries({"$ref": REFERENCES})
)
SHAPED_SCHEMA = st.recursive(LEAF, well_formed, max_leaves=8)
NAMED = st.fixed_dictionaries({"a": SHAPED_SCHEMA, "b": LEAF, "k": LEAF})


def same(value: Any, other: Any) -> bool:
    return repr(value) == repr(other)  # by type as well


@given(ARGUMENTS, st.dictionaries(WORDS, ANY_SCHEMA), st.dictionaries(NAMES, st.dictionaries(WORDS, ANY_SCHEMA)))
def test_any_schema_is_survived(written: Json, tool: Json, properties: Json) -> None:
    tool = {"properties": properties} | tool
    before = copy.deepcopy((written, tool))
    assert set(fitted_arguments(written, tool)) <= set(written)
    assert same((written, tool), before)


@given(ARGUMENTS, st.lists(NAMED, min_size=1, max_size=2), NAMED, st.sampled_from(["anyOf", "oneOf", "allOf"]))
def test_fitting_twice_changes_nothing(written: Json, branches: list[Json], definitions: Json, word: str) -> None:
    tool = {word: [{"properties": branch} for branch in branches], "$defs": definitions}
    once = fitted_arguments(written, tool)
    assert same(fitted_arguments(once, tool), once)


def array_of(item: Json) -> Json:
    return {"type": "array", "items": item}


def tuple_of(first: Json, rest: Json) -> Json:
    return {"prefixItems": [first], "items": rest}


def map_of(item: Json) -> Json:
    return {"type": "object", "additionalProperties": item}


def choice_of(values: list[Any]) -> Json:
    return {"enum": values}


def plain(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Make schemas that leave nothing open, so that what is valid is valid by what a schema says of it."""
    required = st.lists(NAMES, max_size=1).map(tuple)
    return (
        st.builds(array_of, inner)
        | st.builds(tuple_of, inner, inner)
        | st.builds(map_of, inner)
        | st.tuples(required, st.dictionaries(NAMES, inner, max_size=3)).map(lambda drawn: closed(drawn[0], **drawn[1]))
        | st.builds(union, inner, inner, word=st.sampled_from(["anyOf", "oneOf"]))
        | st.builds(union, inner, word=st.just("allOf"))
    )


PLAIN = st.recursive(
    st.fixed_dictionaries({"type": TYPES}, optional={"minLength": st.integers(0, 2)})
    | st.builds(choice_of, st.lists(SCALARS, min_size=1, max_size=3)),
    plain,
    max_leaves=8,
)


def is_valid(value: Any, tool: Json) -> bool:
    try:
        validate(value, tool, cls=Draft202012Validator)
    except ValidationError:
        return False
    return True


def example_of(tool: Json, draw: st.DataObject) -> Any:
    """Draw a value that is mostly valid."""
    for word in ("anyOf", "oneOf", "allOf"):
        if word in tool:
            return example_of(draw.draw(st.sampled_from(tool[word])), draw)
    if "properties" in tool:
        names = [name for name in tool["properties"] if name in tool["required"] or draw.draw(st.booleans())]
        return {name: example_of(tool["properties"][name], draw) for name in names}
    if "additionalProperties" in tool:
        return {name: example_of(tool["additionalProperties"], draw) for name in draw.draw(st.sets(NAMES))}
    if "items" in tool:
        places = [*tool.get("prefixItems", ()), tool["items"], tool["items"]]
        return [example_of(place, draw) for place in places]
    choices = [value for value in draw.draw(st.lists(VALUES, min_size=4)) if is_valid(value, tool)]
    return draw.draw(st.sampled_from(tool.get("enum", choices or ["x"])))


@given(st.dictionaries(NAMES, PLAIN, min_size=1), st.data())
def test_arguments_that_are_valid_are_not_changed(properties: Json, data: st.DataObject) -> None:
    tool = closed(**properties)
    written = example_of(tool, data)
    assume(is_valid(written, tool))
    assert same(fitted_arguments(written, tool), written)
