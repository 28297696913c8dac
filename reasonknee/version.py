"""The versions that a release records: of the code, and of the release layout that readers must understand."""

VERSION = "0.1.0"
LAYOUT_VERSION = 2
