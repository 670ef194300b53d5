"""The words of a tokenizer and their numbers, read as JSON: the library that tokenizes is not needed for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.data.tokenizer import MAX_TOKENIZER_BYTES


def has_words(used: Mapping[str, int] | None, known: Mapping[str, int]) -> bool:
    """Tell whether tokens of one tokenizer are the same words to whoever knows those of another; None: bytes."""
    return used is not None and all(used.get(word) == number for word, number in known.items())


def words_of(path: Path) -> dict[str, int] | None:
    """Return the numbers of a tokenizer's words, of a file of the `tokenizers` library; None if it tells of none."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_TOKENIZER_BYTES:
            return None
        described = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(described, Mapping) or not isinstance(model := described.get("model"), Mapping):
        return None
    found = _vocabulary(model.get("vocab"))
    added = described.get("added_tokens")
    for each in added if isinstance(added, list) else ():
        if isinstance(each, Mapping) and type(each.get("id")) is int:
            found[str(each.get("content"))] = each["id"]
    return found or None


def _vocabulary(given: Any) -> dict[str, int]:
    """Read words with their numbers, or words and scores in the order of their numbers."""
    if isinstance(given, Mapping):
        return {str(word): number for word, number in given.items() if type(number) is int}
    if isinstance(given, list):
        return {str(each[0]): number for number, each in enumerate(given) if isinstance(each, list) and each}
    return {}
