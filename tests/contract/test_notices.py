"""Every notice that the code makes is in the README and, with its further fields, in the OpenAPI document."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.api.published_events import NOTICES, NoticeEvent
from app.main import create_app
from app.settings import Settings

ROOT = Path(__file__).parents[2]
TREES = [ast.parse(path.read_text()) for path in sorted((ROOT / "app").rglob("*.py"))]


def texts(node: ast.AST) -> list[str]:
    """Collect the texts in a piece of code."""
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def keys(node: ast.expr, scope: ast.AST) -> set[str]:
    """Collect the keys of a dict that is written there, or given by a name that is set in the same function."""
    if isinstance(node, ast.Name):
        values = [
            each.value
            for each in ast.walk(scope)
            if (isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in each.targets))
            or (isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id == node.id)
        ]
        return {key for value in values if isinstance(value, ast.Dict) for key in keys(value, scope)}
    if isinstance(node, ast.IfExp):
        return keys(node.body, scope) | keys(node.orelse, scope)
    assert isinstance(node, ast.Dict), ast.unparse(node)
    found = {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    spread = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
    return found.union(*(keys(value, scope) for value in spread))


def notices() -> Iterator[tuple[str, set[str]]]:
    """Find what is made: codes with the fields that go with them."""
    for node in (each for tree in TREES for each in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
                if isinstance(call.func, ast.Name) and call.func.id == "Notice":
                    fields = keys(call.args[2], node) if len(call.args) > 2 else set[str]()
                    # Where the code is a variable, it is one of `ChangeCode`.
                    yield from ((code, fields) for code in texts(call.args[0]))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "ChangeCode":
            assert node.value
            yield from ((code, set[str]()) for code in texts(node.value))


def fields_by_code() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for code, fields in notices():
        found.setdefault(code, set()).update(fields)
    return found


MADE = fields_by_code()


def test_every_notice_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(MADE) >= 12
    assert [code for code in sorted(MADE) if f"`{code}`" not in readme] == []


def test_the_document_lists_the_codes_that_there_are_with_their_fields() -> None:
    assert {code: set(fields.split()) for code, (_, fields) in NOTICES.items()} == MADE


def test_a_reader_of_the_document_finds_each_code_and_field_and_that_more_may_come() -> None:
    schema: dict[str, Any] = create_app(Settings.for_demo()).openapi()["components"]["schemas"]["NoticeEvent"]
    *known, other = schema["properties"]["code"]["anyOf"]
    described = {entry["const"]: entry["description"] for entry in known}
    assert set(described) == set(MADE)
    for code, fields in MADE.items():
        assert all(field in described[code] for field in fields), code
    assert (other["type"], "ignore" in other["description"], "const" in other) == ("string", True, False)
    assert {*set().union(*MADE.values()), "type", "code", "message"} == set(schema["properties"])
    assert schema["required"] == ["type", "code", "message"]
    assert "additionalProperties" not in schema


def test_a_code_to_come_is_no_error_and_a_field_that_is_not_described_is_one() -> None:
    notice = {"type": "notice", "code": "news", "message": "x"}
    assert NoticeEvent.model_validate(notice).code == "news"
    with pytest.raises(ValueError, match="colour"):
        NoticeEvent.model_validate({**notice, "colour": "red"})
