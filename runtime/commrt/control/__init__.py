"""How ranks find each other and exchange control messages."""
