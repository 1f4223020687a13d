"""Work requests and their completions: which completion ends which request, its own or an implied one."""

from __future__ import annotations

import pytest
from story import Story

from rocekit.journal.work_requests import JournalQp, Programs, WorkRequest, read_programs


def programs(text: str) -> Programs:
    return read_programs(Story(text).journal())


def qp_of(text: str) -> JournalQp:
    (qp,) = programs(text).qps
    return qp


def ended(wr: WorkRequest) -> str:
    """``7 SUCCESS``, ``7 by 9`` where the completion of 9 implies it, ``7 -`` where nothing ends it."""
    if wr.wc is not None:
        return f"{wr.wr_id} {wr.wc.status}"
    return f"{wr.wr_id} by {wr.implied_by.wr_id}" if wr.implied_by is not None else f"{wr.wr_id} -"


def sends(text: str) -> list[str]:
    return [ended(wr) for wr in qp_of(text).sends]


def test_a_completion_belongs_to_the_request_of_its_wr_id() -> None:
    assert sends(
        """
        A wr 1 SEND 64
        A wr 2 RDMA_WRITE 64
        A wc 1 SUCCESS opcode=SEND
        A wc 2 SUCCESS opcode=RDMA_WRITE
        """
    ) == ["1 SUCCESS", "2 SUCCESS"]


def test_a_send_queue_completes_in_order_so_a_completion_implies_the_unsignaled_before_it() -> None:
    assert sends(
        """
        A wr 1 SEND 64 unsignaled
        A wr 2 SEND 64 unsignaled
        A wr 3 SEND 64
        A wr 4 SEND 64 unsignaled
        A wc 3 SUCCESS opcode=SEND
        """
    ) == ["1 by 3", "2 by 3", "3 SUCCESS", "4 -"]


def test_the_same_wr_id_used_again_and_again_is_completed_in_order() -> None:
    text = "".join("A wr 7 SEND 64\n" for _ in range(3)) + "".join(
        "A wc 7 SUCCESS opcode=SEND\n" for _ in range(2)
    )
    assert sends(text) == ["7 SUCCESS", "7 SUCCESS", "7 -"]


def test_the_same_wr_id_for_signaled_and_unsignaled_completes_the_signaled_one() -> None:
    assert sends(
        """
        A wr 0 SEND 64 unsignaled
        A wr 0 SEND 64 unsignaled
        A wr 0 SEND 64
        A wc 0 SUCCESS opcode=SEND
        """
    ) == ["0 by 0", "0 by 0", "0 SUCCESS"]


def test_an_error_completes_even_the_unsignaled_and_flushes_what_follows() -> None:
    assert sends(
        """
        A wr 1 SEND 64 unsignaled
        A wr 2 RDMA_READ 64
        A wr 3 SEND 64
        A wc 1 RETRY_EXC_ERR
        A wc 2 WR_FLUSH_ERR
        A wc 3 WR_FLUSH_ERR
        """
    ) == ["1 RETRY_EXC_ERR", "2 WR_FLUSH_ERR", "3 WR_FLUSH_ERR"]


def test_a_request_refused_when_posted_never_reached_the_queue() -> None:
    qp = qp_of(
        """
        A wr 1 SEND 64 errno=12
        A wr 1 SEND 64
        A wc 1 SUCCESS opcode=SEND
        """
    )
    assert [(wr.refused, wr.wc is not None) for wr in qp.sends] == [(True, False), (False, True)]


def test_receives_complete_by_wr_id_beside_sends_of_the_same_wr_id() -> None:
    qp = qp_of(
        """
        A recv 1 4096
        A wr 1 SEND 64
        A wc 1 SUCCESS opcode=RECV byte_len=100
        A wc 1 SUCCESS opcode=SEND
        """
    )
    assert [ended(wr) for wr in qp.sends] == ["1 SUCCESS"]
    (receive,) = qp.receives
    assert receive.wc is not None
    assert receive.wc.event["byte_len"] == 100


def test_flushed_receives_have_no_opcode_and_are_found_by_wr_id() -> None:
    """Of an error completion only wr_id, status, QPN and vendor error are valid (11.4.2.1)."""
    qp = qp_of(
        """
        A recv 100 4096
        A wr 1 SEND 64
        A wc 100 WR_FLUSH_ERR
        A wc 1 WR_FLUSH_ERR
        """
    )
    assert [ended(wr) for wr in (*qp.sends, *qp.receives)] == ["1 WR_FLUSH_ERR", "100 WR_FLUSH_ERR"]


def test_a_flushed_receive_that_claims_to_be_a_send_is_still_found() -> None:
    qp = qp_of("A recv 100 4096\n A wc 100 WR_FLUSH_ERR opcode=SEND")
    assert ended(qp.receives[0]) == "100 WR_FLUSH_ERR"


def test_a_completion_whose_request_is_not_in_the_journal_is_kept_apart() -> None:
    qp = qp_of("A wr 1 SEND 64\n A wc 9 SUCCESS opcode=SEND")
    assert [ended(wr) for wr in qp.sends] == ["1 -"]
    assert [wc.wr_id for wc in qp.stray_completions] == [9]


def test_a_qpn_created_again_is_another_qp() -> None:
    first, second = programs(
        """
        A created
        A wr 1 SEND 64
        A created
        A wr 1 SEND 32
        A wc 1 SUCCESS opcode=SEND
        """
    ).qps
    assert [ended(wr) for wr in first.sends] == ["1 -"]
    assert [ended(wr) for wr in second.sends] == ["1 SUCCESS"]


def test_the_same_qpn_on_two_hosts_is_two_qps() -> None:
    found = read_programs(
        Story("A wr 1 SEND 64\n B wr 1 SEND 64\n B wc 1 SUCCESS", qpns=(0x11, 0x11)).journal()
    )
    assert [[ended(wr) for wr in qp.sends] for qp in found.qps] == [["1 -"], ["1 SUCCESS"]]


def test_attributes_are_what_was_set_last() -> None:
    qp = qp_of("A created\n A modified state=RTR path_mtu=1024\n A modified state=RTS sq_psn=5")
    assert (qp.attributes["state"], qp.attributes["path_mtu"], qp.attributes["sq_psn"]) == ("RTS", 1024, 5)


@pytest.mark.parametrize(
    ("opcode", "operation"),
    [
        ("SEND", "SEND"),
        ("SEND_WITH_IMM", "SEND"),
        ("SEND_WITH_INV", "SEND"),
        ("RDMA_WRITE", "WRITE"),
        ("RDMA_WRITE_WITH_IMM", "WRITE"),
        ("RDMA_READ", "READ"),
        ("ATOMIC_FETCH_AND_ADD", "FETCH_ADD"),
        ("ATOMIC_CMP_AND_SWP", "CMP_SWAP"),
    ],
)
def test_each_opcode_of_verbs_is_an_operation_of_transfers(opcode: str, operation: str) -> None:
    assert qp_of(f"A wr 1 {opcode} 64").sends[0].operation == operation


def test_work_requests_of_all_qps_are_sorted_by_the_time_of_posting() -> None:
    found = programs("A wr 1 SEND 64\n +1us\n B wr 2 SEND 64\n +1us\n A wr 3 SEND 64")
    assert [wr.wr_id for wr in found.work_requests] == [1, 2, 3]


def test_a_qp_whose_first_event_changes_no_state_is_not_at_its_beginning() -> None:
    """As where the recorder was attached, and the program then changes access rights or a timeout only."""
    told = qp_of("A modified timeout=14")
    assert not told.begun
