"""The only room that knows chat completions. Imports domain, openai with httpx2 and aiohttp below it, msgspec."""
