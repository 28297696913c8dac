"""3DReasonKnee: build, check, load, stream and score 3D grounded reasoning on knee MRI.

Importing this package is cheap on purpose: torch, datasets and nibabel are imported by the modules that need them.
"""

from reasonknee.version import VERSION

__version__ = VERSION
