"""Letting go of connections in the tracker and in the decoder, whose numbers its tables have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.track.eviction import Evicted, evict

if TYPE_CHECKING:
    from rocekit.packets.decoder import Decoder
    from rocekit.track.connections import Connection
    from rocekit.track.tracker import Tracker


def let_go(tracker: Tracker, decoder: Decoder, gone: tuple[Connection, ...]) -> Evicted:
    """Forget connections that were ended, and what only they had: addresses, flows, tunnels."""
    evicted = evict(tracker, gone)
    scopes = {around.scope for connection in tracker.connections for around in connection.around}
    scopes.update(exchange.scope for exchange in tracker.cm.exchanges)
    decoder.keep_addresses(evicted.addresses, scopes)
    return evicted
