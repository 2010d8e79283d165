use crate::device::Caps;

/// In which order threads of a threadgroup, threadgroups, and dispatches that may run together are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The first first.
    Forward,
    /// The last first.
    Backward,
    /// At random, the same for the same seed.
    Random(u32),
}

impl Order {
    /// One of each kind.
    pub const ALL: [Order; 3] = [Order::Forward, Order::Backward, Order::Random(7)];
}

/// The device that the emulator pretends to be.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Name on command lines, after `metal-emulator:`.
    pub name: &'static str,
    /// Capabilities.
    pub caps: Caps,
    /// Order of what Metal leaves open.
    pub order: Order,
    /// Whether every access of memory is checked; slower by about ten times.
    pub traced: bool,
    /// Command buffers after which all fail.
    pub fails_after: Option<u64>,
    /// Command buffers after which none is ever done.
    pub hangs_after: Option<u64>,
    /// Buffers from this size on must be kept resident, where the device has residency sets.
    pub resident_from: u64,
}

impl Profile {
    /// A GPU of Apple: unified memory, all capabilities.
    pub fn unified() -> Profile {
        Profile {
            name: "unified",
            caps: Caps {
                name: "Emulated Apple GPU".into(),
                unified: true,
                simd_width: 32,
                simdgroup_matrix: true,
                bf16: true,
                residency_sets: true,
                concurrent: true,
                max_buffer: 8 << 30,
                max_threadgroup_memory: 32 << 10,
                max_threads: 1024,
                page: 4096,
                working_set: 16 << 30,
            },
            order: Order::Forward,
            traced: true,
            fails_after: None,
            hangs_after: None,
            resident_from: 16 << 10,
        }
    }

    /// A GPU with memory of its own, in a Mac with an Intel processor.
    pub fn discrete() -> Profile {
        let unified = Profile::unified();
        Profile {
            name: "discrete",
            caps: Caps {
                name: "Emulated AMD GPU".into(),
                unified: false,
                simdgroup_matrix: false,
                bf16: false,
                residency_sets: false,
                concurrent: false,
                max_buffer: 3 << 30,
                ..unified.caps
            },
            ..unified
        }
    }

    /// An older discrete GPU, whose simdgroups have 64 threads.
    pub fn wide() -> Profile {
        let discrete = Profile::discrete();
        let caps = Caps { name: "Emulated GPU with wide simdgroups".into(), simd_width: 64, ..discrete.caps };
        Profile { name: "wide", caps, ..discrete }
    }

    /// An older GPU of Apple: without simdgroup matrices, bf16 and residency sets.
    pub fn plain() -> Profile {
        let unified = Profile::unified();
        let caps = Caps {
            name: "Emulated older Apple GPU".into(),
            simdgroup_matrix: false,
            bf16: false,
            residency_sets: false,
            ..unified.caps
        };
        Profile { name: "plain", caps, ..unified }
    }

    /// A device whose buffers are small: weights lie in several views.
    pub fn small_buffers() -> Profile {
        let unified = Profile::unified();
        let caps =
            Caps { name: "Emulated GPU with small buffers".into(), max_buffer: 512 << 10, ..unified.caps };
        Profile { name: "small", caps, ..unified }
    }

    /// All profiles that can run models.
    pub fn all() -> Vec<Profile> {
        vec![
            Profile::unified(),
            Profile::discrete(),
            Profile::wide(),
            Profile::plain(),
            Profile::small_buffers(),
        ]
    }

    /// The same with another order.
    pub fn ordered(self, order: Order) -> Profile {
        Profile { order, ..self }
    }

    /// The same without checks of every access.
    pub fn untraced(self) -> Profile {
        Profile { traced: false, ..self }
    }
}
