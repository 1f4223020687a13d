"""Inside the lab: a small selection of drills on rxe0, by a packet side on vb, and an agent beside it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from subprocess import PIPE

from lab_forks import PRELOADED, Forks, read_gid_tables_once

#: Drills whose verdict is alike on every rxe: quick, and each of another kind.
DRILLS = (
    *("responder/requests/send_several", "responder/requests/read_several", "responder/requests/fetch_add"),
    *("responder/psn/gap", "responder/psn/wrap", "responder/duplicates/write", "responder/duplicates/atomic"),
    *("responder/sequence/middle_without_first", "responder/access/write_bad_key", "responder/rnr/again"),
    *("requester/requests/send_several", "requester/nak/sequence", "requester/completion/read_not_by_ack"),
    *("requester/rnr/waits_at_least", "uc/gap_between_messages", "ud/wrong_qkey"),
    *("responder/solicited/only_solicited", "responder/credits/shared_queue"),
)
#: Drills of the connection manager; rxe1, which has the packet side's address, must be gone for them.
CM_DRILLS = (
    *("cm/passive/rep", "cm/passive/stale", "cm/passive/dreq_again", "cm/passive/rej_no_service"),
    *("cm/passive/req_again_before_rep", "cm/active/req", "cm/active/rep_again"),
)
PEER = ("--interface", "vb", "--peer-ip", "10.9.0.2")


#: What ``rocekit conform`` loads when it is called.
LOADS = (
    *(*PRELOADED, "rocekit.commands.conform", "rocekit.commands.conform_agent"),
    *("rocekit.conform.records", "rocekit.conform.suite", "rocekit.conform.known", "rocekit.conform.agent"),
    *("rocekit.conform.wire_bench", "rocekit.conform.verbs_device", "rocekit.conform.random_drills"),
    "hypothesis",
)


def main() -> None:
    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    read_gid_tables_once()
    with Forks(*LOADS) as forks:

        def conform(name: str, *words: str) -> None:
            with (out / name).open("wb") as file:
                forks.start("conform", *words, *PEER, "--format", "json", stdout=file).wait()

        conform("results.json", *DRILLS, "--device", "rxe0")
        conform("random.json", "--random", "1", "--runs", "4", "--device", "rxe0")
        agent = forks.start("conform-agent", "--device", "rxe0", "--once", stdout=PIPE)
        assert agent.stdout is not None
        print(agent.stdout.readline(), end="", flush=True)
        conform("agent.json", DRILLS[0], "--agent", "127.0.0.1")
        agent.wait(60)
        refused = forks.start(
            *("conform", DRILLS[0], "--device", "rxe0", "--interface", "vb", "--peer-ip", "192.0.2.9"),
            stderr=PIPE,
        )
        _, said = refused.communicate()
        (out / "refused.json").write_text(json.dumps([refused.returncode, said]))
        conform("cm_beside.json", *CM_DRILLS[:1], "--device", "rxe0")
        subprocess.run(["rdma", "link", "delete", "rxe1"], check=False)
        conform("cm.json", *CM_DRILLS, "--device", "rxe0")


if __name__ == "__main__":
    main()
