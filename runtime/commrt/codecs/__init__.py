"""What travels instead of the values themselves, and how it is summed."""
