"""What stops a start: one line that names what is wrong and how to mend it."""


class Problem(Exception):
    """A mistake in what the user gave us: a flag, a file, a port, a certificate.

    Its text is for the user: complete, one line per mistake, without a traceback. The command line prints it and exits
    with 2.
    """
