"""The page on models names every fact with its values."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from app.upstream.catalogue import models_from_json
from app.upstream.quirks import Quirks
from app.upstream.schemas import SchemaDialect

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text()


def rows() -> dict[str, str]:
    """Read the tables of facts: name → values."""
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


@pytest.mark.parametrize("owner", [Quirks(), SchemaDialect()], ids=["quirks", "schema"])
def test_every_fact_is_on_the_page_with_its_values_the_default_first(owner: Quirks | SchemaDialect) -> None:
    hints = get_type_hints(type(owner))
    for fact in fields(owner):
        if fact.name in ("refused_tools", "schema"):
            continue
        values = rows()[camel(fact.name)]
        choices = get_args(hints[fact.name])
        if hints[fact.name] is bool:
            choices = (True, False)
        if choices and all(isinstance(choice, str | bool) for choice in choices):
            said = [str(choice).lower() if isinstance(choice, bool) else choice for choice in choices]
            assert set(re.findall(r"`(\w+)`", values)) == set(said), fact.name
            default = getattr(owner, fact.name)
            assert values.startswith(f"`{str(default).lower() if isinstance(default, bool) else default}`"), fact.name


def test_no_fact_is_on_the_page_that_is_not_there() -> None:
    known = {camel(fact.name) for owner in (Quirks, SchemaDialect) for fact in fields(owner)}
    assert {name for name in rows() if name not in known} == set()


def test_the_example_of_the_setting_can_be_read() -> None:
    example = re.search(r"```jsonc\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    (model,) = models_from_json(re.sub(r"\s//[^\n]*", "", example[1]))
    assert model.quirks["callIds"] == "nine"
