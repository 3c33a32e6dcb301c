"""The decoding sequences of a batch, counted instead of visited.

Each of them computes one token in every step, so what it has computed follows from the number of steps since it joined.
Two things happen to it at steps that are known when it joins: it needs another KV block whenever the last one is full,
and it ends. It is entered under both, and a step looks only at who is entered under its number.
"""

from epp.sim.sequence import Sequence


class Decoders:
    """
    Attributes:
        steps: how many there have been.
        count: sequences that decode.
        context_tokens: what they have computed, together.
        changes: how often one joined or left.
    """

    def __init__(self, block_tokens: int) -> None:
        self.steps = 0
        self.count = 0
        self.context_tokens = 0
        self.changes = 0
        self._block_tokens = block_tokens
        self._growing: list[dict[Sequence, None]] = [{} for _ in range(block_tokens)]  # by step, modulo block size
        self._ending: dict[int, dict[Sequence, None]] = {}  # by the step that makes the last token

    @property
    def growing(self) -> dict[Sequence, None]:
        """Those whose next token begins a new block."""
        return self._growing[self.steps % self._block_tokens]

    @property
    def growing_next(self) -> dict[Sequence, None]:
        """The same of the token after that."""
        return self._growing[(self.steps + 1) % self._block_tokens]

    @property
    def next_ends(self) -> bool:
        """With the next token somebody has all of them."""
        return self.steps + 1 in self._ending

    def add(self, sequence: Sequence) -> None:
        """From the next step on it decodes. What was computed of it is all it has."""
        sequence.decoding_since = self.steps
        self.count += 1
        self.changes += 1
        self.context_tokens += sequence.computed_tokens
        self._growing[self._phase(sequence)][sequence] = None
        self._ending.setdefault(self._end(sequence), {})[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        """It stops decoding, if it does, and its own counts are true again."""
        since = sequence.decoding_since
        if since is None:
            return
        self._growing[self._phase(sequence)].pop(sequence)
        at_end = self._ending.get(self._end(sequence))
        if at_end is not None:
            del at_end[sequence]
        done = self.steps - since
        sequence.computed_tokens += done
        sequence.produced_tokens += done
        sequence.decoding_since = None
        self.count -= 1
        self.changes += 1
        self.context_tokens -= sequence.computed_tokens

    def advance(self) -> list[Sequence]:
        """One more step is over. Those that got their last token by it; they decode no more."""
        self.steps += 1
        self.context_tokens += self.count
        at_end = self._ending.pop(self.steps, None)
        if at_end is None:
            return []
        ended = list(at_end)
        for sequence in ended:
            self.remove(sequence)
        return ended

    def produced_tokens(self, sequence: Sequence) -> int:
        """Output tokens of any sequence so far."""
        since = sequence.decoding_since
        return sequence.produced_tokens + (0 if since is None else self.steps - since)

    def _phase(self, sequence: Sequence) -> int:
        """Steps, modulo block size, before which its blocks are full."""
        since = sequence.decoding_since or 0
        return (since - sequence.computed_tokens) % self._block_tokens

    def _end(self, sequence: Sequence) -> int:
        since = sequence.decoding_since or 0
        return since + sequence.request.output_tokens - sequence.produced_tokens
