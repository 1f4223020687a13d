"""``mesh``: every host connected with every other."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import combinations

from rocekit.scenarios.group_member import Member, Steps
from rocekit.scenarios.group_scenario import WORD, GroupPlan, GroupScenario, Load, add


class Mesh(GroupScenario):
    """n hosts connected all to all.

    1. each host has a QP for every other one: n·(n−1) QPs at n·(n−1)/2 links (ibv_create_qp);
    2. all exchange QPN, PSN, address and rkey, and move their QPs to RTR and RTS (ibv_modify_qp);
    3. all-to-all: each host WRITEs its block for host i to host i (ibv_post_send,
       IBV_WR_RDMA_WRITE_WITH_IMM), all at once, and polls for the n−1 blocks for it (ibv_poll_cq: the
       immediate completes a receive). Every block takes one hop;
    4. all-reduce: the vector is cut into n pieces, and host i adds up the i-th pieces of all; each sends
       every other host the piece of that host, then sends every other host the sum of its own. Two hops;
    5. each host checks the blocks and the sums.

    The fewest possible hops; but the number of QPs grows with the square of the hosts, and all of a host's
    traffic is sent at once.
    """

    name = "mesh"
    summary = (
        "n hosts connected all to all, n·(n−1) QPs: an all-to-all and an all-reduce in one and two hops."
    )

    def pairs(self, count: int) -> list[tuple[int, int]]:
        return list(combinations(range(count), 2))

    def loads(self, plan: GroupPlan, src: int, dst: int) -> tuple[Load, Load]:
        piece = plan.words // plan.hosts * WORD
        return Load(1, plan.size, plan.size), Load(2, 2 * piece, piece)

    def all_to_all(self, member: Member, group: Sequence[Member], blocks: list[bytes]) -> Steps[list[bytes]]:
        for peer in member.others:
            member.put(peer, blocks[peer])
        got = list(blocks)  # its own stays
        for peer in member.others:
            got[peer] = yield from member.take(peer, group)
        return got

    def all_reduce(self, member: Member, group: Sequence[Member], vector: array[int]) -> Steps[array[int]]:
        length = len(vector) // member.count
        pieces = [vector[i * length : (i + 1) * length] for i in range(member.count)]
        for peer in member.others:
            member.put(peer, pieces[peer].tobytes())
        total = pieces[member.rank]
        for peer in member.others:
            data = yield from member.take(peer, group)
            total = add(total, array("I", data))
        for peer in member.others:
            member.put(peer, total.tobytes())
        pieces[member.rank] = total
        for peer in member.others:
            data = yield from member.take(peer, group)
            pieces[peer] = array("I", data)
        return array("I", b"".join(piece.tobytes() for piece in pieces))
