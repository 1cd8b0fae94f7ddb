"""Made-up lengths of sentence pairs, spread as those of WMT are: what is measured without a corpus.

Source lengths are lognormal, and so is the length of a target relative to its source: a standard
deviation of about 22 %. Less of it would mean less padding than real text has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STD_LOG_LENGTH = 0.55
STD_LOG_RATIO = 0.22
LONGEST = 120

Lengths = npt.NDArray[np.int64]


def synthetic_lengths(
    random: np.random.Generator, n_pairs: int, mean_log: float
) -> tuple[Lengths, Lengths]:
    """The lengths of each source and of its target; `mean_log`: the mean of the logarithm."""
    src = random.lognormal(mean_log, STD_LOG_LENGTH, n_pairs)
    tgt = src * random.lognormal(0.0, STD_LOG_RATIO, n_pairs)
    src_lengths, tgt_lengths = (
        side.round().clip(1, LONGEST).astype(np.int64) for side in (src, tgt)
    )
    return src_lengths, tgt_lengths
