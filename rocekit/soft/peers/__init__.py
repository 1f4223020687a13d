"""Soft counterparts of other programs: rping, the libibverbs ping-pongs, and perftest's bandwidth tests.

``rocekit inject rping --backend soft -d eth0`` is the server for ``rping -c -a ADDRESS`` on another machine,
with any device. The data that comes back is checked.
"""
