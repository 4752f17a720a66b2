"""Batches on their way to a GPU, beside its work: from pinned memory, by a stream of their own."""

from __future__ import annotations

from collections.abc import Generator

import torch

from byol.crops import sent
from byol.data.loader import Crops


def beside(batches: Generator[Crops, None, None], device: torch.device) -> Generator[Crops, None, None]:
    """The same batches on the device. Each is fetched while the GPU still works on the one before: whoever asks for it
    has only put that work into the GPU's queue, and the copy stands in another."""
    side = torch.cuda.Stream(device)
    try:
        while True:
            with torch.cuda.stream(side):
                batch = next(batches, None)
                if batch is None:
                    return
                crops = tuple(sent(crop, device) for crop in batch.crops)
                labels = None if batch.labels is None else sent(batch.labels, device)
            now = torch.cuda.current_stream(device)
            now.wait_stream(side)
            for tensor in (*crops, *([] if labels is None else [labels])):
                tensor.record_stream(now)  # its memory is not used again before the work that comes now is done
            yield batch._replace(crops=crops, labels=labels)
    finally:
        batches.close()
