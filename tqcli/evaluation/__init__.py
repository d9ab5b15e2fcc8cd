"""Walks a capture with codecs and measures what they do to it."""
