"""Expressions that choose packets: ``psn >= 100 and opcode == RC_SEND_ONLY and src == 10.9.0.1``.

Names are the columns of :class:`rocekit.packets.Packets`, or tshark's for them. The syntax is Python's
(``and or not``, comparisons and chains of them, ``in (…)``, arithmetic and bit operators) with Wireshark's
``&& || ! eq ne``. Opcodes are named in any case, one or a class of them; addresses stand as text, or as a
network after ``in``. A header's name alone is true for packets that have it; a comparison with a field that a
packet does not have is false.
"""

from __future__ import annotations

import ast
import difflib
import ipaddress
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import COLUMNS, FIELD_HOMES, HAS, ICRC_STATES, Packets
from rocekit.packets.field_words import (
    EITHER_FROM_TSHARK,
    FROM_TSHARK,
    HEADERS_FROM_TSHARK,
    OPCODE_CLASSES,
    OTHERWISE,
)
from rocekit.packets.malformed import MALFORMED
from rocekit.wire import OPCODE_NAMES

Mask = NDArray[np.bool_]

_ADDRESSES: Final = ("src", "dst")
#: Columns that every packet has, and whose number alone says nothing.
_NEVER_ALONE: Final = frozenset(
    {
        *_ADDRESSES,
        "frame",
        "file",
        "time_ns",
        "ip_version",
        "roce_version",
        "flow",
        "opcode",
        "has",
        "icrc_state",
    }
)
#: Words that a column's numbers go by.
_VOCABULARY: Final = MappingProxyType(
    {
        "opcode": dict(OPCODE_NAMES),
        "icrc_state": {word: code for code, word in enumerate(ICRC_STATES)},
        "malformed": {word: code for code, word in MALFORMED.items()},
    }
)
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_MOST_CHARACTERS: Final = 10_000
_WORD_BITS: Final = 64

#: Strings stay; addresses and networks get quotes; Wireshark's operators become Python's.
_TOKENS: Final = re.compile(
    r"""(?P<string>"[^"]*"|'[^']*')"""
    r"""|(?P<address>(?<![\w.:])(?:\d+\.\d+\.\d+\.\d+|[0-9a-fA-F]*:[0-9a-fA-F:.]*)(?:/\d+)?)"""
    r"""|(?P<operator>&&|\|\||!(?!=)|(?<![\w.])(?:eq|ne|gt|lt|ge|le)(?![\w.]))"""
)
_OPERATORS: Final = {"&&": " and ", "||": " or ", "!": " not "} | {
    "eq": "==", "ne": "!=", "gt": ">", "lt": "<", "ge": ">=", "le": "<="
}  # fmt: skip


class FilterError(ValueError):
    """An expression that is wrong; the message says where, and what is right."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A part of the expression over a batch.

    Attributes:
        value: a number, a word, a tuple of these, or a column.
        present: which packets have its fields; None: all.
        column: the column's name, if it is just a column.
        other: the second of two columns that are compared as "either".
    """

    value: Any
    present: Mask | None = None
    column: str | None = None
    other: _Operand | None = None


