"""Tables of `rocekit export` that are made by columns: packets and transfers."""
