"""What backward keeps, packed until it is needed: hooks around everything that autograd saves."""
