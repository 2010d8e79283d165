//! What an AVX-512 processor issues beside 8-bit dot products: the limit of the matrix kernels, by experiment.
//!
//!     cargo run --release -p wootz-cpu --example port_bench
//!
//! Times `vpdpbusd` alone, with other instructions beside it, and in the mix of a Q4_K kernel's inner loop, on one thread.
//! The least of many short runs counts, so that other work on the machine does not matter. The last column is the share
//! of the dot products' peak rate.

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::time::Instant;

    /// Passes of one sample, and samples.
    const PASSES: u32 = 4000;
    const SAMPLES: usize = 2000;

    #[repr(align(64))]
    struct Bytes([u8; 4096]);

    /// Prints the time of a dot product in code that has `$dots` of them for each pass.
    macro_rules! time {
        ($peak:ident, $what:literal, $dots:literal, $($code:expr),+) => {{
            let bytes = Bytes([0; 4096]);
            let mut best = f64::INFINITY;
            for _ in 0..SAMPLES {
                let start = Instant::now();
                for _ in 0..PASSES {
                    // SAFETY: the processor has AVX-512 VNNI; the code reads `bytes` and changes registers named below.
                    unsafe {
                        asm!(
                            "/* {p} */", $($code),+,
                            p = in(reg) bytes.0.as_ptr(),
                            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                            out("xmm16") _, out("xmm17") _,
                            options(nostack, readonly),
                        );
                    }
                }
                best = best.min(start.elapsed().as_secs_f64());
            }
            let nanoseconds = best * 1e9 / f64::from(PASSES * $dots);
            $peak = $peak.min(nanoseconds);
            println!("{:60} {nanoseconds:.3} ns {:3.0} %", $what, 100.0 * $peak / nanoseconds);
        }};
    }

    /// An instruction for each of eight registers; those that only read take two that nothing writes.
    macro_rules! eight {
        ($before:literal, $after:literal) => {
            concat!(
                $before, "0", $after, "\n", $before, "1", $after, "\n", $before, "2", $after, "\n", $before,
                "3", $after, "\n", $before, "4", $after, "\n", $before, "5", $after, "\n", $before, "6",
                $after, "\n", $before, "7", $after
            )
        };
    }
    macro_rules! dots {
        () => {
            eight!("vpdpbusd zmm", ", zmm24, zmm25")
        };
    }
    macro_rules! broadcasts {
        () => {
            eight!("vpdpbusd zmm", ", zmm24, dword ptr [{p}]{{1to16}}")
        };
    }
    macro_rules! bf16_broadcasts {
        () => {
            eight!("vdpbf16ps zmm", ", zmm24, dword ptr [{p}]{{1to16}}")
        };
    }
    macro_rules! additions {
        () => {
            eight!("vpaddd zmm1", ", zmm24, zmm25")
        };
    }
    macro_rules! conversions {
        () => {
            eight!("vcvtdq2ps zmm1", ", zmm24")
        };
    }
    macro_rules! products {
        () => {
            eight!("vpmulld zmm1", ", zmm24, zmm25")
        };
    }
    macro_rules! multiply_adds {
        () => {
            eight!("vfmadd231ps zmm1", ", zmm24, zmm25")
        };
    }

    #[target_feature(enable = "avx512f")]
    pub(crate) fn run() {
        let mut peak = f64::INFINITY;
        time!(peak, "dot products", 16, dots!(), dots!());
        time!(peak, "dot products of a broadcast from memory", 16, broadcasts!(), broadcasts!());
        if wootz_cpu::Isa::Avx512Bf16.is_available() {
            time!(
                peak,
                "dot products of bf16, of a broadcast from memory",
                16,
                bf16_broadcasts!(),
                bf16_broadcasts!()
            );
        }
        time!(peak, "and an addition each", 8, dots!(), additions!());
        time!(peak, "and a conversion to f32 each", 8, dots!(), conversions!());
        time!(peak, "and a 32-bit product each", 8, dots!(), products!());
        time!(
            peak,
            "8 and a product, a conversion, a multiply-add: Q4_K",
            64,
            broadcasts!(),
            broadcasts!(),
            broadcasts!(),
            broadcasts!(),
            broadcasts!(),
            broadcasts!(),
            broadcasts!(),
            broadcasts!(),
            products!(),
            conversions!(),
            multiply_adds!()
        );
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    if wootz_cpu::Isa::Avx512.is_available() {
        // SAFETY: the processor has the feature.
        return unsafe { x86::run() };
    }
    println!("this processor has no AVX-512 VNNI");
}
