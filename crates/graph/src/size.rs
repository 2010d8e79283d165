use std::fmt;

/// A number of bytes that prints in the binary unit that suits it, such as `93.8 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSize;

    #[test]
    fn sizes_read_well() {
        let text = |n| ByteSize(n).to_string();
        assert_eq!(text(17), "17 B");
        assert_eq!(text(98_362_432), "93.8 MiB");
        assert_eq!(text(3 << 29), "1.5 GiB");
        assert_eq!(text(u64::MAX), "16777216.0 TiB");
    }
}
