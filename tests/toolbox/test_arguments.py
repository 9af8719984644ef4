"""Arguments are fitted to the schema where it forbids what the model wrote, and nowhere else."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.toolbox.arguments import fitted_arguments

STRING, INTEGER, ARRAY = {"type": "string"}, {"type": "integer"}, {"type": "array"}
REF = {"$ref": "#/$defs/N"}


def schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "$defs": {"N": INTEGER}}


ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "lists and numbers in texts": (
        schema(tags=ARRAY, n=INTEGER),
        {"tags": '["a","b"]', "n": "5"},
        {"tags": ["a", "b"], "n": 5},
    ),
    "an object in a text": (schema(o={"type": "object"}), {"o": '{"a":1}'}, {"o": {"a": 1}}),
    "a truth in a text": (schema(b={"type": "boolean"}), {"b": "true"}, {"b": True}),
    "a whole number with a point": (schema(n=INTEGER), {"n": "5.0"}, {"n": 5}),
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


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_arguments_are_fitted(row: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    tool, written, sent = row
    before = copy.deepcopy((tool, written))
    fitted = fitted_arguments(written, tool)
    assert fitted == sent
    assert [type(value) for value in fitted.values()] == [type(value) for value in sent.values()]
    assert (tool, written) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "type", "items", "$ref"]), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "b"]), JSON), st.dictionaries(st.sampled_from(["a", "b"]), JSON))
def test_any_schema_and_any_arguments_are_survived_and_fitting_twice_changes_nothing(
    written: dict[str, Any], properties: dict[str, Any]
) -> None:
    tool = schema(**properties)
    once = fitted_arguments(written, tool)
    assert set(once) <= set(written)
    assert fitted_arguments(once, tool) == once


def test_schema_that_refers_to_itself_ends() -> None:
    loop = {"$ref": "#/$defs/L"}
    tool = {"type": "object", "properties": {"a": loop}, "$defs": {"L": loop}}
    assert fitted_arguments({"a": "1"}, tool) == {"a": "1"}
