"""A source folder: annotations, which say what is known of each volume, and the scans that belong to them."""

from reasonknee.cohort.annotations import Annotation, Provenance, Reading
from reasonknee.cohort.folder import Cohort, Entry

__all__ = ["Annotation", "Cohort", "Entry", "Provenance", "Reading"]
