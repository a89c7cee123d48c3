"""How buckets move."""
