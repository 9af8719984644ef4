"""The heart: ask, listen, act, repeat. Imports domain, anyio and the standard library."""
