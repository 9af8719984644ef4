"""The shape of the code, held by tests: budgets, vendor names, doors to the outside, the architecture page."""

import ast
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "app").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]

MODULE_LINES = 400
FUNCTION_LINES = 50
LOOP_LINES = 60

VENDORS = re.compile(
    r"anthropic|claude|gemini|vertex|mistral|groq|deepseek|together\.ai|fireworks|cerebras|ollama|qwen|vllm|llama|"
    r"litellm|openrouter|azure|bedrock|hugging ?face|\bexa\b",
    re.IGNORECASE,
)
MAY_NAME_VENDORS = {
    "app/upstream/quirks.py",
    "app/settings.py",
    "app/toolbox/overlays.py",
    "app/toolbox/headers.py",  # the headers that some vendors' proxies take for an identity
}


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_module_is_within_its_budget(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= (LOOP_LINES if path.name == "loop.py" else MODULE_LINES)


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_every_function_is_within_its_budget(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_every_module_says_what_it_owns(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_vendors_are_named_only_where_their_facts_live(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if name not in MAY_NAME_VENDORS:
        found = VENDORS.search(path.read_text())
        assert found is None, found


def test_packages_hold_nothing_but_their_docstring() -> None:
    for path in MODULES:
        if path.name == "__init__.py" and path.parent.name != "app":
            assert len(ast.parse(path.read_text()).body) == 1, path


def test_only_two_modules_open_http_clients() -> None:
    """The model client and the MCP client are the two ways out; the terminal program asks our own API only."""
    client = re.compile(r"\bAsyncClient\(|AsyncOpenAI\(|HttpClient\(|aiohttp\.ClientSession\(|create_mcp_http_client\(")
    openers = {str(path.relative_to(ROOT)) for path in MODULES if client.search(path.read_text())}
    assert openers == {"app/upstream/client.py", "app/toolbox/egress.py", "app/cli.py"}


def test_architecture_page_names_only_files_that_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(r"```\n(app/.*?)```", page, re.DOTALL)
    assert block is not None
    missing = [name for name in paths_from_tree(block[1]) if not (ROOT / name).exists()]
    assert missing == []


def test_architecture_page_names_every_module() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(r"```\n(app/.*?)```", page, re.DOTALL)
    assert block is not None
    listed = set(paths_from_tree(block[1]))
    unlisted = [name for name in NAMES if not name.endswith("__init__.py") and name not in listed]
    assert unlisted == []


def test_architecture_page_is_short() -> None:
    assert (ROOT / "ARCHITECTURE.md").read_text().count("\n") <= 120


def paths_from_tree(tree: str) -> list[str]:
    """Read the indented tree: a folder's line ends its name with a slash, its files are indented below it."""
    paths: list[str] = []
    folders: list[tuple[int, str]] = []
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        while folders and folders[-1][0] >= indent:
            folders.pop()
        prefix = folders[-1][1] if folders else ""
        words = line.split()
        if words and words[0].endswith("/"):
            folders.append((indent, prefix + words[0]))
        else:
            names = itertools.takewhile(re.compile(r"[a-z_]+\.py").fullmatch, words)
            paths += [prefix + name for name in names]
    return paths
