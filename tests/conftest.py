"""Being here, it lets tests of every room import the helpers that lie beside it."""
