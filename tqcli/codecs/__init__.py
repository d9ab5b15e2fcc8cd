"""Codecs: one file each, registered by a decorator, found by themselves."""
