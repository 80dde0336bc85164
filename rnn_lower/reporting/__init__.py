"""A report of one model, before and after, for people: what is known of it, drawn and written on one page."""
