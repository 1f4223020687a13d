"""Reading drills: YAML with one step a line. docs/drills.md describes the language."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rocekit.conform.device import FEATURES
from rocekit.conform.drill import (
    PATIENCE_NS,
    CallProgram,
    DeviceSetup,
    Drill,
    DrillStep,
    ExpectAcked,
    ExpectCompletions,
    ExpectCounters,
    ExpectEvents,
    ExpectMemory,
    ExpectNothing,
    ExpectPacket,
    ExpectState,
    IgnorePackets,
    RegionSetup,
    RepeatSteps,
    SendPackets,
)
from rocekit.conform.expected import read_expected
from rocekit.conform.outgoing import read_message, read_outgoing
from rocekit.conform.values import Sum, plain_text, read_bytes, read_span, read_sum, read_time, read_wanted
from rocekit.files.yaml import Value, parse_yaml, read_yaml_text
from rocekit.wire.text_table import safe

_DRILL: Final = ("claim", "clause", "source", "unsure", "needs", "device", "steps")
_DEVICE: Final = tuple(f.name for f in dataclasses.fields(DeviceSetup))
_REGION: Final = tuple(f.name for f in dataclasses.fields(RegionSetup))
_ACCESS: Final = (
    *("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND"),
    *("FLUSH_GLOBAL", "FLUSH_PERSISTENT"),
)
#: How many bits the device's numbers have.
_BITS: Final[Mapping[str, int]] = MappingProxyType(
    {"rq_psn": 24, "sq_psn": 24, "peer_qpn": 24, "timeout": 5, "retry_cnt": 3, "rnr_retry": 3}
    | {"min_rnr_timer": 5, "max_rd_atomic": 8, "max_dest_rd_atomic": 8, "qkey": 32, "tclass": 8}
)
_MOST_REGION_BYTES: Final = 1 << 30
_NO_BOUND: Final = (1 << 64) - 1
_STATES: Final = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
_BESIDE: Final = ("within", "at", "capture", "refused", "as", "note")
_NUMBERS: Final = (
    *("wr_id", "length", "at", "remote_va", "rkey", "imm", "invalidate_rkey", "compare", "swap_add"),
    *("qpn", "qkey", "count", "offset", "port", "flush_length"),
)
_FLAGS: Final = ("signaled", "fenced", "solicited", "inline")
_ATTRIBUTES: Final = (
    *("timeout", "retry_cnt", "rnr_retry", "min_rnr_timer", "sq_psn", "rq_psn", "dest_qpn", "qkey"),
    *("max_rd_atomic", "max_dest_rd_atomic", "path_mtu"),
)
#: What the program can do, and the keys of each.
_PROGRAM: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "post": ("op", "region", *_NUMBERS, *_FLAGS),
        "recv": ("region", "wr_id", "length", "at", "count"),
        "modify": ("state", "access", *_ATTRIBUTES),
        "fill": ("region", "at", "bytes"),
        "bind": ("region", "at", "length", "access"),
        "deregister": ("region",),
        "listen": ("port",),
        "accept": ("responder_resources", "initiator_depth"),
        "reject": (),
        "connect": ("port",),
        "disconnect": (),
        "arm": ("solicited",),
    }
)
#: The events that a drill may name: of a connection manager, and of a completion queue.
_EVENTS: Final = (
    "COMPLETION",
    *("CONNECT_REQUEST", "ESTABLISHED", "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "DISCONNECTED"),
)
_COMPLETION: Final = ("wr_id", "status", "opcode", "byte_len", "imm", "src_qpn")


def read_drill(path: str | Path, name: str | None = None) -> Drill:
    """The drill in a file.

    Raises:
        ScenarioError: it cannot be read, or is no drill: file, line, and what is wrong.
    """
    text = read_yaml_text(path)  # once: of a pipe there is no second time
    return _drill(parse_yaml(text, str(path)), str(path), name or Path(path).stem, text)


def parse_drill(text: str, name: str = "drill") -> Drill:
    """The drill in a text; errors as of :func:`read_drill`."""
    return _drill(parse_yaml(text, name), name, name, text)


def _drill(document: Value | None, file: str, name: str, text: str) -> Drill:
    if document is None:
        raise Value(None, file, 1).wrong("nothing is in it; a drill has claim, clause and steps")
    content = document.mapping(_DRILL, "a drill")
    for key in ("claim", "clause", "steps"):
        if key not in content:
            raise document.wrong(f"a drill has {key}")
    setup = _setup(content["device"]) if "device" in content else DeviceSetup()
    needs = _list(content["needs"], "needs", tuple(FEATURES)) if "needs" in content else ()
    return Drill(
        name,
        _text(content["claim"], "claim"),
        _text(content["clause"], "clause"),
        _steps(content["steps"], setup),
        setup,
        source=_text(content["source"], "source") if "source" in content else "",
        needs=frozenset({setup.transport, *needs}),
        unsure=_text(content["unsure"], "unsure") if "unsure" in content else "",
        text=text,
    )


def _text(value: Value, key: str) -> str:
    if not isinstance(value.content, str | int | float) or not str(value.content).strip():
        raise value.wrong(f"{key} is a sentence")
    return safe(" ".join(str(value.content).split()))


def _list(value: Value, key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    items = value.content if isinstance(value.content, list) else [value]
    found = []
    for item in items:
        if item.content not in known:
            raise item.wrong(f"{key}: no {item.content!r}; there is {', '.join(known)}")
        found.append(str(item.content))
    if not found:
        raise value.wrong(f"{key}: name at least one of {', '.join(known)}")
    return tuple(found)


def _whole(value: Value, key: str, least: int = 0, most: int = _NO_BOUND) -> int:
    content = value.content
    if isinstance(content, bool) or not isinstance(content, int) or not least <= content <= most:
        until = "on" if most == _NO_BOUND else f"to {most:,}"
        raise value.wrong(f"{key} is a whole number from {least} {until}, not {content!r}")
    return content


def _setup(value: Value) -> DeviceSetup:
    given: dict[str, Any] = {}
    for key, item in value.mapping(_DEVICE, "device").items():
        if key == "transport":
            given[key] = _list(item, key, ("RC", "UC", "UD"))[0]
        elif key == "state":
            given[key] = _list(item, key, ("RESET", "INIT", "RTR", "RTS"))[0]
        elif key == "access":
            given[key] = _list(item, key, _ACCESS)
        elif key == "srq":
            given[key] = _flag(item, key)
        elif key == "memory":
            given[key] = _memory(item)
        elif key == "path_mtu":
            given[key] = _whole(item, key, 1, (1 << 16) - 1)  # the device judges it
        else:
            given[key] = _whole(item, key, most=(1 << _BITS[key]) - 1)
    return DeviceSetup(**given)


def _memory(value: Value) -> dict[str, RegionSetup]:
    if not isinstance(value.content, dict):
        raise value.wrong("memory is written as NAME: {length: 65536, access: […]}")
    regions = {"main": RegionSetup()}
    for name, region in value.content.items():
        given: dict[str, Any] = {}
        for key, item in region.mapping(_REGION, "a region").items():
            if key == "access":
                given[key] = _list(item, key, _ACCESS)
            elif key == "content":
                given[key] = read_bytes(item, key)
            elif key == "domain":
                given[key] = _text(item, key)
            else:
                given[key] = _whole(item, key, 1, _MOST_REGION_BYTES)
        regions[name] = RegionSetup(**given)
        if len(regions[name].content) > regions[name].length:
            raise region.wrong(f"{len(regions[name].content)} bytes do not fit {regions[name].length}")
    return regions


def _flag(value: Value, key: str) -> bool:
    if not isinstance(value.content, bool):
        raise value.wrong(f"{key} is true or false, not {value.content!r}")
    return value.content


def _steps(value: Value, setup: DeviceSetup) -> tuple[DrillStep, ...]:
    if not isinstance(value.content, list) or not value.content:
        raise value.wrong("steps is a list, one step a line: - send: {…}")
    return tuple(read_step(item, setup) for item in value.content)


def read_step(value: Value, setup: DeviceSetup) -> DrillStep:
    """One step of a drill; errors as of :func:`read_drill`."""
    content = value.content if isinstance(value.content, dict) else {}
    known = (*_READERS, *_PROGRAM)
    kinds = [key for key in content if key in known]
    if len(kinds) != 1:
        raise value.wrong(f"a step does one thing: {', '.join(known)}")
    kind = kinds[0]
    for key, item in content.items():
        if key != kind and key not in _BESIDE:
            raise item.wrong(f"no key {key!r}; beside {kind} there may be {', '.join(_BESIDE)}")
    common: dict[str, Any] = {
        "line": content[kind].line,
        "text": safe(f"{kind}: {plain_text(content[kind].plain())}"),
    }
    if "within" in content:
        common["within_ns"] = read_time(content["within"], "within")
    if "at" in content:
        common["at"] = read_span(content["at"], "at")
        common["within_ns"] = max(common.get("within_ns", PATIENCE_NS), 2 * common["at"].latest_ns)
        common["text"] += safe(f", at: {content['at'].content}")
    if kind in _PROGRAM:
        return _program(kind, content, common)
    return _READERS[kind](content[kind], content, common, setup)


_Content = Mapping[str, Value]


def _send(value: Value, _content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    items = value.content if isinstance(value.content, list) else [value]
    return SendPackets(**common, packets=tuple(read_outgoing(item) for item in items))


def _message(value: Value, _content: _Content, common: dict[str, Any], setup: DeviceSetup) -> DrillStep:
    return SendPackets(**common, packets=read_message(value, setup.path_mtu))


def _expect(value: Value, content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    items = value.content if isinstance(value.content, list) else [value]
    packets = tuple(read_expected(item) for item in items if item.content != "nothing")
    capture: dict[str, str] = {}
    if "capture" in content:
        given = content["capture"].content
        if not isinstance(given, dict):
            raise content["capture"].wrong("capture is written as {name: field}")
        capture = {name: _text(item, name) for name, item in given.items()}
    return ExpectPacket(**common, either=packets, or_nothing=len(packets) < len(items), capture=capture)


def _acked(value: Value, _content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    if isinstance(value.content, dict):
        given = value.mapping(("psn", "msn"), "acked")
        if "psn" not in given:
            raise value.wrong("acked has psn")
        msn = read_wanted(given["msn"], "msn") if "msn" in given else None
        return ExpectAcked(**common, psn=read_sum(given["psn"], "psn"), msn=msn)
    return ExpectAcked(**common, psn=read_sum(value, "acked"))


def _nothing(value: Value, _content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    return ExpectNothing(**common, for_ns=read_time(value, "nothing"))


def _ignore(value: Value, _content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    return IgnorePackets(**common, for_ns=read_time(value, "ignore"))


def _completion(value: Value, content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    if value.content == "none":
        if "within" not in content:
            raise value.wrong("completion: none has within: how long none may come")
        return ExpectCompletions(**common)
    items = value.content if isinstance(value.content, list) else [value]
    found = []
    for item in items:
        wanted: dict[str, Any] = {"status": "SUCCESS"}
        for key, one in item.mapping(_COMPLETION, "a completion").items():
            if key not in ("status", "opcode"):
                wanted[key] = read_wanted(one, key)
            elif isinstance(one.content, list):
                wanted[key] = frozenset(_text(name, key) for name in one.content)
            else:
                wanted[key] = _text(one, key)
        found.append(wanted)
    return ExpectCompletions(**common, completions=tuple(found))


def _event(value: Value, content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    if value.content == "none":
        if "within" not in content:
            raise value.wrong("event: none has within: how long none may come")
        return ExpectEvents(**common)
    items = value.content if isinstance(value.content, list) else [value]
    found = []
    for item in items:
        given = (
            item.mapping(("type", "status"), "an event") if isinstance(item.content, dict) else {"type": item}
        )
        if "type" not in given:
            raise item.wrong("an event is written as ESTABLISHED or {type: REJECTED, status: 28}")
        wanted: dict[str, Any] = {"type": _list(given["type"], "event", _EVENTS)[0]}
        if "status" in given:
            wanted["status"] = read_wanted(given["status"], "status")
        found.append(wanted)
    return ExpectEvents(**common, events=tuple(found))


def _memory_is(value: Value, _content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    given = value.mapping(("region", "at", "is"), "memory")
    if "is" not in given:
        raise value.wrong("memory is written as {at: 0, is: 64}")
    return ExpectMemory(
        **common,
        region=_text(given["region"], "region") if "region" in given else "main",
        offset=_whole(given["at"], "at") if "at" in given else 0,
        content=read_bytes(given["is"], "is"),
    )


def _state(value: Value, _content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    return ExpectState(**common, states=_list(value, "state", _STATES))


def _counters(value: Value, _content: _Content, common: dict[str, Any], _setup: DeviceSetup) -> DrillStep:
    if not isinstance(value.content, dict):
        raise value.wrong("counters is written as {duplicate_request: 1}")
    return ExpectCounters(
        **common, counters={key: read_wanted(item, key) for key, item in value.content.items()}
    )


def _repeat(value: Value, _content: _Content, common: dict[str, Any], setup: DeviceSetup) -> DrillStep:
    given = value.mapping(("times", "steps"), "repeat")
    if "times" not in given or "steps" not in given:
        raise value.wrong("repeat is written as {times: 3, steps: [...]}")
    times = _whole(given["times"], "times", 1, 100_000)
    return RepeatSteps(**common, times=times, steps=_steps(given["steps"], setup))


_Reader = Callable[[Value, _Content, dict[str, Any], DeviceSetup], DrillStep]
_READERS: Final[Mapping[str, _Reader]] = MappingProxyType(
    {
        "send": _send,
        "message": _message,
        "expect": _expect,
        "acked": _acked,
        "nothing": _nothing,
        "ignore": _ignore,
        "completion": _completion,
        "event": _event,
        "memory": _memory_is,
        "state": _state,
        "counters": _counters,
        "repeat": _repeat,
    }
)


def _program(kind: str, content: Mapping[str, Value], common: dict[str, Any]) -> CallProgram:
    value = content[kind]
    given = {} if value.content is None else value.mapping(_PROGRAM[kind], kind)
    arguments: dict[str, Any] = {}
    for key, item in given.items():
        if key in ("op", "region"):
            arguments[key] = _text(item, key)
        elif key == "state":
            arguments[key] = _list(item, key, _STATES)[0]
        elif key == "access":
            arguments[key] = list(_list(item, key, _ACCESS))
        elif key == "bytes":
            arguments["content"] = read_bytes(item, key).hex()
        elif key in _FLAGS:
            arguments[key] = _flag(item, key)
        else:
            arguments[key] = read_sum(item, key)
    if kind == "fill" and "content" not in arguments:
        raise value.wrong("fill is written as {at: 0, bytes: 64}")
    if kind == "bind" and not {"length", "access"} <= arguments.keys():
        raise value.wrong("bind is written as {at: 0, length: 64, access: [REMOTE_READ]}")
    if kind in ("fill", "bind"):
        arguments["offset"] = arguments.pop("at", 0)
        arguments.setdefault("region", "main")
    if kind == "deregister":
        arguments.setdefault("region", "main")
    if kind in ("listen", "connect"):
        arguments.setdefault("port", Sum(((1, "port"),)))
    if kind == "post" and "op" not in arguments:
        raise value.wrong("post has op: SEND, RDMA_WRITE, RDMA_READ, …")
    refused = _flag(content["refused"], "refused") if "refused" in content else False
    return CallProgram(
        **common,
        call=kind,
        arguments=arguments,
        refused=refused,
        named=_text(content["as"], "as") if "as" in content else "",
    )
