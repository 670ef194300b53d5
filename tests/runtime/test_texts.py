"""Documents to windows: every token is predicted once, from no other document, and padding counts for nothing."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime.inference.texts import text_of
from runtime.inference.trained import open_run
from tests.profiles import examples
from tests.runtime import asked

DOCUMENT = st.text(st.characters(codec="utf-8"), max_size=3 * asked.SEQUENCE)


@examples()
@given(texts=st.lists(DOCUMENT, min_size=1, max_size=6), most=st.none() | st.integers(1, 4))
def test_each_token_is_predicted_once(tmp_path_factory, texts, most):
    folder = tmp_path_factory.mktemp("texts")
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["first", *texts]))
    found = text_of(open_run(asked.make_run(folder), [], 1, None), file, most, "text")
    windows = list(found.windows())
    pairs = []
    for window in windows:
        tokens = window.read().tolist()
        assert len(tokens) == asked.SEQUENCE + 1
        assert not any(tokens[window.targets + 1 :])
        pairs += list(pairwise(tokens[: window.targets + 1]))
    expected = []
    for text in ["first", *texts]:
        line = [asked.SEPARATOR, *text.encode()]
        expected += list(pairwise(line))
    assert pairs == expected[: len(pairs)]
    assert most is not None or len(pairs) == len(expected)
    assert found.count == len(windows) == len(windows[:most])
    assert found.padded == sum(window.targets < asked.SEQUENCE for window in windows)
    if most is None:
        assert found.documents == 1 + len(list(filter(None, texts)))
    assert np.sum([window.targets for window in windows]) == len(pairs)
