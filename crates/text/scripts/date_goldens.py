"""Writes tests/data/dates.txt: moments and what Python's strftime makes of them."""
import datetime
import pathlib
import random

FORMAT = "%Y|%y|%m|%d|%e|%H|%I|%M|%S|%j|%p|%B|%b|%A|%a|%w|%u|%U|%W|%-d|%-m|%F|%D|%T|%c"
rng = random.Random(7)
moments = [0, 951782399, 951782400, 1709164799, 1709251199, 1735689599, 4107542400]
moments += [rng.randrange(-2_000_000_000, 9_000_000_000) for _ in range(250)]
epoch = datetime.datetime(1970, 1, 1)
lines = [f"{s}\t{(epoch + datetime.timedelta(seconds=s)).strftime(FORMAT)}\n" for s in moments]
out = pathlib.Path(__file__).parent.parent / "tests/data/dates.txt"
out.write_text("".join(lines))
