"""The conformance suite of RoCE v2: drills, a peer that plays them with a device, and verdicts.

A *drill* is one test in one file: its claim with the clause of the specification, what the device's program
does, which packets the device is sent, and which must come from it. :mod:`.language` reads it, :mod:`.player`
plays it without I/O, a *bench* gives it time, packets and a device: :mod:`.soft_bench` a soft device and a
simulated clock, :mod:`.wire_bench` an interface and any device of verbs. :mod:`.suite` runs many.
"""
