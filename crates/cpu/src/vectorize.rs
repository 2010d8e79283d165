//! Plain loops compiled for the instruction sets of the processor at hand.

use std::sync::OnceLock;

use crate::Isa;
use crate::isa::{Op, Simd};

/// A computation in plain loops, which the compiler turns into vector code.
///
/// No compiler may contract or reorder floating-point operations, so the result is the same bits in every instruction set.
pub trait Loops {
    /// What the loops compute.
    type Output;

    /// Runs the loops. Implementations are `#[inline(always)]`, as are all functions that they call: what is not
    /// inlined is compiled for the plainest processor.
    fn run(self) -> Self::Output;
}

struct Vectorized<L>(L);

impl<L: Loops> Op for Vectorized<L> {
    type Output = L::Output;

    #[inline(always)]
    unsafe fn call<S: Simd>(self) -> L::Output {
        self.0.run()
    }
}

/// Runs `loops` compiled for the best instruction set that this processor has.
pub fn vectorize<L: Loops>(loops: L) -> L::Output {
    static BEST: OnceLock<Isa> = OnceLock::new();
    BEST.get_or_init(Isa::best).dispatch(Vectorized(loops))
}
