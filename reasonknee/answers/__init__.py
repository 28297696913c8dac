"""A model's words: text to answer, answer to text. It also reads the answers of the published dataset."""

from reasonknee.answers.answer import Answer, Problem, Status, read, stated_grades, write
from reasonknee.answers.boxes import CONVENTIONS, EXAMPLES, read_box, write_box

__all__ = [
    "CONVENTIONS",
    "EXAMPLES",
    "Answer",
    "Problem",
    "Status",
    "read",
    "read_box",
    "stated_grades",
    "write",
    "write_box",
]
