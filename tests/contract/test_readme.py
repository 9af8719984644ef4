"""The README's commands are the ones that CI and newcomers run, and what it names is there."""

import re
import tomllib
from pathlib import Path

from app.main import create_app
from app.settings import Settings, setting_names

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def marked(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```sh\n(.*?)\n```\n<!-- /{name} -->", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_both_commands_stand_in_the_readme() -> None:
    install = "python3 -m venv .venv && .venv/bin/pip install -e"
    assert marked("demo command") == f"{install} . && .venv/bin/toolferry demo"
    assert marked("test command") == f"{install} '.[dev]' && .venv/bin/pytest"


def test_ci_takes_the_test_command_from_the_readme() -> None:
    assert "test command -->" in (ROOT / ".ci" / "run").read_text()


def test_routes_in_the_readme_are_the_routes_there_are() -> None:
    document = create_app(Settings.for_demo()).openapi()
    routes = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    written = re.findall(r"`((?:GET|POST|DELETE) /[^` ]*)`", README)
    named = {route.replace("{id}", "{run_id}").replace("{inputId}", "{input_id}") for route in written}
    assert routes | {"GET /openapi.json"} == named


def test_settings_in_the_readme_exist() -> None:
    named = set(re.findall(r"`((?:TOOLFERRY|MCP|OPENAI|USE)_[A-Z_]+)(?:=[a-z]+)?`", README))
    assert named
    assert named <= setting_names()


def test_files_that_the_readme_links_to_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_request_fields_in_the_readme_are_all_that_there_are() -> None:
    fields = create_app(Settings.for_demo()).openapi()["components"]["schemas"]["RunRequest"]["properties"]
    table = README.split("| field | what |")[1].split("\n\n")[0]
    missing = [name for name in fields if f"`{name}`" not in table]
    assert missing == []


def test_fields_of_an_input_in_the_readme_are_all_that_there_are() -> None:
    fields = create_app(Settings.for_demo()).openapi()["components"]["schemas"]["InputRequest"]["properties"]
    table = README.split("### Asking a person")[1].split("| field | what |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [
        *("action", "arguments", "remember", "reason", "content")
    ]
    assert set(fields) == {"action", "arguments", "remember", "reason", "content"}


def test_container_list_pins_every_dependency_by_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=]", dependency)[0] for dependency in project["dependencies"]}
    pinned = (ROOT / "docker" / "requirements.txt").read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", pinned) if entry and not entry.startswith("#")]
    assert wanted <= {entry.split("==")[0] for entry in entries}
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in pinned
