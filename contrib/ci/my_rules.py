"""A rule of one's own, for `rocekit analyze FILE --rules my_rules.py`: a connection carries many packets."""

from collections.abc import Iterator

from rocekit.findings import WARNING, Evidence, Finding, Rule

MANY = 200


def _look(evidence: Evidence) -> Iterator[Finding]:
    for connection in evidence.connections:
        if connection.packets > MANY:
            yield RULE.finding(
                f"{connection.packets:,} packets on connection {connection.id}",
                connection=connection,
                evidence={"packets": connection.packets},
            )


RULE = Rule(
    "many-packets",
    WARNING,
    "a connection has many packets",
    "The connection has more packets than this test may send.",
    "Packets of both directions are counted.",
    "Repeats count too: look for `loss` first.",
    "Send larger messages, or fewer.",
    _look,
)
