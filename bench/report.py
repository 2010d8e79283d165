"""Tables from the samples of a comparison."""

from statistics import median


def processor_times():
    """Jiffies of all processors since the start, by kind; None where the system does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return [int(part) for part in file.readline().split()[1:9]]
    except OSError:
        return None


def stolen_share(before, after):
    """Share of the time in which the host gave this machine's processors to others."""
    if before is None or after is None:
        return None
    spent = [b - a for a, b in zip(before, after)]
    return spent[7] / max(sum(spent), 1)


def values(row, way, key):
    return [sample[key] for sample in row["samples"][way] if sample]


def middle(row, way, key):
    found = values(row, way, key)
    return median(found) if found else None


def spread(found, digits):
    """Median with least and most."""
    if not found:
        return "failed"
    if len(found) == 1:
        return f"{found[0]:.{digits}f}"
    return f"{median(found):.{digits}f} ({min(found):.{digits}f}–{max(found):.{digits}f})"


def digits_of(found):
    return 0 if found and median(found) >= 100 else 1


def better(row, ways, key, best):
    """The way with the better median."""
    known = {way: middle(row, way, key) for way in ways}
    known = {way: value for way, value in known.items() if value is not None}
    return best(known, key=known.get) if known else None


def ratio(row, over, under, key):
    """Ratio of the medians, with least and most of the rounds' own ratios."""
    if over is None or under is None or not values(row, over, key) or not values(row, under, key):
        return "–"
    of_medians = middle(row, over, key) / middle(row, under, key)
    pairs = zip(row["samples"][over], row["samples"][under])
    each = [a[key] / b[key] for a, b in pairs if a and b]
    if len(each) < 2:
        return f"{of_medians:.2f}×"
    return f"{of_medians:.2f}× ({min(each):.2f}–{max(each):.2f})"


def state(row, key):
    return median(found[key] for found in row["states"])


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def share_of_limit(row, way):
    """What the speed means for the part of the machine that limits it."""
    speed = middle(row, way, "speed")
    if speed is None:
        return "–"
    if row["kind"] == "tg" and row["bytes_per_token"]:
        # All sequences share one reading of the weights.
        rate = speed / row["sequences"] * row["bytes_per_token"] / 1e9
        limit = max(state(row, "read_gbs"), state(row, "read_huge_gbs"))
        return f"{rate:.1f} GB/s ({100 * rate / limit:.0f} %)"
    if row["kind"] == "pp" and row["operations_per_token"]:
        rate = speed * row["operations_per_token"] / 1e9
        limit = row["int8_gops"]
        return f"{rate:.0f} Gop/s" + (f" ({100 * rate / limit:.0f} %)" if limit else "")
    return "–"


def speed_tables(result, default, plain, wootz):
    header = [
        "model", "test", "threads", f"{default} t/s", f"{plain} t/s", "wootz t/s", "× default", "× best",
        "wootz uses", "read / huge GB/s", "barrier / p99 / wake µs",
    ]
    rows = []
    for row in result["rows"]:
        speeds = {way: values(row, way, "speed") for way in (default, plain, wootz)}
        best = better(row, (default, plain), "speed", max)
        rows.append([
            row["model"], row["test"], str(row["threads"]),
            *(spread(found, digits_of(found)) for found in speeds.values()),
            ratio(row, wootz, default, "speed"), ratio(row, wootz, best, "speed"),
            share_of_limit(row, wootz),
            f"{state(row, 'read_gbs'):.1f} / {state(row, 'read_huge_gbs'):.1f}",
            f"{state(row, 'barrier_us'):.2f} / {state(row, 'barrier_p99_us'):.1f} / {state(row, 'wake_us'):.1f}",
        ])
    return table(header, rows)


def start_table(result, default, plain, wootz):
    header = [
        "model", "file", "threads", f"{default} s", f"{plain} s", "wootz s", "wootz / default", "wootz / best",
    ]
    rows = []
    for row in result["start"]:
        best = better(row, (default, plain), "first", min)
        rows.append([
            row["model"], "from disk" if row["cold"] else "in memory", str(row["threads"]),
            *(spread(values(row, way, "first"), 2) for way in (default, plain, wootz)),
            ratio(row, wootz, default, "first"), ratio(row, wootz, best, "first"),
        ])
    return table(header, rows)


def memory_table(result, default, plain, wootz):
    header = [
        "model", "run", "threads", f"{default} MB", f"{plain} MB", "wootz MB", "wootz / default", "wootz / best",
    ]
    rows = []
    runs = [(row, row["test"]) for row in result["rows"]]
    runs += [(row, "first token") for row in result["start"] if not row["cold"]]
    for row, name in runs:
        best = better(row, (default, plain), "peak", min)
        peaks = [middle(row, way, "peak") for way in (default, plain, wootz)]
        rows.append([
            row["model"], name, str(row["threads"]),
            *("failed" if peak is None else f"{peak / 1e6:.0f}" for peak in peaks),
            ratio(row, wootz, default, "peak"), ratio(row, wootz, best, "peak"),
        ])
    return table(header, rows)


def markdown(result, default, plain, wootz):
    about = result["about"]
    load = " → ".join(f"{loads[0]:.1f}" for loads in (about["load_before"], about["load_after"]))
    stolen = "unknown" if about["stolen"] is None else f"{100 * about['stolen']:.1f} %"
    lines = [
        f"- {about['date']}, {about['system']}, {about['cores']} cores, {about['cpu']}",
        f"- {about['wootz']} beside {about['peer']}, both with AVX2 only" if about["avx2"]
        else f"- {about['wootz']} beside {about['peer']}",
        f"- rounds in turns: {about['rounds']}; medians, least and most in brackets (of ratios: of the rounds)",
        f"- load average {load}, time taken by the host {stolen}",
    ]
    if about["wootz_args"]:
        lines.append(f"- wootz with {' '.join(about['wootz_args'])}")
    # One program measures at a time, on at most all cores: more load than that before the start is not ours.
    if about["load_before"][0] > 0.3 * about["cores"]:
        lines.append("- **The machine was busy before the start: these figures say little.**")
    if result["rows"]:
        lines += ["", "Speed, with the machine's state beside each figure:", ""]
        lines += speed_tables(result, default, plain, wootz)
    if result["start"]:
        lines += ["", "From the start of the process to the first token:", ""]
        lines += start_table(result, default, plain, wootz)
        if not all(row["streams"] for row in result["start"]):
            lines += ["", "The peer's program for one token is missing: all of a `llama-bench -p 5`, at a shorter context, stands for it."]
    lines += ["", "Peak resident memory:", "", *memory_table(result, default, plain, wootz)]
    if result["failures"]:
        lines += ["", "Failures:", "", *(f"- {failure}" for failure in result["failures"])]
    return "\n".join(lines)
