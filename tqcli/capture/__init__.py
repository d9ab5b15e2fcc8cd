"""Captures: hooks into a running model, and the folder of shards that they fill."""
