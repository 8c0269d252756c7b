"""The errors that are told in one line: what the user can mend, and what failed under way."""


class UserError(ValueError):
    """Wrong input: one line that says what was expected, what came, and what to type.

    The command line prints the line and exits with code 2; in Python it is an ordinary `ValueError`.
    """


class Failure(RuntimeError):
    """Something that went wrong under way though the input was right: one line that says what, and what is left.

    The command line prints the line and exits with code 1; in Python it is an ordinary `RuntimeError`.
    """
