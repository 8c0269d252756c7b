"""Errors with a one-line message: wrong input, and failures during the work."""


class UserError(ValueError):
    """Wrong input: one line that says what was expected, what was given, and what to type.

    The command line prints the line and exits with code 2; in Python it is an ordinary `ValueError`.
    """


class Failure(RuntimeError):
    """A failure although the input was right: one line that says what failed, and what is saved.

    The command line prints the line and exits with code 1; in Python it is an ordinary `RuntimeError`.
    """
