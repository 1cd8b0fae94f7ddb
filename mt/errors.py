"""What the user, the data or the training did wrong; never a defect of `mt` itself.

The command line prints the message of an `MtError` without a traceback and exits with its code.
"""


class MtError(Exception):
    """A fault with a remedy: the message names what, where, required, found and what to do."""

    exit_code = 2


class ConfigError(MtError):
    """A config file, a `--set` or a combination of settings that cannot work."""


class DataError(MtError):
    """A corpus, input file or output place that cannot be used as it is."""


class CheckpointError(MtError):
    """A model folder, checkpoint or run directory that cannot be used as it is."""


class NonFiniteError(CheckpointError):
    """A model that gives nan or infinities where it should give probabilities."""


class TrainingDivergedError(MtError):
    """Training gave up: the loss or its gradient stopped being a number."""

    exit_code = 3


class RankLostError(MtError):
    """Another process of the same training has gone; this one has no fault, and could go on with a new one."""

    exit_code = 75  # as sysexits.h has it for what is worth trying again


class OtherRankFailedError(MtError):
    """Another process of the same training has said what is wrong: this one ends without a word."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code
