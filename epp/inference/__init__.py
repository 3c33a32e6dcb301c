"""What an inference request is: parsing each API's bodies, prompt bytes for hashing, usage, model rewrite."""
