"""Answers of MCP servers that have no end: a head, and what is sent after it over and over."""

from typing import Final

from tests.fakes.hostile import as_chunk, head_of

STREAM: Final = "text/event-stream"


def event(data: bytes) -> bytes:
    return as_chunk(b"data: " + data + b"\n\n")


LOGGED: Final = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%b"}}'
CHANGED: Final = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
PING: Final = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
QUESTION: Final = (
    b'{"jsonrpc":"2.0","id":1,"method":"elicitation/create",'
    b'"params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}'
)
BLOCK: Final = as_chunk(b" " * 65536)

FLOODS: Final[dict[str, tuple[bytes, bytes]]] = {
    "a JSON body": (head_of(), BLOCK),
    "a JSON body of known size": (
        head_of("application/json", f"Content-Length: {10**10}", chunked=False),
        b" " * 65536,
    ),
    "a JSON body until the connection closes": (head_of(chunked=False), b" " * 65536),
    "an error's body": (head_of(status="500 Oops"), BLOCK),
    "a page": (head_of("text/html", status="404 Not Found"), BLOCK),
    "a challenge's body": (head_of("application/json", "WWW-Authenticate: Bearer", status="401 No"), BLOCK),
    "a redirect's body": (head_of("text/html", "Location: /mcp", status="307 There"), BLOCK),
    "an acknowledgement's body": (head_of(status="202 Accepted"), BLOCK),
    "one line of an event stream": (head_of(STREAM) + b"6\r\ndata: \r\n", BLOCK),
    "one event of many lines": (head_of(STREAM), as_chunk(b"data: x\n" * 8192)),
    "fields of one event": (head_of(STREAM), as_chunk(b"id: x\n" * 8192)),
    "comments": (head_of(STREAM), as_chunk(b": xxxxxx\n" * 8192)),
    "empty events": (head_of(STREAM), as_chunk(b"\n" * 65536)),
    "notices": (head_of(STREAM), event(LOGGED % (b"x" * 1000)) * 64),
    "header fields": (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 8192),
    "one header field": (b"HTTP/1.1 200 OK\r\nA: ", b"a" * 65536),
    "a status line": (b"HTTP/1.1 200 ", b"a" * 65536),
    "trailer fields": (head_of() + b"2\r\n{}\r\n0\r\n", b"A: b\r\n" * 8192),
    "chunks of one byte": (head_of(), as_chunk(b" ") * 8192),
    "chunks of one byte of an event stream": (head_of(STREAM), as_chunk(b":") * 8192),
    "provisional answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2048),
    "requests": (head_of(STREAM), event(PING) * 512),
    "requests to ask a person": (head_of(STREAM), event(QUESTION) * 512),
    "changes of its tools": (head_of(STREAM), event(CHANGED) * 512),
    "answers to others": (head_of(STREAM), event(b'{"jsonrpc":"2.0","id":9999,"result":{}}') * 512),
    "an extension of a chunk": (head_of() + b"2;", b"a" * 65536),
}
