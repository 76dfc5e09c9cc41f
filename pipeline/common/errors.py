"""The one exception that becomes one line on the terminal and exit code 2."""


class InputError(ValueError):
    """What the user can mend. The message says what is wrong, what was found, and what to do."""
