"""A simulated model server, traffic for it, and the demonstration that puts Envoy and the picker between them."""
