"""Commands: parse, call the pipeline, print. Torch is imported inside the commands, so that `--help` is quick.

Standard output has the answer (with `--json` one JSON object), standard error has progress and errors. Exit code 0: done;
1: failed; 2: wrong usage or input, with one line that says what was expected, what was given and what to type.
"""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import bayescade.cli.benchmarks
import bayescade.cli.models
import bayescade.cli.scans  # noqa: F401  (these three make the commands)
from bayescade import __version__
from bayescade.cli.app import app
from bayescade.errors import Failure, UserError

# Typer raises the usage errors of its command-line parser; this is their common base class, for every version of the parser.
_ParserError: Any = typer.BadParameter.__mro__[2]

INTERRUPTED = 130  # typer's exit code of an interruption


def _version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], prog_name="bayescade", standalone_mode=False) or 0
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return int(code)
    except UserError as error:
        return _fail(str(error), 2)
    except Failure as error:
        return _fail(str(error), 1)
    except _ParserError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "bayescade"
        return _fail(f"{error.format_message()} See: {command} --help", 2)
    except OSError as error:
        if _debugging():
            raise
        unusable = error.errno in (errno.EACCES, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
        return _fail(f"{error.filename}: cannot be used ({error.strerror})", 2 if unusable else 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted; no file was left half-written", 1)
    except Exception as error:
        if _debugging():
            raise
        return _fail(f"failed: {type(error).__name__}: {error} (BAYESCADE_DEBUG=1 shows where)", 1)


def _debugging() -> bool:
    return os.environ.get("BAYESCADE_DEBUG", "0") != "0"


def _fail(message: str, code: int) -> int:
    print(f"bayescade: {' '.join(message.split())}", file=sys.stderr)
    return code


def main() -> None:
    """Entry point of the command."""
    from bayescade.progress import show_progress

    show_progress()
    # A stop by a scheduler raises KeyboardInterrupt, like Ctrl-C, so that files are cleaned up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run())
