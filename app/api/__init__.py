"""The HTTP room, the only one that knows FastAPI. Imports ferry, journal and domain."""
