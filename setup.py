"""All of the package is declared in pyproject.toml, but for this: an index shows README.md away from its
repository, so links to files become links to the repository there, and pictures come from it."""

import re
from pathlib import Path

from setuptools import setup

HOME = "https://huggingface.co/datasets/rajpurkarlab/3DReasonKnee"


def for_an_index(page: str) -> str:
    page = re.sub(r"!\[([^]]*)\]\((?!https?:)([^)#]+)\)", rf"![\1]({HOME}/resolve/main/\2)", page)
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({HOME}/blob/main/\1)", page)


readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(long_description=for_an_index(readme), long_description_content_type="text/markdown")
