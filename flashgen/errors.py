"""Every error that flashgen raises on purpose, and the exit code each one gives the command line.

FlashgenError                 1   anything below
├── SpecError                 2   the user asked for attention that flashgen does not write
├── UnknownGpu                2   a GPU name that is not in the data file; offers the closest ones
├── TunedConfigError          2   a YAML file that is malformed, or says something it must not
├── OutputError               2   a path that cannot be written, or must not be overwritten
├── NoUsableGpu               3   a GPU was required and none can be used
├── NoFeasibleConfig          4   nothing in the space fits, or every candidate fell
├── NotExact                  5   a kernel that is not exact attention
├── Drift                     6   a committed file that is no longer what flashgen would write
└── TemplateError             1   our own bug: a template that renders to something wrong

A candidate that fails is data, not an error: see outcome.Rejected.
"""


class FlashgenError(Exception):
    """Base of all; `exit_code` is what the command line exits with."""

    exit_code = 1


class SpecError(FlashgenError):
    exit_code = 2


class UnknownGpu(FlashgenError):
    exit_code = 2


class TunedConfigError(FlashgenError):
    exit_code = 2


class OutputError(FlashgenError):
    exit_code = 2


class NoUsableGpu(FlashgenError):
    exit_code = 3


class NoFeasibleConfig(FlashgenError):
    exit_code = 4


class NotExact(FlashgenError):
    exit_code = 5


class Drift(FlashgenError):
    exit_code = 6


class TemplateError(FlashgenError):
    exit_code = 1
