"""The exceptions of hetal. Every message says what happened and what to do next."""

import warnings


class HetalError(Exception):
    """Any error of hetal."""


class InvalidInput(HetalError, ValueError):
    """Rows, labels or a parameter cannot be used."""


class ServerUnreachable(HetalError, ConnectionError):
    """The server cannot be reached, or was lost. The same call continues."""


class AuthenticationFailed(HetalError):
    """The server does not accept the token or certificate, or none was given."""


class ServerRefused(HetalError):
    """The server refused a request: a limit, a parameter set, a job that it does not know."""


class ServerMisbehaved(HetalError):
    """The server sent what no honest server sends. Do not trust it."""


class JobFailed(HetalError):
    """The job failed or was cancelled on the server. The same call starts a new one."""


class RangeExceeded(HetalError, ValueError):
    """Values left the range that the encrypted circuit covers."""


class KeyMismatch(HetalError):
    """The secret key or its passphrase is missing or another one."""


class ProjectError(HetalError):
    """The project folder cannot be used as asked."""


class ProjectInUse(ProjectError):
    """Another process uses the project folder."""


class StorageError(HetalError, OSError):
    """A file cannot be read or written: a full disk, or missing permissions."""


class NotEnoughMemory(HetalError, MemoryError):
    """This machine has too little memory for a server of its own."""


class ExtractionFailed(HetalError):
    """Features cannot be computed, or the program ``hetal-extract`` is missing."""


class InternalError(HetalError):
    """A defect of hetal. Please report it."""


class PrivateModelWarning(UserWarning):
    """A file holds decrypted weights, which must not be published."""


class UntrustedServerWarning(UserWarning):
    """The weights are not those of the same training without encryption."""


# Every training says it, not only the first one of a line of code. Filters of the user come first.
warnings.simplefilter("always", UntrustedServerWarning, append=True)

__all__ = [name for name, value in dict(globals()).items() if isinstance(value, type)]
