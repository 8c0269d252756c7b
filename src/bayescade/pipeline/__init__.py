"""One file per verb: what the commands do, callable from Python."""
