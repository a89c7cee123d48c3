"""The background thread: carries out what the cores decide."""
