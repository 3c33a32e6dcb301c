"""A family of metrics as it is at one moment, and the lines that stand for it on a page.

To read a family is to copy its numbers, and cheap: so all lines of a page can be of one moment. Lines are made child by
child, and whoever writes a page can do something else in between. They are what prometheus-client writes, in all of its
formats; that takes 20 µs for a line, of which a page with many labels has 150,000. Its own samples are made only for
those who ask for them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]
Child = tuple[Labels, Sequence[float]]

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


@dataclass(frozen=True, slots=True)
class Reading:
    """
    Attributes:
        name: without the suffixes of its samples.
        kind: `counter`, `gauge` or `histogram`.
        children: by label values, in the order of `label_names`: the number; of a histogram what each of its buckets
            counted, and last their sum.
        bounds: of a histogram, as texts.
        suffixes: of the samples that are to be shown; `None`: all.
    """

    name: str
    text: str
    kind: str
    label_names: tuple[str, ...]
    children: Sequence[Child]
    bounds: tuple[str, ...] = ()
    suffixes: Collection[str] | None = None

    def shown(self) -> list[str]:
        """The suffixes of its samples."""
        return [suffix for suffix in _SUFFIXES[self.kind] if self.suffixes is None or suffix in self.suffixes]

    def twin(self, name: str, text: str, labels: Mapping[str, str]) -> "Reading":
        """Under another name. `labels`: by current label the other one; over the rest it is summed."""
        if tuple(labels) == self.label_names:
            children = self.children
        else:
            places = [self.label_names.index(label) for label in labels]
            sums: dict[Labels, Sequence[float]] = {}
            for values, numbers in self.children:
                key = tuple(values[place] for place in places)
                before = sums.get(key)
                sums[key] = numbers if before is None else [a + b for a, b in zip(before, numbers, strict=True)]
            children = list(sums.items())
        return replace(self, name=name, text=text, label_names=tuple(labels.values()), children=children)

    def samples(self) -> Iterator[Sample]:
        shown = self.shown()
        for values, numbers in self.children:
            labels = dict(zip(self.label_names, values, strict=True))
            if self.kind != "histogram":
                for suffix in shown:
                    yield Sample(self.name + suffix, labels, numbers[0])
                continue
            counts = list(accumulate(numbers[:-1]))
            if "_bucket" in shown:
                for bound, count in zip(self.bounds, counts, strict=True):
                    yield Sample(self.name + "_bucket", {**labels, "le": bound}, count)
            for suffix, number in (("_count", counts[-1]), ("_sum", numbers[-1])):
                if suffix in shown:
                    yield Sample(self.name + suffix, labels, number)

    def lines(self) -> Iterator[str]:
        """For each child all of its lines. Labels stand in the order of their names, `le` among them."""
        shown, name = self.shown(), self.name
        order = sorted(range(len(self.label_names)), key=self.label_names.__getitem__)
        heads = [(place, f'{self.label_names[place]}="') for place in order]
        le_at = sum(name < "le" for name in self.label_names)
        for values, numbers in self.children:
            pairs = [f'{head}{_escaped(values[place])}"' for place, head in heads]
            labels = f"{{{','.join(pairs)}}}" if pairs else ""
            if self.kind != "histogram":
                yield "".join([f"{name}{suffix}{labels} {_number(numbers[0])}\n" for suffix in shown])
                continue
            lines: list[str] = []
            total = 0.0
            if "_bucket" in shown:
                start = f'{name}_bucket{{{"".join([pair + "," for pair in pairs[:le_at]])}le="'
                rest = f'"{"".join(["," + pair for pair in pairs[le_at:]])}}} '
                written = _number(0.0)
                for bound, number in zip(self.bounds, numbers, strict=False):  # the last one is the sum
                    if number:
                        total += number
                        written = _number(total)
                    lines.append(f"{start}{bound}{rest}{written}\n")
            else:
                total = sum(numbers[:-1])
            for suffix, number in (("_count", total), ("_sum", numbers[-1])):
                if suffix in shown:
                    lines.append(f"{name}{suffix}{labels} {_number(number)}\n")
            yield "".join(lines)


class ReadMetric(Metric):
    """A reading as prometheus-client wants it."""

    def __init__(self, name: str, text: str, kind: str, reading: Callable[[], Reading]) -> None:
        """`reading`: is asked for when it is needed, and always the same."""
        super().__init__(name, text, kind)
        del self.samples  # see `__getattr__`
        self.reading = reading

    @classmethod
    def of(cls, reading: Reading) -> "ReadMetric":
        return cls(reading.name, reading.text, reading.kind, lambda: reading)

    def __getattr__(self, name: str) -> list[Sample]:
        if name != "samples":
            raise AttributeError(name)
        self.samples = list(self.reading().samples())
        return self.samples

    def _restricted_metric(self, names: Collection[str]) -> "ReadMetric | None":
        """What the library asks for `?name[]=…`: only samples with these names; `None`: there are none."""
        reading = self.reading()
        wanted = [suffix for suffix in reading.shown() if self.name + suffix in names]
        return ReadMetric.of(replace(reading, suffixes=wanted)) if wanted and reading.children else None


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
