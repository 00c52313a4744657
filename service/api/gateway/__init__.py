"""What a request passes before an endpoint: connections, heads, rates."""
