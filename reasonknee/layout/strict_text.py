"""Tables and JSON from elsewhere, behind a gate: bounded reading, exact headers, ids as text, one clear
error with file and line."""

from __future__ import annotations

import codecs
import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from reasonknee.errors import DataError, StorageError

MAX_LINE = 4 << 20  # bytes of one line of JSON: a volume's annotations take about 12 kB
_PIECE = 1 << 20


def json_lines(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Line number, byte offset and object of each line of a JSON Lines file."""
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
                if line.strip():
                    yield number, offset, parse_json(line, f"{path.name}:{number}")
                offset += len(line)
    except OSError as error:
        raise StorageError("T000", str(error.strerror), "check the path and its permissions").at(
            path
        ) from None


def json_items(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of each item of a file that is one JSON list, or JSON Lines.

    A list is read in pieces, however long it is.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_PIECE).lstrip()
            if not text.startswith("["):
                for number, _, item in json_lines(path):
                    yield number, item
                return
            yield from _list_items(text[1:], file, path.name)
    except UnicodeDecodeError as error:
        raise DataError("T008", f"not UTF-8: {error.reason}", "JSON is UTF-8").at(path.name) from None
    except OSError as error:
        raise StorageError("T000", str(error.strerror), "check the path and its permissions").at(
            path
        ) from None


def _list_items(text: str, file: IO[str], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    number, at, ended = 0, 0, False
    while True:
        at = next((i for i in range(at, len(text)) if text[i] not in " \t\r\n,"), len(text))
        if text[at : at + 1] == "]":
            return
        try:
            value, at = _DECODER.raw_decode(text, at)
        except DataError as error:
            raise error.at(f"{name}, item {number + 1}") from None
        except (ValueError, RecursionError) as error:
            more = "" if ended or len(text) - at > MAX_LINE else file.read(_PIECE)
            ended = not more
            if ended:
                raise DataError("T001", f"not JSON: {str(error)[:100]}", "a list of objects is wanted").at(
                    f"{name}, item {number + 1}"
                ) from None
            text, at = text[at:] + more, 0
            continue
        number += 1
        if not isinstance(value, dict):
            raise DataError(
                "T007", f"{type(value).__name__} where an object is wanted", "a list of objects is wanted"
            ).at(f"{name}, item {number}")
        yield number, value


def line_at(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline(MAX_LINE + 1)


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """A JSON object, with what json.loads lets through refused: duplicate keys, NaN, absurd size or depth."""
    if len(raw) > MAX_LINE:
        raise DataError("T005", f"longer than {MAX_LINE} bytes", "one object a line is wanted").at(where)
    if raw.startswith(codecs.BOM_UTF8):
        raise DataError(
            "T006", "starts with a byte order mark", "save the file as UTF-8 without one (BOM)"
        ).at(where)
    try:
        value = _DECODER.decode(
            raw.rstrip(b" \t\r\n").decode()
        )  # the end of a line that is cut short is not on the next one
        if b"\\u" in raw:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not text
    except DataError as error:
        raise error.at(where) from None
    except (ValueError, RecursionError) as error:
        raise DataError("T001", f"not JSON: {_told(error)}", "one object a line is wanted").at(
            where
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            "T007",
            f"{type(value).__name__} where an object is wanted",
            "one object a line is wanted",
        ).at(where)
    return value


def _told(error: Exception) -> str:
    """What json says, but no "line 1": where each line is parsed alone, that is not a line of the file."""
    if isinstance(error, json.JSONDecodeError) and error.lineno == 1:
        return f"{error.msg}: column {error.colno}"
    return str(error)[:100]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise DataError("T002", "a key stands twice in one object", "keep one of them")
    return keys


def _no_constant(name: str) -> Any:
    raise DataError("T001", f"{name} is not JSON", "use null or leave it out")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else float(_no_constant(digits[:20]))


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


def csv_rows(
    path: Path, headers: Sequence[Sequence[str]], delimiter: str = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells, all text, of a table whose header is exactly one of `headers`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, [])
            if tuple(header) not in {tuple(h) for h in headers}:
                raise DataError(
                    "T003",
                    f"its columns are {','.join(header)[:120]!r}",
                    f"wanted: {','.join(headers[0])}",
                ).at(path.name)
            for row in reader:
                if len(row) != len(header):
                    raise DataError(
                        "T004", f"{len(row)} cells where {len(header)} are wanted", "mend the row"
                    ).at(f"{path.name}:{reader.line_num}")
                yield reader.line_num, dict(zip(header, row, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError("T009", f"not a readable table: {error}", "UTF-8 text is wanted").at(
            path.name
        ) from None
    except OSError as error:
        raise StorageError("T000", str(error.strerror), "check the path and its permissions").at(
            path
        ) from None
