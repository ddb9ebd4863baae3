"""What DDP itself measured of its communication, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceml.store.records import DdpStatistics, RankRecords


def ddp_facts(ranks: Sequence[RankRecords]) -> DdpStatistics | None:
    """The mean over the ranks that know; their models are the same."""
    known = [rank.ddp for rank in ranks if rank.ddp is not None]
    if not known:
        return None
    return DdpStatistics(
        communication_s=float(np.mean([each.communication_s for each in known])),
        overlap_s=float(np.mean([each.overlap_s for each in known])),
        gradient_bytes=known[0].gradient_bytes,
        buckets=known[0].buckets,
        has_hook=known[0].has_hook,
    )
