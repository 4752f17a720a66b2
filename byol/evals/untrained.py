"""Results of networks before training, kept for all runs of the same shape: scored once for a data set and protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from byol import __version__
from byol.errors import ByolError, DiskError
from byol.evals import record
from byol.evals.record import EvaluationRecord
from byol.run.files import followed, user_cache
from byol.run.record import encode

NEEDLESS = ("supervised",)  # protocols that begin with an untrained network anyway


class Known:
    """The untrained network's result for the protocol, data, settings and shape that the result `own` is of."""

    def __init__(self, own: EvaluationRecord, seeds: Sequence[int], cache: str | Path | None) -> None:
        self.own = own
        network = (own.encoder.network, own.encoder.resolution, own.machine)
        parts = [__version__, own.protocol, encode(own.spec), network, own.data.checksums, list(seeds)]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
        self.path = followed(Path(cache) / "untrained" if cache else user_cache("untrained")) / f"{digest}.json"

    def read(self) -> EvaluationRecord | None:
        """None: it was never computed, or the file is damaged."""
        with suppress(DiskError):
            found = record.read(self.path)
            if (
                found.encoder.untrained
                and found.protocol == self.own.protocol
                and found.test.keys() == self.own.test.keys()
            ):
                return found
        return None

    def write(self, result: EvaluationRecord) -> EvaluationRecord:
        """Keeps a result; a cache that cannot be written is no reason to stop."""
        with suppress(ByolError, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            record.write(self.path, result)
        return result
