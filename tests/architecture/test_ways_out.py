"""There are two ways out, the model's and the MCP servers', and no third: found in the code as Python reads it.

What can open a connection, start a program that could, or fetch what a text refers to is listed here by its full name,
under whatever name it was imported. Where one may stand is listed too, both ways: what is not used any more must go.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WHOLE_LIBRARIES = frozenset(
    (
        *("aiohttp", "requests", "urllib3", "httpx", "websockets", "websocket", "pycurl", "paramiko", "grpc", "h2"),
        *("urllib.request", "http.client", "ftplib", "smtplib", "imaplib", "poplib", "telnetlib", "nntplib", "xmlrpc"),
        *("subprocess", "multiprocessing", "webbrowser", "pty", "ctypes", "dns", "aiodns", "pycares", "socketserver"),
        *("httpcore2", "mcp.client.stdio", "mcp.client.websocket", "mcp.client.session_group"),
    )
)
"""Nothing of these is used; what stands in an annotation is no use."""

NAMES = frozenset(
    (
        *(f"httpx2.{name}" for name in ("AsyncClient", "Client", "AsyncHTTPTransport", "HTTPTransport")),
        *(
            f"httpx2.{name}"
            for name in ("get", "post", "put", "patch", "delete", "head", "options", "request", "stream")
        ),
        *(f"openai.{name}" for name in ("OpenAI", "AsyncOpenAI", "DefaultAioHttpClient", "DefaultAsyncHttpxClient")),
        *("openai.DefaultHttpxClient", "openai.AzureOpenAI", "openai.AsyncAzureOpenAI"),
        *("mcp.Client", "mcp.client.Client", "mcp.client.client.Client", "mcp.ClientSessionGroup", "mcp.stdio_client"),
        *("mcp.shared._httpx_utils.create_mcp_http_client", "mcp.StdioServerParameters"),
        *("socket.create_connection", "socket.socket", "socket.fromfd", "socket.socketpair", "socket.getaddrinfo"),
        *("socket.gethostbyname", "socket.gethostbyname_ex", "socket.gethostbyaddr", "socket.getnameinfo"),
        *("asyncio.open_connection", "asyncio.open_unix_connection", "asyncio.create_subprocess_exec"),
        *("asyncio.create_subprocess_shell", "anyio.connect_tcp", "anyio.connect_unix", "anyio.getaddrinfo"),
        *("anyio.create_udp_socket", "anyio.create_connected_udp_socket", "anyio.create_unix_datagram_socket"),
        *(
            "anyio.create_connected_unix_datagram_socket",
            "anyio.open_process",
            "anyio.run_process",
            "anyio.connect_tls",
        ),
        *("anyio.to_process.run_sync", "os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn"),
        *("importlib.import_module", "__import__", "exec", "eval", "jsonschema.validate", "jsonschema.RefResolver"),
        *("jsonschema.validators.validate", "jsonschema.validators.RefResolver"),
    )
)
PREFIXES = ("os.exec", "os.spawn")
METHODS = frozenset(
    (
        *("create_connection", "create_unix_connection", "create_datagram_endpoint", "subprocess_exec"),
        *("subprocess_shell", "sock_connect", "sock_sendto", "connect_ex", "start_tls"),
    )
)
"""Of an event loop or a socket, whatever that is called."""

NEEDS_KEYWORD = {
    "mcp.client.sse.sse_client": "httpx_client_factory",
    "mcp.client.streamable_http.streamable_http_client": "http_client",
    "mcp.client.streamable_http.streamablehttp_client": "httpx_client_factory",
    **{
        f"{place}.Draft{number}Validator": "registry"
        for place in ("jsonschema", "jsonschema.validators")
        for number in (3, 4, 6, 7, 201909, 202012)
    },
}
"""Without it, these open a client of their own, or fetch what a schema refers to."""

ONLY_SAID = ("Error", "Exception", "Timeout", "UnsupportedProtocol")
"""How the names of what is only raised and caught end."""

MAY: dict[str, frozenset[str]] = {
    "app/toolbox/egress.py": frozenset(("httpx2.AsyncClient",)),
    "app/toolbox/dialling.py": frozenset(
        (
            *("httpcore2.AnyIOBackend", "httpcore2.AsyncConnectionPool", "httpcore2.AsyncNetworkBackend"),
            *("httpcore2.AsyncNetworkStream", "httpcore2.Proxy", "httpcore2.Request", "httpcore2.URL"),
            *("socket.getaddrinfo", ".start_tls"),
        )
    ),
    "app/upstream/client.py": frozenset(
        (
            *("aiohttp.ClientSession", "aiohttp.TCPConnector", "aiohttp.DummyCookieJar"),
            *("openai.AsyncOpenAI", "openai.DefaultAioHttpClient"),
        )
    ),
    # Our own API, on loopback.
    "app/cli.py": frozenset(("httpx2.AsyncClient", "socket.getaddrinfo")),
}


def ways_out(source: str) -> set[str]:
    """List what a module uses that leads out, by full name; a method of something unknown as `.name`."""
    tree = ast.parse(source)
    known = dict(imported_names(tree))
    no_use = {id(inner) for node in ast.walk(tree) for outer in annotations(node) for inner in ast.walk(outer)}
    found = set[str]()
    guarded = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and is_guarded(node, known)}
    no_use |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}  # `a.b` of `a.b.c`
    for node in ast.walk(tree):
        if id(node) in no_use and not (isinstance(node, ast.Call) and is_by_name(node, known)):
            continue
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            found.add(f"{node.module}.*")
        name = full_name(node, known)
        if name is not None and (leads_out(name) or (name in NEEDS_KEYWORD and id(node) not in guarded)):
            found.add(name)
        elif isinstance(node, ast.Attribute) and node.attr in METHODS:
            found.add(f".{node.attr}")
        elif isinstance(node, ast.Call) and is_by_name(node, known):
            found.add("getattr")
    return found


def leads_out(name: str) -> bool:
    is_of_library = any(name == library or name.startswith(f"{library}.") for library in WHOLE_LIBRARIES)
    is_named = any(name == way or name.startswith(f"{way}.") for way in NAMES)
    return is_named or name.startswith(PREFIXES) or (is_of_library and not name.endswith(ONLY_SAID))


def is_guarded(call: ast.Call, known: dict[str, str]) -> bool:
    name = full_name(call.func, known)
    return name is not None and NEEDS_KEYWORD.get(name) in {keyword.arg for keyword in call.keywords}


def is_by_name(call: ast.Call, known: dict[str, str]) -> bool:
    """Tell whether something is taken out of a module by a name that is a value."""
    is_getattr = isinstance(call.func, ast.Name) and call.func.id in ("getattr", "vars")
    return is_getattr and bool(call.args) and full_name(call.args[0], known) is not None


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """List what a module calls what it imports, and what that is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def full_name(node: ast.AST, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id if node.id in NAMES else None)
    if isinstance(node, ast.Attribute):
        outer = full_name(node.value, known)
        return None if outer is None else f"{outer}.{node.attr}"
    return None


