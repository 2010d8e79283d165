//! What the machine is.

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    /// What a process can still get without swapping.
    pub(crate) available: u64,
}

/// Memory, where the system tells.
pub(crate) fn memory() -> Option<Memory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    Some(Memory { total: field("MemTotal")?, available: field("MemAvailable")? })
}

/// The processor's name; its architecture where the system does not tell.
pub(crate) fn processor_name() -> String {
    let from_system = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("model name"))?;
        Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
    });
    from_system.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
