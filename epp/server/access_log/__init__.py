"""How responses end that the picker has let go: Envoy's access log says so, in a record that comes back to us."""
