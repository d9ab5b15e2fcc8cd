"""Results: their schema, and how they are shown."""
