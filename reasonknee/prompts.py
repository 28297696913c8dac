"""Every word sent to a model: another name of `reasonknee.questions.prompts`, for programs that import it
from here."""

from reasonknee.questions.prompts import SETTINGS, SYSTEM, WORDINGS, BoxForm, Shown, ask, wordings

__all__ = ["SETTINGS", "SYSTEM", "WORDINGS", "BoxForm", "Shown", "ask", "wordings"]
