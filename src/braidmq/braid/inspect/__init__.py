"""What a broker can say of its braid to people."""
