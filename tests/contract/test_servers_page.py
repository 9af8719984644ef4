"""The page on MCP servers names every key of an entry, and only real settings."""

import re
from pathlib import Path

from app.api.schemas import ServerEntry
from app.settings import setting_names
from app.toolbox.selection import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()


def rows() -> dict[str, str]:
    """Read the table of keys: each key → what is said of it."""
    table = PAGE.split("## Entries")[1].split("## ")[0]
    found: dict[str, str] = {}
    for keys, text in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", table, re.MULTILINE):
        found.update(dict.fromkeys(re.findall(r"`(\w+)`", keys), text))
    return found


def test_every_key_of_an_entry_is_on_the_page() -> None:
    assert set(rows()) == KEYS


def test_keys_that_requests_do_not_take_are_marked() -> None:
    marked = {key for key, text in rows().items() if text.startswith("operator's:")}
    assert set(ServerEntry.model_fields) == KEYS - marked


def test_settings_on_the_page_exist() -> None:
    assert set(re.findall(r"`((?:MCP|TOOLFERRY)_[A-Z_]+)", PAGE)) - {"MCP_SERVERS"} <= setting_names()
