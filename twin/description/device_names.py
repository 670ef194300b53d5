"""Whether a device that a driver names is one that is described here: drivers write *NVIDIA H100 80GB HBM3*."""

from __future__ import annotations

import re

FORMS = ("PCIE", "NVL", "LAPTOP", "MOBILE")
"""Forms of a device that are slower than the model's best, which descriptions are of."""


def alike(described: str, shown: str) -> bool:
    """Tell whether both names have a model in common, such as A100 or MI250X, and a form (PCIe, NVL) or none.

    >>> alike("h100-sxm", "NVIDIA H100 80GB HBM3"), alike("h100-sxm", "NVIDIA H100 PCIe")
    (True, False)
    """
    ours, theirs = words(described), words(shown)
    return bool(_models(ours) & _models(theirs)) and ours & set(FORMS) == theirs & set(FORMS)


def words(name: str) -> set[str]:
    """Return the words of a device's name."""
    return set(re.split(r"[^A-Z0-9]+", name.upper()))


def _models(found: set[str]) -> set[str]:
    return {word for word in found if re.fullmatch(r"[A-Z]{1,3}\d{2,4}[A-Z]?|\d{4}", word)}
