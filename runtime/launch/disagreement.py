"""What ranks that met found wrong, the same on every one of them."""

from __future__ import annotations

from twin.description.problems import DescriptionError


class DisagreementError(DescriptionError):
    """What `agree` found, the same on every rank."""

    def __init__(self, texts: list[str]) -> None:
        ValueError.__init__(self, "\n".join(texts))
        self.problems, self.origin = (), ""
