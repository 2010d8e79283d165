//! `strftime_now`: Python's date directives, in the C locale.

use super::LocalTime;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Civil {
    year: i64,
    month: usize,
    day: i64,
    year_day: i64,
    week_day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Civil {
    /// Proleptic Gregorian date of a moment, counted in 400-year eras that start on 1 March.
    fn new(time: LocalTime) -> Self {
        let local = time.unix_seconds.saturating_add(i64::from(time.utc_offset));
        let (days, secs) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let from_era = days + 719_468;
        let (era, day_of_era) = (from_era.div_euclid(146_097), from_era.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day + 2) / 153;
        let month = if march_month < 10 { march_month + 2 } else { march_month - 10 } as usize;
        let year = year_of_era + era * 400 + i64::from(month < 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        // `day` counts from 1 March; 306 days lie between it and the next 1 January.
        let year_day = if month < 2 { day - 306 } else { day + 59 + i64::from(leap) };
        Self {
            year,
            month,
            day: day - (153 * march_month + 2) / 5 + 1,
            year_day,
            week_day: (days + 4).rem_euclid(7),
            hour: secs / 3_600,
            minute: secs / 60 % 60,
            second: secs % 60,
        }
    }
}

/// Formats `time` by a `strftime` pattern; unknown directives stay as they are.
pub(super) fn strftime(time: LocalTime, format: &str) -> String {
    let c = Civil::new(time);
    let mut out = String::with_capacity(format.len() * 2);
    let mut chars = format.chars();
    while let Some(ch) = chars.next() {
        if ch != '%' {
            out.push(ch);
            continue;
        }
        let mut directive = chars.next();
        // glibc's `-` flag drops the padding.
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let number = |value: i64, width: usize| match bare {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        let hour12 = (c.hour + 11) % 12 + 1;
        let text = match directive {
            Some('Y') => c.year.to_string(),
            Some('y') => number(c.year.rem_euclid(100), 2),
            Some('C') => number(c.year.div_euclid(100), 2),
            Some('m') => number(c.month as i64 + 1, 2),
            Some('d') => number(c.day, 2),
            Some('e') => format!("{:2}", c.day),
            Some('H') => number(c.hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(c.minute, 2),
            Some('S') => number(c.second, 2),
            Some('f') => "000000".into(),
            Some('j') => number(c.year_day + 1, 3),
            Some('p') => if c.hour < 12 { "AM" } else { "PM" }.into(),
            Some('B') => MONTHS[c.month].into(),
            Some('b' | 'h') => MONTHS[c.month][..3].into(),
            Some('A') => DAYS[c.week_day as usize].into(),
            Some('a') => DAYS[c.week_day as usize][..3].into(),
            Some('w') => c.week_day.to_string(),
            Some('u') => ((c.week_day + 6) % 7 + 1).to_string(),
            Some('U') => number((c.year_day + 7 - c.week_day) / 7, 2),
            Some('W') => number((c.year_day + 7 - (c.week_day + 6) % 7) / 7, 2),
            Some('F') => strftime(time, "%Y-%m-%d"),
            Some('D' | 'x') => strftime(time, "%m/%d/%y"),
            Some('T' | 'X') => strftime(time, "%H:%M:%S"),
            Some('R') => strftime(time, "%H:%M"),
            Some('c') => strftime(time, "%a %b %e %H:%M:%S %Y"),
            Some('s') => time.unix_seconds.to_string(),
            // A time without a zone, as Python's `datetime.now()` gives it.
            Some('Z' | 'z') => String::new(),
            Some('n') => "\n".into(),
            Some('t') => "\t".into(),
            Some('%') => "%".into(),
            Some(other) => format!("%{}{other}", if bare { "-" } else { "" }),
            None => "%".into(),
        };
        out.push_str(&text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden lines of Python's `datetime.strftime`, made by `crates/text/scripts/date_goldens.py`.
    #[test]
    fn dates_equal_pythons() {
        let goldens = include_str!("../../tests/data/dates.txt");
        assert!(goldens.lines().count() > 200);
        for line in goldens.lines() {
            let (secs, want) = line.split_once('\t').unwrap();
            let time = LocalTime { unix_seconds: secs.parse().unwrap(), utc_offset: 0 };
            let format = "%Y|%y|%m|%d|%e|%H|%I|%M|%S|%j|%p|%B|%b|%A|%a|%w|%u|%U|%W|%-d|%-m|%F|%D|%T|%c";
            assert_eq!(strftime(time, format), want, "at {secs}");
        }
    }

    #[test]
    fn the_offset_moves_the_clock() {
        let time = LocalTime { unix_seconds: 1_709_164_800, utc_offset: 19_800 };
        assert_eq!(strftime(time, "%d %b %Y %H:%M %Q %"), "29 Feb 2024 05:30 %Q %");
    }
}
