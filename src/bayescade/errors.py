"""The one error that is the user's to mend."""


class UserError(ValueError):
    """Wrong input: one line that says what was expected, what came, and what to type.

    The command line prints the line and exits with code 2; in Python it is an ordinary `ValueError`.
    """
