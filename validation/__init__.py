"""The checks of a release, each with a stable code.

Reads the release alone and shares no code with what makes rows.
"""

from reasonknee.validation.run import validate

__all__ = ["validate"]
