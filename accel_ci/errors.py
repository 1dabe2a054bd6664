"""The errors that a user can fix.

Every error of the product that a person may cause or fix derives from `AccelCiError`; its text names the thing that is
wrong and says what to do next. The command line prints the text alone; Dagster steps fail with it as their description.
"""


class AccelCiError(Exception):
    """Something that the user can fix; the message says how."""


class ConfigError(AccelCiError):
    """The configuration file has mistakes; the message has one line for each."""


class SourceError(AccelCiError):
    """A source repository could not be read."""


class SourceChangedError(SourceError):
    """A working tree was changed while it was read."""


class BuildError(AccelCiError):
    """A wheel or a runtime image could not be made."""


class SelectionError(AccelCiError):
    """There is nothing to test, or what there is cannot be collected."""


class PoolError(AccelCiError):
    """The pool could not run its workers."""


class LedgerError(AccelCiError):
    """The account of a build does not balance."""
