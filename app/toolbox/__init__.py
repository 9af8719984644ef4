"""The only room that knows MCP. Imports domain, mcp, httpx2, httpcore2, anyio, msgspec and cachetools."""
