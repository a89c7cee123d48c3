"""What happened, and when."""
