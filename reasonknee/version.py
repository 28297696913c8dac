"""The versions that a release records: of the code, of the layout that readers must understand, and of the
packages that its bytes depend on."""

from __future__ import annotations

VERSION = "0.1.0"
LAYOUT_VERSION = 3

_PACKAGES = ("pyarrow", "numpy", "nibabel", "h5py", "pydicom")  # that read sources, or write shards


def versions() -> dict[str, str]:
    """Of Python, and of the packages that are installed: the same cohort gives the same bytes with these."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    known = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            known[name] = version(name)
        except PackageNotFoundError:  # an extra
            continue
    return known
