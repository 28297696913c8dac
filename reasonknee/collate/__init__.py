"""Rows in, batches of tensors out, on the device that wants them. See `collator` and `loading`."""

from reasonknee.collate.batch import IGNORED, Batch
from reasonknee.collate.collator import Collator, completion, frames
from reasonknee.collate.intensity import percentile_window
from reasonknee.collate.loading import Loader, bucket_by_shape, loader

__all__ = [
    "IGNORED",
    "Batch",
    "Collator",
    "Loader",
    "bucket_by_shape",
    "completion",
    "frames",
    "loader",
    "percentile_window",
]
