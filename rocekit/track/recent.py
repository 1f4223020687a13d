# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""What one side sent lately, and how it was answered: the last packet and the last response of each PSN.

The PSN's low bits choose a slot, so that what lies ``RING`` PSNs back is overwritten. Connections of a flood
send a few packets only, and most responses answer many packets, so there are few slots at first. That makes
no difference to what is remembered.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from rocekit.packets.rows import COMPILED

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.rest.numbers import NumberReader, NumberWriter

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

#: Packets remembered of each direction: when they came, and with which IPv4 identification.
RING: Final = 64
_SLOT: Final = RING - 1
# Of each packet sent, and of each response: two words side by side, so that they are fetched at once. The PSN
# above the IPv4 identification, and when; one past the PSNs covered, above the MSN and one, and when. Words
# count from one unit below 0, so that slots full of zeros are empty: a PSN can be below 0, unwrapped.
_WORDS: Final = 2
_ID_BITS: Final = 16
_MSN_BITS: Final = 25
_MSN_MASK: Final = (1 << _MSN_BITS) - 1
_ID_UNIT: Final = 1 << _ID_BITS
_MSN_UNIT: Final = 1 << _MSN_BITS
_NOTHING_SENT: Final = -_ID_UNIT
_ZEROS: Final = array("q", [0]) * RING * _WORDS
#: The slots at first, a power of two for what is sent. Compiled, their words are a part of their object (see
#: the .pxd file).
_FEW: Final = 8
_FEW_COVERED: Final = 4
#: READ responses: the PSN's 24 bits above two IPv4 identifications, of its response before and of its last.
_NO_RESPONSES: Final = array("q", [-1]) * RING
#: A time that never comes.
NEVER_NS: Final = 1 << 62
#: How far apart the identifications may be of packets that a host sent shortly after each other, if it counts
#: them; it may count packets to others in between.
NEAR_IDS: Final = 1024
ID_MASK: Final = 0xFFFF
#: So many identifications must have followed one another before a sender is taken to count them. Of random
#: ones 1 in 64 does: three of the first six do so by accident once in ten thousand flows, later ever less.
FOLLOWED: Final = 3


class AllSlots:
    """The words of all slots."""

    def __init__(self) -> None:
        if not COMPILED:
            self.words: Any = _ZEROS[:]


