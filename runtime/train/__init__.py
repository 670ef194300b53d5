"""A run from first to last: meet, resume, train, evaluate, save, show."""
