"""Soft counterparts of programs that others wrote: rping, the libibverbs ping-pongs, perftest's bandwidth
tests.

``rocekit inject rping --backend soft -d eth0`` answers ``rping -c -a ADDRESS`` on another machine, whatever
device runs there; what rping and the ping-pongs get back is checked.
"""