def annotations(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
        yield node.annotation
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
        yield node.returns


MODULES = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "app").rglob("*.py"))}


@pytest.mark.parametrize("name", MODULES)
def test_module_has_no_way_out_but_those_it_may_have(name: str) -> None:
    assert ways_out(MODULES[name].read_text()) == MAY.get(name, frozenset())


def test_modules_with_a_way_out_exist() -> None:
    assert set(MAY) <= set(MODULES)


LEAKS = [
    "import httpx2\nhttpx2.AsyncClient()",
    "import httpx2\nhttpx2.AsyncClient.get(c, 'https://a.example')",
    "import aiohttp\nhidden = aiohttp",
    "import httpx2 as h\nh.get('https://a.example')",
    "from httpx2 import AsyncClient as C\nasync def f():\n    async with C() as c: ...",
    "from httpx2 import AsyncClient\nmake = AsyncClient",
    "import httpx2\nclass Mine(httpx2.AsyncHTTPTransport): ...",
    "import httpcore2\npool = httpcore2.AsyncConnectionPool()",
    "from httpcore2 import AnyIOBackend\nAnyIOBackend()",
    "import aiohttp\naiohttp.ClientSession()",
    "from aiohttp import ClientSession\nf(ClientSession)",
    "from mcp import Client\nClient('https://a.example')",
    "import mcp\nmcp.Client('https://a.example')",
    "from mcp.client.sse import sse_client\nsse_client('https://a.example')",
    "from mcp.client import sse\nsse.sse_client('https://a.example', headers={})",
    "from mcp.client.streamable_http import streamable_http_client as s\ns('https://a.example')",
    "from mcp.client.stdio import stdio_client\nstdio_client(x)",
    "from mcp.shared._httpx_utils import create_mcp_http_client\ncreate_mcp_http_client()",
    "from urllib.request import urlopen\nurlopen('https://a.example')",
    "import urllib.request\nurllib.request.urlopen('https://a.example')",
    "def f():\n    import requests\n    requests.get('https://a.example')",
    "import http.client\nhttp.client.HTTPSConnection('a.example')",
    "import socket\nsocket.create_connection(('a.example', 443))",
    "from socket import create_connection\ncreate_connection(('a.example', 443))",
    "import socket\nsocket.socket().connect(('a.example', 443))",
    "import socket as s\ns.getaddrinfo('a.example', 443)",
    "import asyncio\nasync def f(): await asyncio.open_connection('a.example', 443)",
    "import asyncio\nasync def f(): await asyncio.get_running_loop().create_connection(x)",
    "async def f(loop): await loop.sock_connect(s, a)",
    "import anyio\nasync def f(): await anyio.connect_tcp('a.example', 443)",
    "from anyio import connect_tcp\nasync def f(): await connect_tcp('a.example', 443)",
    "import anyio\nasync def f(): await anyio.run_process('curl')",
    "import subprocess\nsubprocess.run(['curl'])",
    "import os\nos.system('curl')",
    "import os\nos.execvp('curl', [])",
    "import jsonschema\njsonschema.validate(1, {})",
    "from jsonschema import validate\nvalidate(1, {})",
    "from jsonschema import Draft202012Validator\nDraft202012Validator({})",
    "from jsonschema.validators import Draft7Validator as D\nD({}, format_checker=f)",
    "from openai import AsyncOpenAI\nAsyncOpenAI()",
    "import importlib\nimportlib.import_module('aio' + 'http')",
    "__import__('aiohttp')",
    "from aiohttp import *",
    "import httpx2\ngetattr(httpx2, 'Async' + 'Client')()",
    "from mcp.client.sse import sse_client\nopen_it = sse_client",
    "from functools import partial\nfrom jsonschema import Draft7Validator\npartial(Draft7Validator)({})",
]


@pytest.mark.parametrize("source", LEAKS)
def test_way_out_is_found_however_it_is_written(source: str) -> None:
    assert ways_out(source)


HARMLESS = [
    "import httpx2\ndef f(client: httpx2.AsyncClient) -> httpx2.AsyncClient: return client",
    "import httpx2\nclient: httpx2.AsyncClient | None = None",
    "import httpx2\nraise httpx2.ConnectError('x')",
    "from urllib.parse import urlsplit\nurlsplit('https://a.example')",
    "from mcp.client.sse import sse_client\nsse_client('https://a.example', httpx_client_factory=f)",
    "from mcp.client.streamable_http import streamable_http_client\nstreamable_http_client(u, http_client=c)",
    "from jsonschema import Draft202012Validator\nDraft202012Validator({}, registry=r)",
    "import socket\ndef f(listener: socket.socket): listener.close()",
    "import aiohttp\nexcept_these = (aiohttp.ClientError,)",
    "def f(x): return getattr(x, 'name')",
    "def get(url): ...\nget('https://a.example')",
]


@pytest.mark.parametrize("source", HARMLESS)
def test_what_leads_nowhere_is_not_found(source: str) -> None:
    assert ways_out(source) == set()