class Recent:
    """The last packets of one side and the responses to them.

    Attributes:
        last_tx_ns: the last request's time; last_rx_ns: the last response's, 0 before the first.
        back_ns: when the requester last went back; once_from: the PSN from which on none was sent twice. Both
        are set by who judges that.
        turnaround_ns: the shortest time from a request that was sent once to its response; 0: unknown.
        timed: of how many such times it is the shortest.
        overtaken: how many requests came after one that was sent later, by their identifications.
        ids_followed, ids_broke: how many requests had an identification shortly above the one before, and
        how many had another.
    """

    def __init__(self) -> None:
        self.last_tx_ns = self.last_rx_ns = self.back_ns = 0
        self.once_from = self.turnaround_ns = self.timed = self.overtaken = 0
        self.ids_followed, self.ids_broke, self._last_id = 0, 0, -1
        # By slot: the PSN, and when that was first said.
        self._first_said: dict[int, tuple[int, int]] | None = None
        if not COMPILED:
            self._few: Any = _ZEROS[: _FEW * _WORDS]
            self._few_covered: Any = _ZEROS[: _FEW_COVERED * _WORDS]
        self._ring: AllSlots | None = None
        self._mask = _FEW - 1
        self._covered_ring: AllSlots | None = None
        self._covered = 0
        self._responses: RecentResponses | None = None

    # ------------------------------------------------------------------ at rest (see ``rest.sides``)

    def pack(self, out: NumberWriter) -> None:
        """Write all that are numbers; READ responses and what was said again stay as they are."""
        for time_ns in (self.last_tx_ns, self.last_rx_ns, self.back_ns):
            out.put_ns(time_ns)
        numbers = self.once_from, self.turnaround_ns, self.timed, self.overtaken, self.ids_followed
        for number in (*numbers, self.ids_broke, self._last_id, self._mask):
            out.put(number)
        out.put(self._covered if self._covered_ring is None else -1)
        before = at = 0
        while at < (self._mask + 1) * _WORDS:
            before = self._pack_slot(out, self._sent_word(at) + _ID_UNIT, before, self._sent_time_ns(at))
            at += _WORDS
        before = at = 0
        while at < self._covered * _WORDS:
            word = self._covered_word(at) + _MSN_UNIT
            before = self._pack_slot(out, word, before, self._covered_time_ns(at))
            at += _WORDS

    def _pack_slot(self, out: NumberWriter, word: int, before: int, time_ns: int) -> int:
        """Write a slot; those that are in use differ from each other."""
        if not word:
            out.put(0)
            return before
        out.put(word - before)
        out.put_ns(time_ns)
        return word

    def unpack(self, data: NumberReader) -> None:
        """Become what was written."""
        self.last_tx_ns, self.last_rx_ns = data.take_ns(), data.take_ns()
        self.back_ns, self.once_from = data.take_ns(), data.take()
        self.turnaround_ns, self.timed, self.overtaken = data.take(), data.take(), data.take()
        self.ids_followed, self.ids_broke = data.take(), data.take()
        self._last_id, self._mask, self._covered = data.take(), data.take(), data.take()
        if self._mask == _SLOT:
            self._ring = AllSlots()
        if self._covered < 0:
            self._covered_ring, self._covered = AllSlots(), RING
        before = at = 0
        while at < (self._mask + 1) * _WORDS:
            word = data.take()
            if word:
                before += word
                self._put_sent(at, before, data.take_ns())
            at += _WORDS
        before = at = 0
        while at < self._covered * _WORDS:
            word = data.take()
            if word:
                before += word
                self._put_covered(at, before, data.take_ns())
            at += _WORDS

    # ------------------------------------------------------------------ slots

    def _grow(self) -> None:
        """Two PSNs near each other have the same slot: from now on each has its own."""
        ring = AllSlots()
        for slot in range(_FEW):
            word = self._few[slot * _WORDS]
            if word:
                to = ((word - _ID_UNIT) >> _ID_BITS & _SLOT) * _WORDS
                ring.words[to], ring.words[to + 1] = word, self._few[slot * _WORDS + 1]
        self._ring, self._mask = ring, _SLOT

    def _sent_word(self, at: int) -> int:
        word: int = self._few[at] if self._ring is None else self._ring.words[at]
        return word - _ID_UNIT

    def _sent_at(self, p: int) -> int:
        """Where the packet last sent in the slot of ``p`` is; −1: there is none."""
        at = (p & self._mask) * _WORDS
        return at if self._mask == _SLOT or not (self._sent_word(at) >> _ID_BITS ^ p) & _SLOT else -1

    def _covered_word(self, at: int) -> int:
        word: int = self._few_covered[at] if self._covered_ring is None else self._covered_ring.words[at]
        return word - _MSN_UNIT

    def _covered_at(self, p: int) -> int:
        """Where the response in the slot of ``p`` is; −1: there is none."""
        if self._covered_ring is not None:
            return ((p - 1) & _SLOT) * _WORDS
        at = 0
        while at < self._covered * _WORDS:
            if not (self._covered_word(at) >> _MSN_BITS ^ p) & _SLOT:
                return at
            at += _WORDS
        return -1

    def _covered_anew(self, p: int) -> int:
        """Where a response to ``p`` is to be, in whose slot there is none yet."""
        if self._covered < _FEW_COVERED:
            self._covered += 1
            return (self._covered - 1) * _WORDS
        with cython.gil:
            self._cover_all()
        return ((p - 1) & _SLOT) * _WORDS

    def _cover_all(self) -> None:
        """More responses than the few slots have room for: from now on there is one for each."""
        ring = AllSlots()
        for n in range(_FEW_COVERED):
            word = self._few_covered[n * _WORDS]
            to = (((word - _MSN_UNIT) >> _MSN_BITS) - 1 & _SLOT) * _WORDS
            ring.words[to], ring.words[to + 1] = word, self._few_covered[n * _WORDS + 1]
        self._covered_ring, self._covered = ring, RING

    # ------------------------------------------------------------------ requests

    def sent(self, r: Rows, i: int, p: int) -> None:
        """The request at row ``i`` has PSN ``p``."""
        self.sent_as(r.ip_id[i], r.time_ns[i], p)

    def sent_as(self, ip_id: int, time_ns: int, p: int) -> None:
        """A request with this identification has PSN ``p``."""
        if self._last_id >= 0:
            step = (ip_id - self._last_id) & ID_MASK
            if step >= NEAR_IDS:
                self.ids_broke += 1
            elif step > 0:  # a copy says nothing
                self.ids_followed += 1
        self._last_id = ip_id
        at = (p & self._mask) * _WORDS
        if self._mask != _SLOT and self._sent_word(at) != _NOTHING_SENT and self._sent_at(p) < 0:
            with cython.gil:
                self._grow()
            at = (p & self._mask) * _WORDS
        self.last_tx_ns = time_ns
        self._put_sent(at, (p + 1) * _ID_UNIT + ip_id, time_ns)

    def sent_psn(self, p: int) -> int:
        """The PSN last sent in the slot of ``p``; −1: none."""
        at = self._sent_at(p)
        return self._sent_word(at) >> _ID_BITS if at >= 0 else -1

    def sent_id(self, p: int) -> int:
        """The IPv4 identification of the packet last sent in the slot of ``p``."""
        at = self._sent_at(p)
        return self._sent_word(at) & ID_MASK if at >= 0 else 0

    def sent_ns(self, p: int) -> int:
        """When the packet in the slot of ``p`` was sent."""
        at = self._sent_at(p)
        return self._sent_time_ns(at) if at >= 0 else 0

    def _sent_time_ns(self, at: int) -> int:
        sent_ns: int = self._few[at + 1] if self._ring is None else self._ring.words[at + 1]
        return sent_ns

    def _put_sent(self, at: int, word: int, time_ns: int) -> None:
        if self._ring is None:
            self._few[at], self._few[at + 1] = word, time_ns
        else:
            self._ring.words[at], self._ring.words[at + 1] = word, time_ns

    def last_sent_ns(self, p: int) -> int:
        """When PSN ``p`` was last sent, as far back as is remembered."""
        return self.sent_ns(p) if self.sent_psn(p) == p else self.last_tx_ns

    def is_shared_id(self, ip_id: int, p: int) -> bool:
        """Whether other PSNs had this identification too: then it does not tell packets apart."""
        at, end = 0, (self._mask + 1) * _WORDS
        while at < end:
            word = self._sent_word(at)
            if word & ID_MASK == ip_id and word >= 0 and word >> _ID_BITS != p:
                return True
            at += _WORDS
        return False

    def counts_ids(self) -> bool:
        """Whether the identifications of the sender's packets are a count, as they have come so far."""
        return self.ids_followed >= FOLLOWED and self.ids_followed >= self.ids_broke

    def is_newest(self, ip_id: int) -> bool:
        """Whether a sender that counts its packets sent the one with this identification last."""
        return 0 < (ip_id - self._last_id) & ID_MASK < NEAR_IDS and self.counts_ids()

    def seems_newest(self, ip_id: int) -> bool:
        """Whether it was sent last, if nothing so far speaks against a count of identifications."""
        newest = 0 < (ip_id - self._last_id) & ID_MASK < NEAR_IDS
        return newest and (not self.ids_broke or self.counts_ids())

    def comes_after(self, ip_id: int, before: int) -> bool:
        """Whether a sender that counts its packets gave out an identification shortly after another."""
        return 0 < (ip_id - before) & ID_MASK < NEAR_IDS

    def newest_id(self) -> int:
        """The identification of the packet that was sent last, if the sender counts them."""
        newest = self._last_id
        if not self.ids_broke:  # none went down so far
            return newest
        for slot in range(_SLOT + 1):
            at = self._sent_at(slot)
            word = self._sent_word(at) if at >= 0 else -1
            if word >= 0:
                ip_id = word & ID_MASK
                if 0 < (ip_id - newest) & ID_MASK < NEAR_IDS:
                    newest = ip_id
        return newest

    def was_overtaken(self, r: Rows, i: int) -> bool:
        """Whether a packet that was sent after the one at row ``i`` came before it.

        Its IPv4 identification says so: many senders count the packets to an address, or of the host. Of
        senders that do not, identifications say nothing.
        """
        ip_id = r.ip_id[i]
        if ip_id and self.counts_ids():
            at, end = 0, (self._mask + 1) * _WORDS
            while at < end:
                word = self._sent_word(at)
                if word >= 0 and 0 < (word - ip_id) & ID_MASK < NEAR_IDS:
                    return True
                at += _WORDS
        return False

    def is_late(self, r: Rows, i: int, p: int, seen: bool) -> bool:
        """Whether the network delayed the packet at row ``i``, so that it repeats none that came before."""
        if not self.was_overtaken(r, i):
            return False
        self.overtaken += 1
        if not seen or self.sent_psn(p) != p:
            return not seen
        return (r.ip_id[i] - self.sent_id(p)) & ID_MASK > ID_MASK >> 1

    # ------------------------------------------------------------------ responses

    def covered(self, upto: int, time_ns: int, msn: int) -> None:
        """A response came that skips every READ and atomic below ``upto`` that has no response.

        ``msn``: how many requests the responder had completed, which are those below ``upto``; −1: not known.
        """
        slot = upto & _SLOT
        if self.covered_upto(slot) == upto:
            with cython.gil:
                self._said_again(slot)
        at = self._covered_at(upto)
        if at < 0:
            at = self._covered_anew(upto)
        self.last_rx_ns = time_ns
        self._put_covered(at, (upto + 1) * _MSN_UNIT + (msn + 1), time_ns)

    def _put_covered(self, at: int, word: int, time_ns: int) -> None:
        if self._covered_ring is None:
            self._few_covered[at], self._few_covered[at + 1] = word, time_ns
        else:
            self._covered_ring.words[at], self._covered_ring.words[at + 1] = word, time_ns

    def _said_again(self, slot: int) -> None:
        """A response says what one before said: remember when the first since the last go-back came."""
        if self._first_said is None:
            self._first_said = {}
        upto, first_ns = self._first_said.get(slot, (-1, 0))
        if upto != self.covered_upto(slot) or first_ns <= self.back_ns:
            self._first_said[slot] = self.covered_upto(slot), self.covered_ns(slot)

    def answered(self, p: int, time_ns: int) -> None:
        """A response to ``p`` came, and no NAK. If ``p`` was sent twice, it may be for either copy (Karn)."""
        if p >= self.once_from and self.sent_psn(p) == p:
            self._took(time_ns - self.sent_ns(p))

    def _took(self, took_ns: int) -> None:
        """A request that was sent once was answered after so long."""
        if took_ns > 0:
            self.timed += 1
            if took_ns < self.turnaround_ns or self.turnaround_ns == 0:
                self.turnaround_ns = took_ns

    def drew(self, p: int, high: int, time_ns: int) -> None:
        """A NAK for ``p`` came: the first packet behind it drew it, if none there was sent twice.

        Args:
            high: one past the highest PSN sent.
        """
        if p + 1 < self.once_from:
            return
        for q in range(p + 1, min(p + RING, high)):
            if self.sent_psn(q) == q:
                self._took(time_ns - self.sent_ns(q))
                return

    def covered_upto(self, p: int) -> int:
        """One past the PSNs that a response in the slot of ``p`` covered; −1: none."""
        at = self._covered_at(p)
        return self._covered_word(at) >> _MSN_BITS if at >= 0 else -1

    def covered_before(self, p: int, least: int) -> int:
        """The highest PSN from ``least`` to below ``p`` up to which a response covered; else less than it."""
        found = least - 1
        if self._covered_ring is None:
            at = 0
            while at < self._covered * _WORDS:
                upto = self._covered_word(at) >> _MSN_BITS
                if found < upto < p:
                    found = upto
                at += _WORDS
            return found
        q = p - 1
        while q > found and self.covered_upto(q) != q:
            q -= 1
        return q

    def covered_msn(self, p: int) -> int:
        """How many requests the responder had completed, as that response counts; −1: not known."""
        at = self._covered_at(p)
        return (self._covered_word(at) & _MSN_MASK) - 1 if at >= 0 else -1

    def covered_ns(self, p: int) -> int:
        """When that response came."""
        at = self._covered_at(p)
        return self._covered_time_ns(at) if at >= 0 else 0

    def _covered_time_ns(self, at: int) -> int:
        ring = self._covered_ring
        time_ns: int = self._few_covered[at + 1] if ring is None else ring.words[at + 1]
        return time_ns

    def latest_response_ns(self, p: int, until_ns: int) -> int:
        """When the last response before ``until_ns`` came that covers more than PSN ``p``."""
        latest_ns, at = 0, 0
        while at < self._covered * _WORDS:
            upto, covered_ns = self._covered_word(at) >> _MSN_BITS, self._covered_time_ns(at)
            at += _WORDS
            if upto <= p:
                continue
            slot = upto & _SLOT
            if covered_ns >= until_ns and self._first_said is not None and slot in self._first_said:
                said, first_ns = self._first_said[slot]
                covered_ns = first_ns if said == upto else covered_ns
            if latest_ns < covered_ns < until_ns:
                latest_ns = covered_ns
        return latest_ns

    def responded(self, p: int, ip_id: int) -> None:
        """A READ response with PSN ``p`` came."""
        if self._responses is None:
            with cython.gil:
                self._responses = RecentResponses()
        self._responses.came(p, ip_id)

    def is_late_response(self, ip_id: int) -> bool:
        """Whether a response that was sent after the one with this identification came before it."""
        return self._responses is not None and self._responses.is_late(ip_id)

    def response_id(self, p: int) -> int:
        """The IPv4 identification of the last READ response with PSN ``p``; 0: not known."""
        return 0 if self._responses is None else self._responses.id_of(p)

    def is_the_response(self, p: int, ip_id: int) -> bool:
        """Whether one of this PSN's last two READ responses had this identification, and no other PSN's."""
        return self._responses is not None and self._responses.was(p, ip_id)


