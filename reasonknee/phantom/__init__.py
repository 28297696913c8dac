"""The synthetic cohort: knees whose lesions follow their grades, with the OAI-shaped sources that `construct`
would make them from.

`grades` decides what a knee has, `plan` where it lies, `paint` draws it; `cohort` writes the folder.
"""

from reasonknee.phantom.cohort import write_cohort

__all__ = ["write_cohort"]
