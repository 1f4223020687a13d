"""Captures changed: cut out, made anonymous, rewritten, sent again."""
