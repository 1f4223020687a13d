"""``ring``: every host connected with the next, and the last with the first."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rocekit.scenarios.group_member import Member, Steps
from rocekit.scenarios.group_scenario import WORD, GroupPlan, GroupScenario, Load, add


class Ring(GroupScenario):
    """n hosts connected in a ring, 0–1–2–…–0; data goes round one way.

    1. each host has a QP for the one before it and one for the next: 2n QPs at n links (ibv_create_qp);
    2. neighbours exchange QPN, PSN, address and rkey, and move their QPs to RTR and RTS
       (ibv_modify_qp);
    3. all-to-all: each host WRITEs all its n−1 blocks to the next (ibv_post_send,
       IBV_WR_RDMA_WRITE_WITH_IMM), which keeps the first and passes the others on, and so on (ibv_poll_cq:
       the immediate completes a receive). A block takes up to n−1 hops, and every link carries n·(n−1)/2;
    4. all-reduce: the vector is cut into n pieces. In n−1 steps each host gets a piece, adds its own and
       passes it on, after which every host has one piece of the sum; in n−1 more those go round. 2·(n−1)
       hops, and every link carries 2·(n−1)/n of a vector, for any number of hosts;
    5. each host checks the blocks and the sums.

    Few QPs and evenly loaded links; but each hop waits for the slowest link.
    """

    name = "ring"
    summary = "n hosts connected in a ring, 2n QPs: the same exchanges, passed on from host to host."
    least = 3

    def pairs(self, count: int) -> list[tuple[int, int]]:
        return [(i, (i + 1) % count) for i in range(count)]

    def loads(self, plan: GroupPlan, src: int, dst: int) -> tuple[Load, Load]:
        n = plan.hosts
        if dst != (src + 1) % n:
            return Load(0, 0, 0), Load(0, 0, 0)
        piece = plan.words // n * WORD
        return (
            Load(n - 1, n * (n - 1) // 2 * plan.size, (n - 1) * plan.size),
            Load(2 * (n - 1), 2 * (n - 1) * piece, piece),
        )

    def all_to_all(self, member: Member, group: Sequence[Member], blocks: list[bytes]) -> Steps[list[bytes]]:
        got, size = list(blocks), len(blocks[0])
        travelling = b"".join(blocks[peer] for peer in member.others)
        for step in range(1, member.count):
            member.put(member.next, travelling)
            arrived = yield from member.take(member.previous, group)
            # What came was sent ``step`` hosts ago; its first block is for this host.
            got[(member.rank - step) % member.count] = arrived[:size]
            travelling = arrived[size:]
        return got

    def all_reduce(self, member: Member, group: Sequence[Member], vector: array[int]) -> Steps[array[int]]:
        n, length = member.count, len(vector) // member.count
        pieces = [vector[i * length : (i + 1) * length] for i in range(n)]
        for step in range(2 * (n - 1)):
            member.put(member.next, pieces[(member.rank - step) % n].tobytes())
            data = yield from member.take(member.previous, group)
            came, place = array("I", data), (member.rank - step - 1) % n
            # In the first n−1 steps a piece grows on its way, in the others it is whole.
            pieces[place] = add(pieces[place], came) if step < n - 1 else came
        return array("I", b"".join(piece.tobytes() for piece in pieces))
