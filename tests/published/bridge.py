# pyright: basic, reportMissingImports=false
"""Serve a stdio MCP server over HTTP, with FastMCP's proxy, which answers a client in the era that it speaks.

usage: bridge.py PORT http|sse COMMAND [ARGUMENT ...]

Runs in the environment of `fastmcp.txt`, not in ours.
"""

import sys

from fastmcp.server import create_proxy

port, transport, command, *arguments = sys.argv[1:]
create_proxy({"mcpServers": {"bridged": {"command": command, "args": arguments}}}, name="bridge").run(
    transport=transport, host="127.0.0.1", port=int(port), show_banner=False, log_level="warning"
)
