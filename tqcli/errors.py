"""Errors that a user can mend: the command line prints each as one line and exits with its code."""

from __future__ import annotations


class TqError(Exception):
    """Base of every error that tq raises on purpose. The message names the value and the remedy."""

    exit_code = 2


class InputError(TqError):
    """A value, a file or a folder that the user gave can't be used."""
