"""Toolferry: the MCP tool loop as a service. Rooms and their import rule are in ARCHITECTURE.md."""

__version__ = "0.1.0"
