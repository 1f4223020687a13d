"""The connection manager: it makes and ends connections over QP1, as rdma_cm does (chapter 12, annex A11)."""
