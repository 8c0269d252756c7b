"""One file per command, callable from Python."""
