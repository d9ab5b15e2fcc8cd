"""Compressing whole captures: which codec for which layer, what stays uncompressed, and the folder it is kept in."""
