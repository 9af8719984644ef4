"""The command line: `toolferry serve`, `demo` and `key`. A thin door on `main` and the HTTP API.

Exit codes: 0 done, or stopped by Ctrl-C or SIGTERM; 1 it could not work, or the demo's sample did not complete; 2 the
settings or the command are wrong; 130 stopped before it had begun.
"""

import argparse
import errno
import json
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from io import TextIOWrapper

import anyio
import httpx2

from app import __version__
from app.api.keys import entry_from_key, new_key
from app.demo.listen import open_demo_model, open_demo_server
from app.demo.servers import TOOL_NAMES
from app.demo.show import Screen, StreamEvent, event_from_text
from app.domain.spec import ServerSpec
from app.logs import configure_logging
from app.main import create_app, serve_app
from app.setting_types import SettingsError
from app.settings import Settings

_SAMPLE = "What time is it in Tokyo and Paris, roll two dice, count down from 3 and draw a chart of 3, 5, 8."
_NEXT_QUESTION = "Think, then roll 3d6 and draw a chart of the dice."
_DEMO_HOST = "127.0.0.1"
_DEMO_PORT = 8000
_PORTS_TRIED = 100
_SAMPLE_SECONDS = 60.0
_COLUMNS = 120  # where the output is no terminal
_LOOP = {"use_uvloop": find_spec("uvloop") is not None}


