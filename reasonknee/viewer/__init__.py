"""The viewer: rows, voxels and what models said of them, in a browser on this machine. See `server`."""

from reasonknee.viewer.open import view

__all__ = ["view"]
