"""The second benchmark, SGMRI-VQA (arXiv 2604.15808): questions on slices and volumes of knee and brain MRI,
with boxes on frames, from fastMRI+. It shares the rooms above it and nothing that is bound to MOAKS.

`published` and `fastmri_plus` read sources, `derive` makes questions, `answers` reads a model's words,
`measures` and `scores` judge them; `phantom` writes a synthetic cohort.
"""

from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.records import Record, read_records
from reasonknee.sgmri.scores import score

__all__ = ["FrameBox", "Record", "read_records", "score"]
