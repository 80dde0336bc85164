"""The rules of operators: on which frames their results depend, and how they run in chunks; table.py lists all."""
