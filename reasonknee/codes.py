"""Every error code with what happened, why and what to do, read from the calls that raise it: the table in
docs/errors.md cannot say anything else than the code does."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import reasonknee.schema
import reasonknee.validation
from reasonknee.validation.findings import CHECKS

CODE = re.compile(r"[A-Z][0-9]{3}")
WHY = {
    "UsageError": "wrong usage (2)",
    "DataError": "bad data (3)",
    "StorageError": "input or output (4)",
    "LockedError": "held by another (5)",
    "Problem": "a model's words",
    "Failure": "a server's answer",
    "note": "an odd source",
}
ROOMS = {
    "A": "annotations",
    "B": "boxes",
    "C": "configs",
    "D": "the stream",
    "E": "embeddings",
    "F": "the phantom",
    "G": "batches",
    "H": "looking and reviewing",
    "I": "the command, and the machine",
    "J": "construction",
    "K": "a cohort folder",
    "L": "looking a row up",
    "M": "manifests and repositories",
    "N": "models",
    "O": "scores, compared and reported",
    "P": "ids",
    "Q": "questions",
    "R": "building a release",
    "S": "scoring",
    "T": "texts and tables",
    "U": "publishing",
    "V": "volumes",
    "W": "a model's words",
    "X": "checks of a release",
    "Y": "DICOM",
    "Z": "SGMRI-VQA",
}
# What helps where nothing stops: the message itself has no hint.
NOTHING_STOPS = {
    "Problem": "nothing: it is counted; `reasonknee parse` shows how a text is read",
    "Failure": "nothing: it stands in the journal, and the next run asks again",
    "note": "nothing: it is counted in the report; or mend the source",
}
# What no single call says: codes that are chosen, handed on or printed.
SPECIAL = {
    "A010": (
        "a line of a review is not of its form",
        "DataError",
        "a line that `reasonknee view` writes is wanted",
    ),
    "I001": ("the command cannot be called like this", "UsageError", "`--help` shows how it is called"),
    "D007": ("an option of a stream is no number, or too small", "UsageError", "a whole number is wanted"),
    "D031": ("a file of the release cannot be read", "DataError", "damaged: copy or download it again"),
    "D032": (
        "a source cannot be opened",
        "StorageError",
        "check the name, the token and the network",
    ),
    "J013": ("a mask holds labels that its labeling does not know", "DataError", "name them: --label-map"),
    "M008": ("an index is not of its form", "DataError", "it is damaged: copy or download it again"),
    "N046": ("a server refused a request or its pictures", "Failure", NOTHING_STOPS["Failure"]),
    "N048": ("a question was not asked before the run ended", "Failure", "run the same command again"),
    "O004": ("a file of scores is not of its form", "DataError", "another version wrote it: score again"),
    "O005": (
        "a file of scores cannot be read",
        "StorageError",
        "`reasonknee score --out` writes it",
    ),
    "R020": (
        "a shard cannot be read",
        "DataError",
        "is the release whole? `reasonknee validate` tells",
    ),
    "T000": ("the system could not read the file", "StorageError", "check the path and its permissions"),
    "Z005": (
        "a list of names cannot be read",
        "DataError",
        "a text file with one name a line is wanted",
    ),
    "V015": (
        "a volume does not look like a scan: labels, next to nothing, or constant in most slices",
        "DataError",
        "is it a mask, or damaged? a scan that looks so is taken by `--accept` with its volume id",
    ),
    "X000": ("the system could not read the file", "StorageError", "check the disk and the permissions"),
    "G067": ("an option of a loader is no number, or too small", "UsageError", "a whole number is wanted"),
    "I000": (
        "the system said why it could not read or write",
        "StorageError",
        "make room, mend the path or the permissions",
    ),
    "I002": ("a path is not UTF-8", "UsageError", "rename the file or folder"),
    "N030": (
        "another process is asking into the same folder",
        "LockedError",
        "wait for it, or choose another folder",
    ),
    "N044": ("a server answers 429: too many requests", "Failure", "ask with fewer at once, or wait"),
    "R002": (
        "another process is building into the same folder",
        "LockedError",
        "wait for it, or choose another folder",
    ),
    "S055": (
        "a mask holds other labels than those of the regions",
        "DataError",
        "masks of regions are wanted, as `regions` and `import-nnunet` write them",
    ),
}


class Entry(NamedTuple):
    """A code, and one place that raises it."""

    code: str
    happened: str
    why: str
    remedy: str


def _sources() -> Iterator[Path]:
    for folder in (
        Path(__file__).parent,
        *map(Path, (*reasonknee.schema.__path__, *reasonknee.validation.__path__)),
    ):
        yield from sorted(folder.rglob("*.py"))


Names = dict[str, ast.expr]
# Fields whose names in the code say nothing to a reader.
PLAIN = {"__name__": "type", "strerror": "the system's words", "error": "the reason", "self": "it"}


def _blank(name: str) -> str:
    """What is filled in, in angle brackets."""
    return f"<{PLAIN.get(name) or name.strip('_').replace('_', ' ').lower()}>"


def _words(node: ast.expr | None, names: Names, deep: int = 3) -> str:
    """A message as a reader would know it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part, names, deep) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        constants = {name: value for name, value in names.items() if name.isupper()}
        return _words(node.value, constants, deep)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _words(node.left, names, deep) + _words(node.right, names, deep)
    if isinstance(node, ast.IfExp):
        either = [_words(node.body, names, deep), _words(node.orelse, names, deep)]
        return ", or ".join(words for words in either if words)
    if isinstance(node, ast.Tuple | ast.List) and len(node.elts) < 12:
        return ", ".join(_words(one, names, deep) for one in node.elts)
    if isinstance(node, ast.Name) and node.id in names and deep:
        return _words(names[node.id], names, deep - 1)
    if isinstance(node, ast.Name):
        return _blank(node.id)
    if isinstance(node, ast.Attribute):
        return _blank(node.attr)
    if isinstance(node, ast.Subscript | ast.Starred):
        return _words(node.value, {}, deep)
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called == "near":
            return ""  # a name that was probably meant, and is not always there
        if called == "len":
            return "<number>"
        if called.endswith(".join") and node.args:
            return _words(node.args[0], names, deep)
        if called.endswith("counted") and len(node.args) == 2:
            return f"<number> {_words(node.args[1], names, deep)}s"
        if node.args:
            return _words(node.args[0], {}, deep)
        if isinstance(node.func, ast.Attribute):
            return _words(node.func.value, {}, deep)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _words(node.generators[0].iter, {}, deep)
    return "" if node is None else "<...>"


