"""No requirement without a test, no story without a requirement."""

import ast
from pathlib import Path

from tests.stories.requirements import REQUIREMENTS


def proofs() -> dict[str, list[str]]:
    """Read which requirements each story says it proves."""
    found: dict[str, list[str]] = {}
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                calls = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
                named = [mark for mark in calls if isinstance(mark.func, ast.Name) and mark.func.id == "proves"]
                ids = [arg.value for mark in named for arg in mark.args if isinstance(arg, ast.Constant)]
                found[f"{path.stem}::{node.name}"] = [str(id_) for id_ in ids]
    return found


def test_every_requirement_is_proved_by_a_story() -> None:
    proved = {id_ for ids in proofs().values() for id_ in ids}
    assert {requirement.id for requirement in REQUIREMENTS} - proved == set()


def test_every_story_proves_a_requirement() -> None:
    stories = {name: ids for name, ids in proofs().items() if not name.startswith("test_requirements::")}
    assert [name for name, ids in stories.items() if not ids] == []


def test_ids_are_distinct() -> None:
    assert len({requirement.id for requirement in REQUIREMENTS}) == len(REQUIREMENTS)
