"""Facts about graphs and operators that every package reads: walking, schemas, statistics."""
