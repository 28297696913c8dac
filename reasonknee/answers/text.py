"""What a model's text holds: where its answer stands, the JSON values in it, and the grades that its
sentences state. Standard library only.

Model text is untrusted and can be long, so each function here passes over its text once: no pattern can
backtrack over more than it has just read, nesting is bounded, and a JSON value that breaks is never read
again from its start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

LONGEST = 32_768  # characters that are read, from the end of the text: the answer comes last
_DEPTH = 64  # of nested JSON
# places where JSON may start, again the last ones; more than boxes frame by frame can need in the text that
# is read
_STARTS = 3_000

T = TypeVar("T")
Phrases = Mapping[
    str, list[tuple[tuple[str, ...], T]]
]  # by first word: the words and what they mean, longest first


class Pairs(list[tuple[str, Any]]):
    """A JSON object as written: its pairs in order, so that a key said twice is seen twice."""


class Span(NamedTuple):
    """A JSON object or list at text[start:end]; not `whole` if the text ends inside it."""

    value: Pairs | list[Any]
    start: int
    end: int
    whole: bool


@lru_cache(maxsize=1024)
def normal(key: str) -> str:
    """What is left of a name when case, spaces, underscores, hyphens and the like do not matter; nothing
    of what is too long for one."""
    return _NOT_PLAIN.sub("", key.casefold()) if len(key) <= 200 else ""


_NOT_PLAIN = re.compile("[^a-z0-9]+")


# --- where the answer stands --------------------------------------------------------------------------------

_THINKING = ("think", "thinking")
_ANSWER_TAG = re.compile("<answer>", re.IGNORECASE)
_ANSWER_END = re.compile("</answer>", re.IGNORECASE)
_FINAL = re.compile(
    r"\bfinal[ _-]?(?:diagnosis|answer|grades?|scores?)\b[ \t*_\"']{0,8}(?:[:=]|is\b)", re.IGNORECASE
)


def thinking_end(text: str) -> tuple[int, bool]:
    """Where the last thinking block ends (0 if there is none), and whether one was opened after that and
    never closed."""
    end = opened = 0
    for tag in _THINKING if _THINKING[0] in text else ():
        closing = text.rfind(f"</{tag}>")
        end = max(end, closing + len(tag) + 3 if closing >= 0 else 0)
        opened = max(opened, text.rfind(f"<{tag}>") + 1)
    return end, opened > end


def tagged_answer(text: str) -> tuple[int, int] | None:
    """The inside of the last answer tag that holds anything, closed or not; else that of the last
    \\boxed{}."""
    end = len(text)
    for tag in reversed(list(_ANSWER_TAG.finditer(text)) if "<" in text else []):
        closing = _ANSWER_END.search(text, tag.end(), end)
        inside = (tag.end(), closing.start() if closing else end)
        if text[slice(*inside)].strip():
            return inside
        end = tag.start()
    boxed = text.rfind("\\boxed{")
    if boxed < 0:
        return None
    closing_brace = text.rfind("}", boxed)
    return boxed + 7, closing_brace if closing_brace >= 0 else len(text)


def final_line(text: str) -> int | None:
    """Where the last "Final diagnosis:" or the like starts."""
    starts = (
        [match.start() for match in _FINAL.finditer(text)] if "final" in text.casefold() else []
    )  # a pattern without case is slow
    return starts[-1] if starts else None


# --- JSON ---------------------------------------------------------------------------------------------------

_SPACE = r"\s*(?://[^\n]{0,200}\n\s*)*"  # models comment their JSON
_BLANK = re.compile(_SPACE)
_TOKEN = re.compile(
    _SPACE + r"(?:([{\[])|([}\]])|([,:])"
    # unrolled, so that a string without an end fails in one pass
    r"|(\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*')"
    r"|([-+]?[A-Za-z0-9_.]+(?:[-+][0-9]+)?))",
    re.DOTALL,
)
_START = re.compile(r"\{(?=\s{0,99}(?:[\"']|[A-Za-z_][A-Za-z0-9_]{0,40}\s{0,9}:))|\[(?=\s{0,99}[-{0-9])")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_ATOMS = {"true": True, "false": False, "null": None, "none": None, "nan": float("nan")}


class _BrokenError(Exception):
    """Not JSON after all; args[0] is where that showed."""


def json_values(text: str) -> list[Span]:
    """The outermost objects and lists in the text, in order.

    Python's quotes, comments, bare keys and trailing commas are let pass.
    """
    values: list[Span] = []
    resume, plain = 0, True
    for start in [m.start() for m in _START.finditer(text)][-_STARTS:]:
        if start < resume:
            continue
        value = _plain_value_at(text, start) if plain else None
        plain = value is not None  # each refusal costs a pass over the text before it, so there is only one
        try:
            values.append(value or _value_at(text, start))
            resume = values[-1].end
        except _BrokenError as error:
            resume = error.args[0]
    return values


def _plain_value_at(text: str, start: int) -> Span | None:
    """Most answers are plain JSON, which the standard library reads several times faster; what it refuses
    is left to `_value_at`."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    shallow = text.count("{", start, end) + text.count("[", start, end) <= _DEPTH
    return Span(value, start, end, whole=True) if shallow else None


def _value_at(text: str, start: int) -> Span:
    outer: list[Pairs | list[Any]] = []
    keys: list[str | None] = []  # for each open container: the key that waits for its value
    pos, ready = start, True  # ready: a key or a value may come, no comma is missing
    while True:
        token = _TOKEN.match(text, pos)
        if token is None:
            return _cut_off(text, start, pos, outer)
        kind = token.lastindex or 0
        word, here, pos = token[kind], token.start(kind), token.end()
        in_object = bool(outer) and isinstance(outer[-1], Pairs)
        wants_key = in_object and keys[-1] is None
        if kind == 3:
            if word == ":" or ready or not outer:  # a colon is taken together with its key, below
                raise _BrokenError(here)
            ready = True
        elif kind == 2:
            if (word == "}") != in_object or (in_object and not wants_key):
                raise _BrokenError(here)
            value: Any = outer.pop()
            keys.pop()
            if not outer:
                return Span(value, start, pos, whole=True)
            ready = False
            keys[-1] = None
        elif not ready or (wants_key and kind == 1) or len(outer) >= _DEPTH:
            raise _BrokenError(here)
        elif wants_key:
            keys[-1] = _string(word) if kind == 4 else word
            colon = _TOKEN.match(text, pos)
            if colon is None or colon[3] != ":":
                return _cut_off(text, start, pos, outer)
            pos = colon.end()
        else:
            value = (
                (Pairs() if word == "{" else [])
                if kind == 1
                else _string(word)
                if kind == 4
                else _atom(word, here)
            )
            if outer:
                outer[-1].append((keys[-1], value) if in_object else value)  # type: ignore[arg-type]
            if kind == 1:
                outer.append(value)
                keys.append(None)
            else:
                keys[-1] = None
                ready = False


def _cut_off(text: str, start: int, pos: int, outer: list[Pairs | list[Any]]) -> Span:
    rest = _BLANK.match(text, pos)
    pos = rest.end() if rest else pos
    if pos < len(text) and (
        text[pos] not in "\"'" or _TOKEN.match(text, pos)
    ):  # a quote without its partner runs to the end of the text
        raise _BrokenError(pos)
    return Span(
        outer[0], start, len(text), whole=False
    )  # what is open hangs on what it is in: the outermost holds all that was read


def _string(token: str) -> str:
    body = token[1:-1]
    if "\\" not in body:
        return body
    if token[0] == "'":
        return body.replace("\\'", "'")
    try:
        decoded = json.loads(token, strict=False)
    except ValueError:  # an escape that JSON does not know
        return body
    return str(decoded)


def _atom(word: str, here: int) -> Any:
    if _NUMBER.fullmatch(word):
        return _number(word)
    if word.lower() in _ATOMS:
        return _ATOMS[word.lower()]
    if word.lower().lstrip("+-") in ("inf", "infinity"):
        return float(word)
    raise _BrokenError(here)


def _number(word: str) -> float:
    # a float has no limit on its digits and ends in infinity, where int() would refuse thousands of them
    return int(word) if len(word) < 16 and word.lstrip("+-").isdigit() else float(word)


_DECODER = json.JSONDecoder(object_pairs_hook=Pairs, parse_int=_number, strict=False)


# --- sentences ----------------------------------------------------------------------------------------------

_LIST_MARK = re.compile(r"^[ \t]{0,20}[0-9]{1,2}[.)][ \t]+(?=\S)", re.MULTILINE)
_HYPHEN = re.compile(
    r"-(?<=[^\W\d_]-)(?=[^\W\d_])"
)  # its literal first: a pattern that starts by looking back is tried at every character
_MARKUP = str.maketrans("_*`\"'#>−", "       -")


def _word_pattern(letter: str, sign: str) -> re.Pattern[str]:
    return re.compile(
        rf"{letter}+|[0-9]+(?:\.[0-9]+)?[{sign}]*|(?<![{sign}.)])-[0-9]+(?:\.[0-9]+)?[{sign}]*|[\S\n]"
    )


_WORD, _ASCII_WORD = (
    _word_pattern(r"[^\W\d_]", r"\w"),
    _word_pattern("[a-z]", "a-z0-9"),
)  # the second for plain text in ASCII, being faster
_PLAIN_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LINKS = _set(
    ": = ( - – — | is was are of as at a an the to grade graded score scored level class type category moaks "
    "equals lesion bml thus therefore"
) | {"\n"}
_SEPARATORS = _set(": = |")
_RANGES = _set("- – — to or and / | , &")
_UNITS = _set("% percent mm cm voxel voxels pixel pixels slice slices frame frames")
# "not grade 2", "larger than grade 2", "if the size is 2": mentioned, not stated
_DENIALS = _set(
    "not no nor never without than if whether unless versus vs instead exceed exceeds reach reaches below "
    "above"
)
_HYPOTHESES = _set("not would could might requires needs means")
_BREAKS = _set(". : ; , ( ) ! ?") | {"\n"}
_STOPS = _BREAKS | {"and", "|"}
# "slice number 45", "box size", "Kellgren-Lawrence grade": another number, size or grade
_FOREIGN = _set("slice frame image series box voxel pixel matrix volume kl lawrence icrs outerbridge")


_SENTENCE_END = re.compile(r"\.\s")


def words(text: str) -> list[str]:
    """Lower-case words, numbers, signs and line ends, without markup and without the numbers of a list."""
    return _cut(_plain(text))


def _cut(plain: str) -> list[str]:
    return (_ASCII_WORD if plain.isascii() else _WORD).findall(plain)


def _plain(text: str) -> str:
    text = _LIST_MARK.sub(" ", text).casefold().translate(_MARKUP)
    return _HYPHEN.sub(" ", text) if "-" in text else text


def _sentences(text: str) -> Iterator[str]:
    """The text in pieces, none of which a statement can leave: a full stop ends it, unless a bracket is
    open."""
    start = last = 0
    opened = False
    for stop in _SENTENCE_END.finditer(text):
        begins, ends = text.rfind("(", last, stop.start()), text.rfind(")", last, stop.start())
        opened = begins > ends if begins != ends else opened
        last = stop.end()
        if not opened:
            yield text[start:last]
            start = last
    yield text[start:]


class Grammar(NamedTuple):
    """How sentences may state the grades of a question."""

    names: Phrases[str]  # of its attributes
    meanings: Mapping[str, Phrases[int]]  # the grades of each attribute, in words
    hint: re.Pattern[str]  # found in each sentence that states a grade, and in few others


def grammar(names: Iterable[tuple[str, str]], meanings: Mapping[str, Iterable[tuple[str, int]]]) -> Grammar:
    named, meant = _phrases(names), {attribute: _phrases(given) for attribute, given in meanings.items()}
    return Grammar(named, meant, _hint(named, sorted({word for given in meant.values() for word in given})))


def _phrases(meanings: Iterable[tuple[str, T]]) -> Phrases[T]:
    by_first: dict[str, list[tuple[tuple[str, ...], T]]] = {}
    for text, meaning in meanings:
        if parts := tuple(words(text)):
            by_first.setdefault(parts[0], []).append((parts, meaning))
    for listed in by_first.values():
        listed.sort(key=lambda entry: -len(entry[0]))
    return by_first


def _hint(names: Phrases[str], values: Iterable[str]) -> re.Pattern[str]:
    """A name, at most eight links, then what may be a value.

    Gaps hold no line end and words no gap, so nothing is matched in two ways.
    """

    def whole(word: str) -> str:
        return re.escape(word) + (r"(?![^\W\d_])" if word.isalpha() else "")

    gap = r"[^\S\n]*"
    named = (
        whole(first)
        + "(?:"
        + "|".join("".join(gap + whole(word) for word in parts[1:]) for parts, _ in listed)
        + ")"
        for first, listed in names.items()
    )
    links = "|".join(whole(word) for word in sorted(_LINKS))
    ends = "|".join(["[0-9(-]", *map(whole, values)])
    return re.compile(f"(?:{'|'.join(named)})(?:{gap}(?:{links})){{0,8}}{gap}(?:{ends})")


def stated(text: str, known: Grammar) -> dict[str, set[float]]:
    """For each attribute, all values that sentences give it: its name, words that only link, then a
    number or the name of a grade."""
    values: dict[str, set[float]] = {}
    for sentence in _sentences(_plain(text)) if text.strip() else ():
        if known.hint.search(sentence):  # else it is not worth being cut into words
            _state(_cut(sentence), known.names, known.meanings, values)
    return values


def _state(
    tokens: list[str],
    names: Phrases[str],
    meanings: Mapping[str, Phrases[int]],
    values: dict[str, set[float]],
) -> None:
    after = 0
    for i in [place for place, token in enumerate(tokens) if token in names]:
        name = _phrase(tokens, i, names) if i >= after else None
        if name is None:
            continue
        attribute, after = name
        if not _only_mentioned(tokens, i):
            at, separated = _skip_links(tokens, after)
            # a word counts only between a separator and a stop: "no cyst is present" and "cyst: no image to
            # tell" do not say so
            meaning = _phrase(tokens, at, meanings[attribute]) if separated else None
            if meaning and meaning[1] < len(tokens) and tokens[meaning[1]] not in _STOPS:
                meaning = None
            given = {meaning[0]} if meaning else _numbers(tokens, at, meanings[attribute])
            if given:
                values.setdefault(attribute, set()).update(given)


def _phrase(tokens: list[str], i: int, known: Phrases[T]) -> tuple[T, int] | None:
    for parts, meaning in known.get(tokens[i], ()) if i < len(tokens) else ():
        if tuple(tokens[i : i + len(parts)]) == parts:
            return meaning, i + len(parts)
    return None


def _only_mentioned(tokens: list[str], i: int) -> bool:
    if i and tokens[i - 1] in _FOREIGN:
        return True
    for word in reversed(tokens[max(0, i - 3) : i]):
        if word in _BREAKS:
            return False
        if word in _DENIALS:
            return True
    return False


def _skip_links(tokens: list[str], i: int) -> tuple[int, bool]:
    separated = False
    for _ in range(8):
        if i >= len(tokens) or tokens[i] not in _LINKS:
            break
        if (
            tokens[i] == "(" and ")" in tokens[i : i + 12]
        ):  # "size (0-3): 2": what is in brackets explains the name
            closing = tokens.index(")", i)
            if tokens[closing + 1 : closing + 2] and tokens[closing + 1] in _SEPARATORS:
                i = closing
        separated = separated or tokens[i] in _SEPARATORS
        i += 1
    return i, separated


def _numbers(tokens: list[str], i: int, meanings: Phrases[int]) -> set[float]:
    """The grade at a place, or several if it says "1 or 2"; none if it is a measure such as "10-75 %"."""
    if i >= len(tokens) or not _PLAIN_NUMBER.fullmatch(tokens[i]):
        return set()
    values = {float(tokens[i])}
    after = [*tokens[i + 1 : i + 4], "", "", ""]
    if after[0] in _UNITS or after[0] in _HYPOTHESES or after[:2] == ["is", "not"]:
        return set()
    if after[0] in _RANGES and _PLAIN_NUMBER.fullmatch(after[1]):
        if after[2] in _UNITS:
            return values if after[0] == "," else set()
        if after[2] not in ("-", "–", "to"):  # else the range explains the grade: "2 - 33-66 %"
            values.add(float(after[1]))
    if after[0] == "(":
        remark = _phrase(tokens, i + 2, meanings)
        if remark and tokens[remark[1] : remark[1] + 1] == [
            ")"
        ]:  # "2 (small)" contradicts itself where small is 1
            values.add(remark[0])
    return values
