"""Soft counterparts of programs that others wrote: rping and the libibverbs ping-pongs, client and server.

``python -m rocekit.soft.peers rping-server -d eth0`` answers ``rping -c -a ADDRESS`` on another machine,
whatever device runs there; every byte that comes back is checked.
"""
