"""What `toolferry demo` needs: a scripted model endpoint and a real MCP server. Imports domain, mcp and starlette."""
