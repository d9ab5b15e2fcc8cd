"""Recipes: a whole study in one file. What one may hold, how it is read, run and judged."""
