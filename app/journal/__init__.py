"""The record of runs: append, tail, cancel, snapshot. Imports domain and anyio."""
