import json
from pathlib import Path
from typing import Any

import pytest

from app.domain.secrets import Secret
from app.toolbox.headers import fault_of_headers
from app.toolbox.selection import servers_from_json

VECTORS: Any = json.loads((Path(__file__).parent / "vectors" / "headers.json").read_text())


def fault(pairs: list[tuple[str, str]]) -> str | None:
    return fault_of_headers({name: Secret(value) for name, value in pairs}, 32)


@pytest.mark.parametrize("row", VECTORS["entries"], ids=lambda row: f"{row['reason'][:40]}")
def test_one_header_is_judged_as_written(row: Any) -> None:
    told = fault([(row["name"], row["value"])])
    assert (told is None) == row["allowed"]
    if told is not None:
        assert told.endswith(".")
        assert told.isascii()
        assert "\n" not in told
        if len(row["value"]) > 3:
            assert row["value"] not in told


@pytest.mark.parametrize("row", VECTORS["sets"], ids=lambda row: row["reason"])
def test_a_set_of_headers_is_judged_as_written(row: Any) -> None:
    assert (fault(row["headers"]) is None) == row["allowed"]


@pytest.mark.parametrize("row", VECTORS["types"], ids=lambda row: row["reason"])
def test_only_objects_of_strings_become_headers(row: Any) -> None:
    entry = {"name": "Weather", "url": "https://mcp.example.com/", "headers": row["headers"]}
    servers, warnings = servers_from_json(json.dumps([entry]))
    assert bool(servers) == row["allowed"]
    assert bool(warnings) != row["allowed"]


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("X-Forwarded", False),
        ("X-Original-Forwarded-For", False),
        ("X-Auth-Request-Email", False),
        ("Content-Range", False),
        ("Metadata-Token", False),
        ("X-B3-TraceId", False),
        ("Toolferry_Hop", False),
        ("CF-Access-Client-Secret", True),
        ("Contentful-Token", True),
        ("X-Hostname", True),
        ("Proxied", True),
    ],
)
def test_names_of_the_same_kinds_are_told_apart(name: str, allowed: bool) -> None:
    assert (fault([(name, "v")]) is None) == allowed


def test_two_spellings_of_one_name_are_refused() -> None:
    assert fault([("X-Tenant-Id", "a"), ("X_Tenant_Id", "b")]) is not None


def test_the_number_of_headers_is_a_setting() -> None:
    headers = {"X-A": Secret("a"), "X-B": Secret("b")}
    assert fault_of_headers(headers, 1) is not None
    assert fault_of_headers(headers, 2) is None