class Filter:
    """A compiled expression; called with packets, it returns a mask: one bool a packet.

    Raises:
        FilterError: the text is no such expression, or a name in it is no field.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MOST_CHARACTERS:
            raise FilterError("the expression is too long")
        try:
            tree = ast.parse(_TOKENS.sub(_pythonic, text).strip(), mode="eval").body
            # Every error in an expression shows without packets too.
            self._tree = tree
            with np.errstate(all="ignore"):
                self(Packets.concat([]))
        except SyntaxError as error:
            raise FilterError(f"{text!r} is not an expression: {error.msg}") from None
        except (RecursionError, MemoryError):
            raise FilterError("the expression is nested too deeply") from None
        except ValueError as error:
            raise error if isinstance(error, FilterError) else FilterError(str(error)) from None

    def __call__(self, packets: Packets) -> Mask:
        with np.errstate(all="ignore"):
            return _alone(self._tree, packets)


def _pythonic(match: re.Match[str]) -> str:
    if match["operator"]:
        return _OPERATORS[match["operator"]]
    if match["address"]:
        return repr(match["address"])
    return match[0]


def fields_help() -> str:
    """The names for expressions, in one line."""
    return f"fields: {', '.join(COLUMNS)}; headers: {', '.join(HAS)}"


def _evaluate(node: ast.expr, packets: Packets) -> _Operand:
    match node:
        case ast.Constant(value=bool() | int() | str() as value):
            return _Operand(value)
        case ast.Name(id=name):
            return _name(name, packets)
        case ast.Attribute() if _is_tsharks(name := ast.unparse(node)):
            return _tsharks(name, packets)
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return _Operand(tuple(_evaluate(element, packets).value for element in elements))
        case ast.BoolOp(op=op, values=values):
            masks = [_alone(value, packets) for value in values]
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return _Operand(join.reduce(masks))
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _Operand(~_alone(inner, packets))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return _Operand(-number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _arithmetic(op, _evaluate(left, packets), _evaluate(right, packets))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            mask = np.ones(len(packets), np.bool_)
            first = _evaluate(left, packets)
            for compare, comparator in zip(ops, comparators, strict=True):
                second = _evaluate(comparator, packets)
                mask &= _compare(compare, first, second, packets)
                first = second
            return _Operand(mask)
    raise FilterError(f"{ast.unparse(node)!r} is not something that a filter can hold")


def _name(name: str, packets: Packets) -> _Operand:
    if name in COLUMNS:
        values = packets[name]
        if values.dtype != np.uint64:
            values = values.astype(np.int64, copy=False)
        present = None
        if name in FIELD_HOMES:
            bits = sum(HAS[header.name] for header, _ in FIELD_HOMES[name])
            present = packets.has & np.uint16(bits) != 0
        return _Operand(values, present, name)
    if name in HAS:
        return _Operand(packets.has & np.uint16(HAS[name]) != 0)
    if any(name in words for words in _VOCABULARY.values()):
        return _Operand(name)
    if name.upper() in OPCODE_NAMES or name.upper() in OPCODE_CLASSES:
        return _Operand(name.upper())
    raise _unknown(name)


def _unknown(name: str) -> FilterError:
    if name in OTHERWISE:
        return FilterError(f"{name}: write {OTHERWISE[name]}")
    words = [*COLUMNS, *HAS, *OPCODE_NAMES, *OPCODE_CLASSES, *FROM_TSHARK]
    near = difflib.get_close_matches(name, words, n=1)
    if near and (near[0] in OPCODE_NAMES or near[0] in OPCODE_CLASSES):
        return FilterError(f"there is no opcode {name!r}; did you mean {near[0]}?")
    if near:
        return FilterError(
            f"there is no field {name!r}; did you mean {near[0]}? `rocekit decode --fields help` lists them"
        )
    return FilterError(f"there is no field {name!r}; {fields_help()}")


def _is_tsharks(name: str) -> bool:
    if name in FROM_TSHARK or name in OTHERWISE:
        return True
    first, *others = name.split(".")
    return first not in COLUMNS and all(part.isidentifier() and "__" not in part for part in (first, *others))


def _tsharks(name: str, packets: Packets) -> _Operand:
    """A field or header by tshark's name; a field of IPv4, say, is only in packets that have IPv4."""
    if name in HEADERS_FROM_TSHARK:
        return _name(HEADERS_FROM_TSHARK[name], packets)
    if name in EITHER_FROM_TSHARK:
        header = EITHER_FROM_TSHARK[name]
        src, dst = (_of_header(_name(column, packets), header, packets) for column in _ADDRESSES)
        return replace(src, other=dst)
    if name not in FROM_TSHARK:
        raise _unknown(name)
    column, header = FROM_TSHARK[name]
    return _of_header(_name(column, packets), header, packets)


