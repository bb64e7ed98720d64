"""The errors a user can cause or meet. Each message names what is wrong, where, and the remedy."""

import difflib
from collections.abc import Sequence


def nearest_name(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the known one that was probably meant, or all of them."""
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(known)}"


class FakePrefixError(Exception):
    """Base of all errors that are reported in one line instead of a traceback."""


class ConfigError(FakePrefixError):
    """A configuration value that cannot be used."""


class EngineError(FakePrefixError):
    """The engine could not be fetched, patched, built or did not pass its checks."""


class ModelError(FakePrefixError):
    """A model file that cannot be used, or a machine that cannot hold it."""


class TraceError(FakePrefixError):
    """A trace, a step or a history that cannot be used."""


class ServerError(FakePrefixError):
    """The server did not start, died, or answered something unusable."""


class RequestRefused(ServerError):
    """The server answered with an HTTP status other than 200.

    Attributes:
        status: the HTTP status code.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class MeasureError(FakePrefixError):
    """A measurement that cannot be made or cannot be trusted."""


class RunError(FakePrefixError):
    """A run folder that cannot be created, continued, sealed or read."""
