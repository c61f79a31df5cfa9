"""Reading the JSON that RocketMQ writes: standard JSON, except that integer map keys are not quoted.

It does not know the tables. What we write ourselves is standard JSON, which RocketMQ's fastjson reads too.
"""

from __future__ import annotations

import json
import re
from typing import Any

# A string literal, or anything else up to the next one; only the latter may be touched.
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[^"]+', re.DOTALL)
_BARE_KEY = re.compile(r"([{,]\s*)(-?[0-9]+)(\s*:)")


def loads(text: str) -> Any:
    """Parse JSON, integer keys quoted or not.

    Raises:
        ValueError: the text is not JSON even so.
    """
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_PIECE.sub(_quote_keys, text))


def dumps(value: Any) -> str:
    """Return standard JSON in the shape RocketMQ prints: tabs, keys without a space behind the colon."""
    return json.dumps(value, indent="\t", separators=(",", ":"), ensure_ascii=False)


def _quote_keys(piece: re.Match[str]) -> str:
    text = piece[0]
    return text if text.startswith('"') else _BARE_KEY.sub(r'\1"\2"\3', text)