def _of_header(operand: _Operand, header: str, packets: Packets) -> _Operand:
    """A column of the network header, where the packet has this one."""
    conditions: dict[str, Callable[[], Mask]] = {
        "ip": lambda: packets["ip_version"] == 4,
        "ipv6": lambda: (packets["ip_version"] == 6) & (packets["roce_version"] == 2),
        "GRH": lambda: packets["roce_version"] == 1,
        "udp": lambda: packets["roce_version"] == 2,
        "vlan": lambda: packets["vlan"] >= 0,
    }
    return replace(operand, present=conditions[header]()) if header in conditions else operand


def _alone(node: ast.expr, packets: Packets) -> Mask:
    """A part of the expression that is true or false by itself.

    Raises:
        FilterError: it is a field that every packet has, so that it says nothing.
    """
    operand = _evaluate(node, packets)
    if operand.column in _NEVER_ALONE:
        name = ast.unparse(node)
        raise FilterError(f"{name} alone says nothing, every packet has it; compare it: {name} == …")
    return _truth(operand, len(packets))


def _truth(operand: _Operand, n: int) -> Mask:
    value = operand.value
    if isinstance(value, str | tuple):
        is_opcode = isinstance(value, str) and (value in OPCODE_NAMES or value in OPCODE_CLASSES)
        instead = f"write opcode == {value}" if is_opcode else "compare a field with it"
        raise FilterError(f"{value!r} stands alone; {instead}")
    mask = np.broadcast_to(np.asarray(value) != 0, (n,))
    return mask if operand.present is None else mask & operand.present


def _both(first: _Operand, second: _Operand) -> Mask | None:
    if first.present is None or second.present is None:
        return second.present if first.present is None else first.present
    return first.present & second.present


def _arithmetic(op: ast.operator, first: _Operand, second: _Operand) -> _Operand:
    for operand in (first, second):
        if isinstance(operand.value, str | tuple) or operand.column in _ADDRESSES:
            raise FilterError(f"{operand.column or operand.value!r} is no number to calculate with")
    a, b = first.value, second.value
    if isinstance(b, int) and isinstance(op, ast.LShift | ast.RShift) and not 0 <= b < _WORD_BITS:
        raise FilterError(f"a shift by {b} bits leaves nothing")
    if isinstance(b, int) and b == 0 and isinstance(op, ast.FloorDiv | ast.Mod):
        raise FilterError("division by zero")
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = _same_kind(a, b), _same_kind(b, a)
    try:
        value = _ARITHMETIC[type(op)](a, b)
    except (OverflowError, TypeError) as error:
        raise FilterError(f"cannot calculate: {error}") from None
    if isinstance(value, int) and value.bit_length() > _WORD_BITS:
        raise FilterError("a number is too large for any field")
    return _Operand(value, _both(first, second))


def _same_kind(value: Any, other: Any) -> Any:
    """``value`` unsigned if ``other`` is: NumPy would make floats of the two and lose low bits.

    A mask becomes numbers: NumPy compares numbers with any integer, a mask with those of 64 bits only.
    """
    if isinstance(value, np.ndarray) and value.dtype == np.bool_:
        value = value.astype(np.int64)
    if isinstance(other, np.ndarray) and other.dtype == np.uint64 and isinstance(value, np.ndarray):
        return value.astype(np.uint64, copy=False)
    return value


