"""The only room that knows chat completions. Imports domain, openai and msgspec."""
