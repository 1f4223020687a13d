"""JSON documents are written as Python's encoder writes them."""

import enum
import json
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocekit.packets.rows import COMPILED
from rocekit.report import json_text


class Number(enum.IntEnum):
    SEVEN = 7


class Word(str):
    """A string of another class says the same."""

    def __str__(self) -> str:
        return "something else"


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 0, -1, Number.SEVEN])
    | st.floats()
    | st.text(st.characters() | st.sampled_from('"\\\n\x00\x1f\x7f\x80é€\u2028\U0001f600\ud800'))
    | st.builds(Word, st.text())
)
_KEYS = st.text() | st.builds(Word, st.text()) | st.none() | st.booleans() | st.integers() | st.floats()
_DOCUMENTS = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(_KEYS, inner, max_size=5),
)


@given(_DOCUMENTS, st.booleans())
@example({"a": [], "b": {}, "c": ()}, False)
def test_the_same_as_pythons_encoder(value: object, ascii: bool) -> None:
    assert json_text.line(value, ascii=ascii) == json.dumps(value, ensure_ascii=ascii, separators=(",", ":"))
    pieces: list[str] = []
    json_text.indented(value, pieces.append, ascii=ascii)
    assert "".join(pieces) == json.dumps(value, ensure_ascii=ascii, indent=1)


def test_a_large_document_comes_in_pieces() -> None:
    value = [{"name": f"10.0.0.{i} é", "bytes": i} for i in range(100_000)]
    pieces: list[str] = []
    json_text.indented(value, pieces.append)
    assert len(pieces) > 3
    assert "".join(pieces) == json.dumps(value, ensure_ascii=False, indent=1)


@given(st.lists(_DOCUMENTS))
def test_an_iterator_is_written_as_a_list(values: list[object]) -> None:
    pieces: list[str] = []
    json_text.indented({"a": iter(values), "b": iter(())}, pieces.append)
    assert "".join(pieces) == json.dumps({"a": values, "b": []}, ensure_ascii=False, indent=1)
    assert json_text.line(iter(values)) == json_text.line(values)


@pytest.mark.skipif(not COMPILED, reason="Python's encoder holds a list")
def test_the_items_of_an_iterator_are_made_while_they_are_written() -> None:
    made, written_before = 0, []

    def items() -> Iterator[str]:
        nonlocal made
        for _ in range(100_000):
            made += 1
            yield "0123456789"

    json_text.indented(items(), lambda piece: written_before.append(made))
    assert len(written_before) > 3
    assert written_before[0] < 30_000
    assert made == 100_000


@pytest.mark.parametrize("value", [{1, 2}, [b"bytes"], {(1, 2): 3}])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        json_text.line(value)


def test_what_is_part_of_itself_has_no_end() -> None:
    value: list[object] = []
    value.append({"again": value})
    with pytest.raises(RecursionError):
        json_text.line(value)
