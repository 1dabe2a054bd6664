"""The errors that a user can fix.

Every error that a user may cause or fix derives from `AccelCiError`. Its message names what is wrong and what to do next.
The command line prints only the message; Dagster steps fail with it as their description.
"""


class AccelCiError(Exception):
    """An error that the user can fix; the message explains how."""


class DamagedError(AccelCiError):
    """A file of the data folder is damaged; of an earlier build, it is passed over."""


class ConfigError(AccelCiError):
    """The configuration file has mistakes; the message has one line for each."""


class SourceError(AccelCiError):
    """A source repository could not be read."""


class MissingRefError(SourceError):
    """A repository does not have a ref."""


class SourceChangedError(SourceError):
    """A working tree was changed while it was read."""


class BuildError(AccelCiError):
    """A wheel or a runtime image could not be built."""


class SelectionError(AccelCiError):
    """There is nothing to test, or the tests cannot be collected."""


class PoolError(AccelCiError):
    """The pool could not run its workers."""


class LedgerError(AccelCiError):
    """The verdicts of a build do not add up to its expected tests."""
