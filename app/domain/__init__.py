"""The shared words: frozen data without I/O. Imports the standard library only."""
