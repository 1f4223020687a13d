"""Inside the lab: a small selection of drills on rxe0, by a packet side on vb, and an agent beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


def main() -> None:
    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    rocekit = [sys.executable, "-m", "rocekit"]
    with (out / "results.json").open("wb") as file:
        subprocess.run(
            [*rocekit, "conform", *DRILLS, "--device", "rxe0", *PEER, "--format", "json"],
            stdout=file,
            check=False,
        )
    random = ["--random", "1", "--runs", "4", "--format", "json"]
    with (out / "random.json").open("wb") as file:
        subprocess.run([*rocekit, "conform", *random, "--device", "rxe0", *PEER], stdout=file, check=False)
    agent = subprocess.Popen(
        [*rocekit, "conform-agent", "--device", "rxe0", "--once"], stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    print(agent.stdout.readline(), end="", flush=True)
    done = subprocess.run(
        [*rocekit, "conform", DRILLS[0], "--agent", "127.0.0.1", *PEER, "--format", "json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    (out / "agent.json").write_bytes(done.stdout)
    agent.wait(60)
    refused = subprocess.run(
        [*rocekit, "conform", DRILLS[0], "--device", "rxe0", "--interface", "vb", "--peer-ip", "192.0.2.9"],
        capture_output=True,
        text=True,
        check=False,
    )
    (out / "refused.json").write_text(json.dumps([refused.returncode, refused.stderr]))
    for name, drills in (("cm_beside.json", CM_DRILLS[:1]), ("cm.json", CM_DRILLS)):
        with (out / name).open("wb") as file:
            subprocess.run(
                [*rocekit, "conform", *drills, "--device", "rxe0", *PEER, "--format", "json"],
                stdout=file,
                check=False,
            )
        if name != "cm.json":
            subprocess.run(["rdma", "link", "delete", "rxe1"], check=False)


if __name__ == "__main__":
    main()