class RecentResponses:
    """The last READ responses that one side got, by PSN; most requesters get none.

    Attributes:
        followed, broke: how many had an identification shortly above the one before, and how many another.
    """

    def __init__(self) -> None:
        self.followed = self.broke = 0
        self._newest = -1
        self._ring: Any = _NO_RESPONSES[:]

    def came(self, p: int, ip_id: int) -> None:
        """A READ response with PSN ``p`` came."""
        self._ring[p & _SLOT] = ((p & 0xFFFFFF) * _ID_UNIT + self.id_of(p)) * _ID_UNIT + ip_id
        if self._newest >= 0:
            step = (ip_id - self._newest) & ID_MASK
            if 0 < step < NEAR_IDS:
                self.followed += 1
                self._newest = ip_id
            elif step > ID_MASK - NEAR_IDS:  # overtaken
                pass
            elif step:
                self.broke += 1
                self._newest = ip_id
        else:
            self._newest = ip_id

    def is_late(self, ip_id: int) -> bool:
        """Whether a response that was sent after the one with this identification came before it."""
        counts = self.followed >= FOLLOWED and self.followed >= self.broke
        return counts and ip_id != 0 and 0 < (self._newest - ip_id) & ID_MASK < NEAR_IDS

    def id_of(self, p: int) -> int:
        """The IPv4 identification of the last response with PSN ``p``; 0: not known."""
        word: int = self._ring[p & _SLOT]
        return word & ID_MASK if word >> _ID_BITS >> _ID_BITS == p & 0xFFFFFF else 0

    def was(self, p: int, ip_id: int) -> bool:
        """Whether one of the last two responses with this PSN had this identification, and no other PSN's.

        Two: a request that came twice is answered twice, and both responses may come before their copies.
        """
        was = False
        for slot in range(RING):
            word = self._ring[slot]
            if word < 0 or (word & ID_MASK != ip_id and word >> _ID_BITS & ID_MASK != ip_id):
                continue
            if word >> _ID_BITS >> _ID_BITS != p & 0xFFFFFF:
                return False
            was = True
        return was
