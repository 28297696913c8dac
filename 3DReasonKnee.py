"""The `datasets` loading script of 3DReasonKnee: re-exports the builder of the `reasonknee` package.

On datasets 3.6: load_dataset("3DReasonKnee.py", "cropped", data_dir="cohort", trust_remote_code=True). Later
versions run no scripts; there the class itself is used (`from reasonknee.builder import ReasonKnee`), and a
release needs neither. Never part of a release.
"""

from reasonknee.builder import ReasonKnee, ReasonKneeConfig

__all__ = ["ReasonKnee", "ReasonKneeConfig"]