def _compare(op: ast.cmpop, first: _Operand, second: _Operand, packets: Packets) -> Mask:
    if first.other is not None or second.other is not None:
        return _either(op, first, second, packets)
    present = _both(first, second)
    if isinstance(op, ast.In | ast.NotIn):
        mask = _membership(first, second, packets)
        if isinstance(op, ast.NotIn):
            mask = ~mask
    elif type(op) in _COMPARE:
        if isinstance(first.value, tuple) or isinstance(second.value, tuple):
            raise FilterError("a list of values goes with 'in'")
        if (members := _class_of(first, second)) is not None:
            mask = np.isin(first.value if first.column else second.value, members)
            if isinstance(op, ast.NotEq):
                mask = ~mask
            elif not isinstance(op, ast.Eq):
                raise FilterError("opcodes are equal or not, and come in no order")
            return mask if present is None else mask & present
        ordering = not isinstance(op, ast.Eq | ast.NotEq)
        if ordering and (isinstance(first.value, str) or isinstance(second.value, str)):
            raise FilterError("words and addresses are equal or not, and come in no order")
        a, b = _number(first, second, packets), _number(second, first, packets)
        mask = np.broadcast_to(_COMPARE[type(op)](_same_kind(a, b), _same_kind(b, a)), (len(packets),))
    else:
        raise FilterError("'is' does not belong in a filter; use ==")
    return mask if present is None else mask & present


def _either(op: ast.cmpop, first: _Operand, second: _Operand, packets: Packets) -> Mask:
    """A comparison with source or destination: true if it is of one of them, as in Wireshark.

    ``!=`` and ``not in`` are true if it is so of both, as in Wireshark since version 3.6.
    """
    masks = []
    for a in filter(None, (first, first.other)):
        for b in filter(None, (second, second.other)):
            masks.append(_compare(op, replace(a, other=None), replace(b, other=None), packets))
    every = isinstance(op, ast.NotEq | ast.NotIn)
    return (np.logical_and if every else np.logical_or).reduce(masks)


def _class_of(first: _Operand, second: _Operand) -> tuple[int, ...] | None:
    """The opcodes of a class that the column is compared with; None: it is no such comparison."""
    for column, word in ((first, second), (second, first)):
        if column.column == "opcode" and isinstance(word.value, str):
            return None if word.value.upper() in OPCODE_NAMES else OPCODE_CLASSES.get(word.value.upper())
    return None


def _membership(first: _Operand, second: _Operand, packets: Packets) -> Mask:
    if first.column in _ADDRESSES:
        members = second.value if isinstance(second.value, tuple) else (second.value,)
        networks = [_network(member) for member in members]
        inside = [
            any(ipaddress.ip_address(text) in network for network in networks) for text in packets.addresses
        ]
        return np.array([*inside, False], np.bool_)[first.value]
    if not isinstance(second.value, tuple):
        raise FilterError("'in' takes a list in parentheses, or a network for src and dst")
    mask = np.zeros(len(packets), np.bool_)
    for member in second.value:
        codes = _class_of(first, _Operand(member))
        if codes is not None:
            mask |= np.isin(first.value, codes)
            continue
        mask |= np.broadcast_to(first.value == _number(_Operand(member), first, packets), (len(packets),))
    return mask


def _network(member: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(str(member), strict=False)
    except ValueError:
        raise FilterError(f"{member!r} is no IP address or network") from None


def _number(operand: _Operand, beside: _Operand, packets: Packets) -> Any:
    """The operand's number; a word is looked up for the column that it is compared with."""
    word = operand.value
    if beside.column in _ADDRESSES and isinstance(word, int | str):
        try:
            text = str(ipaddress.ip_address(word if isinstance(word, str) else ""))
        except ValueError:
            raise FilterError(f"{word!r} is no IP address; a network goes with 'in'") from None
        return packets.addresses.index(text) if text in packets.addresses else -1
    if not isinstance(word, str):
        return word
    words = _VOCABULARY.get(beside.column or "")
    if words is None:
        raise FilterError(f"{beside.column or 'this'} is not compared with words such as {word!r}")
    if word not in words and beside.column == "opcode":
        word = word.upper()
    if word not in words:
        near = difflib.get_close_matches(word, [*words, *OPCODE_CLASSES], n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; one of {', '.join(words)}"
        raise FilterError(f"{word!r} is no {beside.column}{hint}")
    return words[word]
