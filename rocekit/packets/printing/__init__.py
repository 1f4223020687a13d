"""Packets as lines of text, made from columns: see ``lines``."""
