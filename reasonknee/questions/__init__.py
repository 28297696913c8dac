"""What is asked: the one table of questions, and everything that is said about them. Standard library only;
all else is derived from it.

`table` has the questions, `lesions` the categories and grade spaces, `regions` the places in the knee;
`prompts` words a question for a model, `reasoning` derives steps from grades and box.
"""

from reasonknee.questions.lesions import CATEGORIES, Category
from reasonknee.questions.regions import REGIONS, Region
from reasonknee.questions.table import (
    ATTRIBUTES,
    DEFAULT_SET,
    QUESTION_SETS,
    QUESTIONS,
    Attribute,
    OaiVariable,
    Question,
    in_sections,
    question,
    question_set,
)

__all__ = [
    "ATTRIBUTES",
    "CATEGORIES",
    "DEFAULT_SET",
    "QUESTIONS",
    "QUESTION_SETS",
    "REGIONS",
    "Attribute",
    "Category",
    "OaiVariable",
    "Question",
    "Region",
    "in_sections",
    "question",
    "question_set",
]