class _Refusal(Exception):
    """Ends the command with a line on stderr and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `arguments` are those of the process by default."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # no question may fail for an encoding that lacks a character
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.command(parsed)
    except _Refusal as refusal:
        return _complain(str(refusal), refusal.exit_code)
    except SettingsError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return 130
    except BaseExceptionGroup as group:
        if group.split(SystemExit)[1] is not None:
            raise
        return _complain("the service could not start; the log above says why", 1)  # uvicorn's way of saying so


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="toolferry", description="The MCP tool loop as a service.")
    parser.add_argument("--version", action="version", version=f"toolferry {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the service with the settings of the environment and .env")
    serve.add_argument("--host", help="address to listen on (default: HOST, else 127.0.0.1)")
    serve.add_argument("--port", type=_port, help="port to listen on, 0 for any free one (default: PORT, else 8000)")
    serve.add_argument("--demo-servers", action="store_true", help="add the demo's MCP server")
    serve.set_defaults(command=_serve)
    demo = commands.add_parser("demo", help="try everything on this machine: no key, no network, a scripted model")
    demo.add_argument("--once", action="store_true", help="end after the sample question; exit 0 if it completed")
    demo.add_argument("--port", type=_port, help="port of the service (default: 8000, or the next free one)")
    demo.set_defaults(command=_demo)
    key = commands.add_parser("key", help="make an API key and its entry of TOOLFERRY_API_KEYS")
    key.add_argument("name", metavar="NAME", help="whose key it is, as logs and limits know it")
    key.add_argument("--trusted", action="store_true", help="whoever has it may name end users, in X-End-User")
    key.set_defaults(command=_key)
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to 65535")
    return int(text)


def _complain(message: str, exit_code: int) -> int:
    print(f"toolferry: {message}", file=sys.stderr)
    return exit_code


def _serve(arguments: argparse.Namespace) -> int:
    chosen = {name: value for name in ("host", "port") if (value := getattr(arguments, name)) is not None}
    settings = Settings.read(**chosen)
    if not settings.has_upstream:
        raise _Refusal(
            "no model endpoint: set OPENAI_BASE_URL, OPENAI_API_KEY or both; `toolferry demo` needs neither",
            2,
        )
    one_time_key = new_key() if settings.is_in_need_of_a_key else None
    servers = settings.rooms(one_time_key=one_time_key).servers.environment
    configure_logging(settings.log_level, secrets=settings.secrets(servers))
    run = partial(_run_service, settings, demo=arguments.demo_servers, one_time_key=one_time_key)
    with _listener(settings.host, settings.port) as listener:
        anyio.run(partial(run, listener), backend_options=_LOOP)
    return 0


async def _run_service(settings: Settings, listener: socket.socket, *, demo: bool, one_time_key: str | None) -> None:
    async with AsyncExitStack() as opened:
        extra = [_demo_spec(await opened.enter_async_context(open_demo_server()))] if demo else []
        app = create_app(settings, extra_servers=extra, one_time_key=one_time_key)
        await serve_app(app, listener=listener, on_ready=partial(_tell_ready, one_time_key=one_time_key))


def _tell_ready(url: str, *, one_time_key: str | None) -> None:
    print(f"Toolferry listens on {url} (Ctrl-C stops it)", flush=True)
    if one_time_key is not None:
        print("No TOOLFERRY_API_KEYS are set, so this key was made, for as long as the service runs. Try it:\n")
        print(_curl_command(url, one_time_key, "What can you do?") + "\n", flush=True)


def _curl_command(service: str, key: str, question: str) -> str:
    body = json.dumps({"messages": [{"role": "user", "content": question}]})
    headers = f"-H 'authorization: Bearer {key}' -H 'content-type: application/json'"
    return f"curl -N {service}/v1/runs {headers} -d '{body}'"


def _key(arguments: argparse.Namespace) -> int:
    key = new_key()
    try:
        entry = entry_from_key(arguments.name, key, is_trusted=arguments.trusted)
    except ValueError as error:
        raise _Refusal(str(error), 2) from None
    print(f"The key, which is kept nowhere; give it to the caller:\n\n  {key}\n")
    print(f"Its entry of TOOLFERRY_API_KEYS, which separates entries by commas:\n\n  {entry}")
    return 0


def _demo_spec(url: str) -> ServerSpec:
    return ServerSpec(name="Demo", url=url, trust="operator")


def _demo(arguments: argparse.Namespace) -> int:
    # The HTTP libraries read these by themselves, and nothing here leaves loopback.
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("SSL_CERT_")]:
        del os.environ[name]
    configure_logging("warning")
    with _listener(_DEMO_HOST, arguments.port) if arguments.port is not None else _next_free_listener() as listener:
        return anyio.run(partial(_run_demo, listener, once=arguments.once), backend_options=_LOOP)


async def _run_demo(listener: socket.socket, *, once: bool) -> int:
    """Run all parts until Ctrl-C, or until the sample has ended; returns the exit code."""
    screen = Screen(shutil.get_terminal_size((_COLUMNS, 0)).columns, colour=_has_colours())
    urls: list[str] = []
    ready, stop = anyio.Event(), anyio.Event()
    completed = False

    def note_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    async with open_demo_model() as model_url, open_demo_server() as tools_url:
        key, settings = new_key(), Settings.for_demo(openai_base_url=model_url)
        app = create_app(settings, extra_servers=[_demo_spec(tools_url)], one_time_key=key)
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await serve_app(app, listener=listener, on_ready=note_ready, stop=stop)
                tasks.cancel_scope.cancel()  # stopped by a signal: the sample, if it still runs, has no service

            tasks.start_soon(serve)
            await ready.wait()
            try:
                print(_header(screen, service=urls[0], model=model_url, tools=tools_url), flush=True)
                completed = await _run_sample(screen, urls[0], key)
                if not once and not stop.is_set():
                    print(_invitation(screen, urls[0], key), flush=True)
            except BrokenPipeError:
                # Nobody reads any more (`| head`), and the flush at the exit must not fail for it either.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                once = True
            if once:
                stop.set()
    return 0 if completed or not once else 1


def _header(screen: Screen, *, service: str, model: str, tools: str) -> str:
    rows = (
        ("service", service, "Toolferry itself: POST /v1/runs"),
        ("model", model, "scripted: plain rules, not a language model"),
        ("tools", tools, "a real MCP server: " + ", ".join(TOOL_NAMES)),
    )
    listed = "\n".join(f"  {screen.paint(f'{name:<8}', 1)} {url:<28} {about}" for name, url, about in rows)
    title = screen.paint("Toolferry demo", 1) + ": no key, no network, everything runs on this machine."
    return f"{title}\n\n{listed}\n\nSample question: {screen.paint(_SAMPLE, 1)}\nIts events, shortened:\n"


def _invitation(screen: Screen, service: str, key: str) -> str:
    command = screen.paint(_curl_command(service, key, _NEXT_QUESTION), 1)
    return f"Still serving; Ctrl-C stops it. Ask something yourself:\n\n{command}\n"


async def _run_sample(screen: Screen, service: str, key: str) -> bool:
    """Ask the sample question over HTTP and print each event as it comes; tells whether the run completed."""
    last = StreamEvent("", "", {})
    try:
        with anyio.fail_after(_SAMPLE_SECONDS):
            async with httpx2.AsyncClient(timeout=None, headers={"Authorization": f"Bearer {key}"}) as client:
                body = {"messages": [{"role": "user", "content": _SAMPLE}]}
                async with client.stream("POST", f"{service}/v1/runs", json=body) as response:
                    if response.status_code != 200:
                        await response.aread()
                        print(f"The service answered {response.status_code}: {response.text}", flush=True)
                        return False
                    async for frame in httpx2.EventSource(response, max_event_size=None):
                        if frame.data:  # a frame without is the stream's opening `retry:`
                            last = event_from_text(frame.id, frame.event, frame.data)
                            print(screen.show(last), end="", flush=True)
    except (httpx2.HTTPError, TimeoutError) as error:
        print(f"{screen.end()}The stream broke off: {error or type(error).__name__}")
    completed = last.data.get("status") == "finished" and last.data.get("outcome") == "completed"
    end = screen.paint("Completed.", 32) if completed else screen.paint("The sample did not complete.", 31)
    print(f"{screen.end()}\n{end}\n", flush=True)
    return completed


def _has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _listener(host: str, port: int) -> socket.socket:
    """Bind and listen at once, so that nobody else gets the port before the service is up.

    Raises:
        _Refusal: The address is taken, not ours, or no address at all.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        families = [entry[0] for entry in found]
        family = socket.AF_INET if socket.AF_INET in families else families[0]  # `localhost` is both; people type 127.…
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "the port is in use; choose another with --port" if in_use else str(error)
        raise _Refusal(f"cannot listen on {host}, port {port}: {reason}", 1) from None


def _next_free_listener() -> socket.socket:
    for port in range(_DEMO_PORT, _DEMO_PORT + _PORTS_TRIED):
        try:
            return _listener(_DEMO_HOST, port)
        except _Refusal:
            continue
    return _listener(_DEMO_HOST, 0)