def _constants(trees: list[ast.Module]) -> Names:
    """Capital names that modules set to a text, a number or a row of them, where all that set one agree."""
    known: dict[str, set[str]] = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name.isupper() and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.Tuple):
                    known.setdefault(name, set()).add(ast.unparse(node.value))
    return {
        name: ast.parse(next(iter(texts)), mode="eval").body
        for name, texts in known.items()
        if len(texts) == 1
    }


def _kind(call: ast.Call) -> str:
    """What is called, by its last name: an error of `WHY`, or something else."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return "DataError" if name == "kind" else name


def _refusals(tree: ast.AST, names: Names) -> Iterator[tuple[ast.Call, Names]]:
    """Calls that make an error, each with what the names of its function, and constants, were set to."""
    children = list(ast.iter_child_nodes(tree))
    if any(isinstance(node, ast.FunctionDef) for node in children):
        constants = {name: value for name, value in names.items() if name.isupper()}
    for node in children:
        inner = dict(constants) if isinstance(node, ast.FunctionDef) else names
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = node.value
        if isinstance(node, ast.Call) and _kind(node) in WHY:
            yield node, dict(names)
        yield from _refusals(node, inner)


def raised() -> Iterator[Entry]:
    """Each place that raises or counts a code."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in _sources()]
    constants = _constants(trees)
    for tree in trees:
        for call, names in _refusals(tree, dict(constants)):
            kind = _kind(call)
            code, *rest = [*call.args, None, None]
            if isinstance(code, ast.Constant) and CODE.fullmatch(str(code.value)):
                odd = (
                    "Problem" if str(code.value).startswith("W") else kind
                )  # a box that cannot be read is no end
                remedy = _words(rest[1], names) or NOTHING_STOPS.get(odd, "")
                yield Entry(str(code.value), _words(rest[0], names), WHY[kind], remedy)


def literal(text: str) -> int:
    """How much of a text is always said: what is filled in does not count."""
    return len(re.findall(r"[A-Za-z]{2,}", re.sub(r"<[^>]*>", "", text)))


def entries() -> list[Entry]:
    """Every code once, in order: of several places that raise it, the one that says most is told."""
    from reasonknee.sgmri.construct import ODDITIES

    told = {
        code: Entry(code, happened, WHY[kind], remedy) for code, (happened, kind, remedy) in SPECIAL.items()
    }
    told |= {code: Entry(code, words, WHY["note"], NOTHING_STOPS["note"]) for code, words in ODDITIES.items()}
    chosen = set(told)
    for entry in raised():
        known = told.get(entry.code)
        if entry.code not in chosen and (known is None or _says(entry) > _says(known)):
            told[entry.code] = entry
    for check in CHECKS.values():
        told[check.code] = Entry(check.code, check.title, f"a check: {check.level}", check.hint)
    return [told[code] for code in sorted(told)]


def _says(entry: Entry) -> tuple[bool, int, int]:
    return literal(entry.remedy) > 0, literal(entry.happened), len(entry.happened)


def table() -> str:
    """The tables of docs/errors.md, one for each letter."""

    def cell(text: str) -> str:
        text = " ".join(text.split()).replace("|", r"\|")
        parts = text.split("`")  # within backticks nothing is markup
        parts[::2] = [re.sub(r"([*_])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
        return "`".join(parts)

    lines = []
    for letter, group in itertools.groupby(entries(), key=lambda entry: entry.code[0]):
        lines += [f"## {letter}: {ROOMS[letter]}", ""]
        lines += ["| code | what happened | why | what to do |", "| --- | --- | --- | --- |"]
        for entry in group:
            lines.append(f"| {entry.code} | {cell(entry.happened)} | {entry.why} | {cell(entry.remedy)} |")
        lines.append("")
    return "\n".join(lines)
