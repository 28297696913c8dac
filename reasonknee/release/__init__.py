"""A release: the only place that writes rows (`rows`), packs them (`shards`), and makes the folder around
them (`make`)."""

from reasonknee.release.make import Build, build
from reasonknee.release.rows import Options

__all__ = ["Build", "Options", "build"]
