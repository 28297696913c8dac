"""The last object of an answer by its schema, with xgrammar: reasoning stays free, the answer does not.

A model writes as it likes; when it has ended, or its tokens are used up, it goes on with one JSON object of
which every token fits the schema of the question's answer.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from reasonknee.errors import UsageError
from reasonknee.layout.records import answer_schema
from reasonknee.questions import QUESTIONS, Question


class Grammar:
    """Compiled schemas for one tokenizer."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        try:
            import xgrammar
        except ImportError:
            raise UsageError(
                "N054", "--grammar needs xgrammar", "pip install 'reasonknee[grammar]'"
            ) from None
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
        self._compiler = xgrammar.GrammarCompiler(info)
        self._compiled = lru_cache(maxsize=128)(self._compile)

    def _compile(self, question_id: str) -> Any:
        schema = json.dumps(answer_schema(QUESTIONS[question_id]))
        return self._compiler.compile_json_schema(schema, any_whitespace=False)

    def processor(self, question: Question) -> Any:
        """For `generate`: forbids every token that leaves the schema. Good for one answer."""
        from xgrammar.contrib.hf import LogitsProcessor

        return LogitsProcessor(self._compiled(question.id))
