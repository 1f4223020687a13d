"""The truth bench: experiments with faults of a known place, and a score of each claim about them.

``experiments`` says what is made, ``tests/inside/truth_inside.py`` makes it in the lab. ``packets``, ``sets``
and ``judge`` find what really happened, and share no code with rocekit. ``claims`` and ``numbers`` compare it
with what an analysis says; ``score`` does it for an experiment, from every view.
"""
