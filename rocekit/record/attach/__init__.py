"""Recording a program that runs already, without stopping or restarting it.

Its open devices are found in its memory (``verbs_objects``). A few instructions in one of its threads
put a way in there (``way_in``), and the program's next post or poll loads the interposer.
docs/guide/attaching.md says what was tried, and why this.

Nothing is imported here: NumPy starts threads, and signals must be blocked by then (``holding_signals``).
"""
