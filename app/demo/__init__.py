"""What `toolferry demo` needs: a scripted model endpoint and a real MCP server, and how events look in a terminal.

Imports domain, mcp, starlette and uvicorn.
"""
