//! What the processor can do at most.

use std::hint::black_box;
use std::time::Instant;

use crate::memory::Buffer;
use crate::pool::Pool;
use crate::{CpuError, Isa};

/// Bytes read to measure memory: more than any cache holds.
const READ: usize = 256 << 20;
/// Rounds of the loop of products.
const ROUNDS: usize = 50_000;
/// Runs of which the best counts, since other programs only slow one down.
const RUNS: usize = 7;

fn best(mut run: impl FnMut()) -> f64 {
    let time = |()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    std::iter::repeat_n((), RUNS).map(time).fold(f64::INFINITY, f64::min)
}

/// Bytes per second that all threads together read from memory.
///
/// # Errors
/// [`CpuError::OutOfMemory`] for the memory to read.
pub fn read_bandwidth(pool: &Pool) -> Result<f64, CpuError> {
    let mut buffer = Buffer::zeroed(READ)?;
    // Untouched pages are all the same one.
    buffer.fill(1);
    Ok(READ as f64 / best(|| read(pool, &buffer)))
}

/// Reads all bytes, each thread its part.
pub fn read(pool: &Pool, bytes: &[u8]) {
    pool.run(&|worker| {
        let mut sums = [0u64; 16];
        for line in bytes[worker.part(bytes.len() / 128 * 128)].as_chunks::<128>().0 {
            for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum ^= u64::from_ne_bytes(*word);
            }
        }
        black_box(sums);
    });
}

/// Multiplications and additions of 8-bit numbers per second by all threads together: of whole bytes (`wide`) or of
/// shorter codes. `None` for instruction sets without an own instruction for them.
pub fn int8_peak(pool: &Pool, isa: Isa, wide: bool) -> Option<f64> {
    let operations = int8_operations(isa, ROUNDS, wide)?;
    let elapsed = best(|| {
        pool.run(&|_| {
            int8_operations(isa, ROUNDS, wide);
        })
    });
    Some(operations * pool.workers() as f64 / elapsed)
}

/// Integer operations a thread does in `n` steps of eight independent chains: of the steps of 8-bit codes (`wide`),
/// or of shorter codes.
fn int8_operations(isa: Isa, n: usize, wide: bool) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::asm;
        /// Eight chains of the instructions on register `{}` and the scratch register `{}`.
        macro_rules! chains {
            ($n:expr, $step:literal) => {
                // SAFETY: works on scratch registers alone; an `Isa` that was selected is one the processor has.
                unsafe {
                    asm!(
                        "2:",
                        concat!(".irp i, 0,1,2,3,4,5,6,7\n", $step, "\n.endr"),
                        "sub {n}, 1",
                        "jnz 2b",
                        n = inout(reg) $n => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                        out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nomem, nostack)
                    )
                }
            };
        }
        match isa {
            Isa::Avx2 if wide => chains!(
                n,
                "vpxor ymm8, ymm9, ymm10\nvpmaddubsw ymm8, ymm11, ymm8\n\
                 vpmaddwd ymm8, ymm8, ymm12\nvpaddd ymm\\i, ymm\\i, ymm8"
            ),
            Isa::Avx2 => chains!(n, "vpmaddubsw ymm8, ymm9, ymm10\nvpaddw ymm\\i, ymm\\i, ymm8"),
            Isa::AvxVnni => chains!(n, "{{vex}} vpdpbusd ymm\\i, ymm9, ymm10"),
            Isa::Avx512 | Isa::Avx512Bf16 => chains!(n, "vpdpbusd zmm\\i, zmm9, zmm10"),
            _ => return None,
        }
        let bytes = if matches!(isa, Isa::Avx512 | Isa::Avx512Bf16) { 64 } else { 32 };
        Some((n * 8 * 2 * bytes) as f64)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (isa, n, wide);
        None
    }
}
