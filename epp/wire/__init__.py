"""The ext_proc conversation as a sans-IO state machine: messages in, events and replies out."""
